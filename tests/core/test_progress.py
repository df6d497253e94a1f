"""Progress displays: one at a time, on standard error; nested displays are silent; the screen is released."""

import pytest

from unlazy.core.progress import Progress, ProgressDisplay


def test_progress_display_shows_title_count_and_warnings(capsys):
    with ProgressDisplay("learning", 3, persist=True) as shown:
        shown.advance("a [note]")
        shown.advance(steps=2, warning="1 failed")
    out, text = capsys.readouterr()
    assert out == "" and "learning" in text and "3/3" in text and "1 failed" in text


def test_hidden_progress_prints_nothing(capsys):
    with ProgressDisplay("learning", 3, show=False) as shown:
        shown.advance()
    assert capsys.readouterr().err == ""


def test_a_function_is_called_after_every_step(capsys):
    seen: list[Progress] = []
    with ProgressDisplay("outer", 3, show=seen.append), ProgressDisplay("inner", show=seen.append) as inner:
        inner.advance("first")
        inner.advance(steps=2, warning="1 failed")
    assert [(p.what, p.step, p.total, p.note) for p in seen] == [
        ("inner", 1, None, "first"),
        ("inner", 3, None, "1 failed"),
    ]
    assert 0 <= seen[0].seconds <= seen[1].seconds and capsys.readouterr().err == ""


def test_short_runs_show_nothing(capsys):
    with ProgressDisplay("learning", 3, persist=True, delay=3600.0) as shown:
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
