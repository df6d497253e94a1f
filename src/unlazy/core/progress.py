"""Progress display: one line on standard error, used by fits, sweeps and solvers."""

import threading
from typing import Any

_SCREEN = threading.Lock()
"""Held by the visible display. Displays nested in it (a solver in a trial) stay silent, since two would overwrite each
other."""


class ProgressDisplay:
    """A progress bar with a description, completed steps, a note, a warning, elapsed time and remaining time.

    Without a `total`, only a spinner and the note are shown. The display starts on `with` or on the first `advance`.
    When it is closed, it stays on the screen if `persist` is true, and is cleared otherwise.
    """

    def __init__(self, what: str, total: int | None = None, *, show: bool = True, persist: bool = False):
        self._what, self._total, self._show, self._persist = what, total, show, persist
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "ProgressDisplay":
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def advance(self, note: str = "", steps: float = 1, warning: str = "") -> None:
        """Add completed steps, and replace the note and the warning."""
        self._begin()
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, note=note, warning=warning)

    def close(self) -> None:
        """Stop the display and release the screen."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()
            _SCREEN.release()

    def _begin(self) -> None:
        """Start the display, unless it is hidden, already running, or nested in another one."""
        if not self._show or self._bar is not None:
            return
        from rich import progress as rich
        from rich.console import Console

        if not _SCREEN.acquire(blocking=False):
            return
        note = rich.TextColumn("{task.fields[note]}", markup=False)
        counted = (
            rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[warning]}", style="red", markup=False), rich.TimeElapsedColumn(),
            rich.TextColumn("left"), rich.TimeRemainingColumn(), note,
        )  # fmt: skip
        columns = (rich.SpinnerColumn(), note) if self._total is None else counted
        self._bar = rich.Progress(*columns, console=Console(stderr=True), transient=not self._persist)
        self._task = self._bar.add_task(self._what, total=self._total, note="", warning="")
        self._bar.start()
