"""How far a long run has come: one line on standard error, the same for fits, sweeps and solvers."""

import threading
from typing import Any

_SCREEN = threading.Lock()
"""Held by the display that is shown: what runs inside it (a solver in a trial) is silent, since two would overwrite
each other."""


class Display:
    """What runs, how many steps of how many, a note, what went wrong, the time and the time left.

    Without a `total` only the note is shown. It begins with `with` or the first `advance`, and is `kept` on the screen
    or cleared when it is closed.
    """

    def __init__(self, what: str, total: int | None = None, *, show: bool = True, kept: bool = False):
        self._what, self._total, self._show, self._kept = what, total, show, kept
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Display":
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def advance(self, note: str = "", steps: float = 1, wrong: str = "") -> None:
        """So many more steps are done."""
        self._begin()
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, note=note, wrong=wrong)

    def close(self) -> None:
        """Give the screen back."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()
            _SCREEN.release()

    def _begin(self) -> None:
        if not self._show or self._bar is not None:
            return
        from rich import progress as rich
        from rich.console import Console

        if not _SCREEN.acquire(blocking=False):
            return
        note = rich.TextColumn("{task.fields[note]}", markup=False)
        counted = (
            rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[wrong]}", style="red", markup=False), rich.TimeElapsedColumn(),
            rich.TextColumn("left"), rich.TimeRemainingColumn(), note,
        )  # fmt: skip
        columns = (rich.SpinnerColumn(), note) if self._total is None else counted
        self._bar = rich.Progress(*columns, console=Console(stderr=True), transient=not self._kept)
        self._task = self._bar.add_task(self._what, total=self._total, note="", wrong="")
        self._bar.start()
