"""Progress displays: one at a time, on standard error; nested displays are silent; the screen is released."""

import pytest

from unlazy.core.progress import ProgressDisplay


def test_what_is_shown(capsys):
    with ProgressDisplay("learning", 3, persist=True) as shown:
        shown.advance("a [note]")
        shown.advance(steps=2, warning="1 failed")
    out, text = capsys.readouterr()
    assert out == "" and "learning" in text and "3/3" in text and "1 failed" in text


def test_silence(capsys):
    with ProgressDisplay("learning", 3, show=False) as shown:
        shown.advance()
    assert capsys.readouterr().err == ""


def test_one_at_a_time(capsys):
    with ProgressDisplay("outer", 1, persist=True) as outer:
        with ProgressDisplay("inner", 1, persist=True) as inner:
            inner.advance()
        outer.advance()
    text = capsys.readouterr().err
    assert "outer" in text and "inner" not in text
    with pytest.raises(KeyboardInterrupt), ProgressDisplay("stopped", 1, persist=True):
        raise KeyboardInterrupt
    with ProgressDisplay("after", 1, persist=True):
        pass
    assert "after" in capsys.readouterr().err


def test_deleted_display_releases_the_screen(capsys):
    lost = ProgressDisplay("lost")
    lost.advance("step 1")
    del lost
    with ProgressDisplay("after", 1, persist=True):
        pass
    assert "after" in capsys.readouterr().err
