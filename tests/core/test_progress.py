"""One display at a time, on standard error; what runs inside another says nothing, and the screen is given back."""

import pytest

from unlazy.core.progress import Display


def test_what_is_shown(capsys):
    with Display("learning", 3, kept=True) as shown:
        shown.advance("a [note]")
        shown.advance(steps=2, wrong="1 failed")
    out, text = capsys.readouterr()
    assert out == "" and "learning" in text and "3/3" in text and "1 failed" in text


def test_silence(capsys):
    with Display("learning", 3, show=False) as shown:
        shown.advance()
    assert capsys.readouterr().err == ""


def test_one_at_a_time(capsys):
    with Display("outer", 1, kept=True) as outer:
        with Display("inner", 1, kept=True) as inner:
            inner.advance()
        outer.advance()
    text = capsys.readouterr().err
    assert "outer" in text and "inner" not in text
    with pytest.raises(KeyboardInterrupt), Display("stopped", 1, kept=True):
        raise KeyboardInterrupt
    with Display("after", 1, kept=True):
        pass
    assert "after" in capsys.readouterr().err


def test_a_display_that_is_forgotten_gives_the_screen_back(capsys):
    lost = Display("lost")
    lost.advance("step 1")
    del lost
    with Display("after", 1, kept=True):
        pass
    assert "after" in capsys.readouterr().err
