"""Progress of fits, sweeps and solvers: one line on standard error, or a callback."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


@dataclass(frozen=True)
class Progress:
    """Progress of a run, passed to a callback after every step.

    Attributes
    ----------
    what : str
        What is running, such as "solving".
    step : float
        Steps completed.
    total : int or None
        Number of steps in all; None if unknown.
    seconds : float
        Seconds since the start.
    note : str
        Details of the last step; may be empty.

    Examples
    --------
    >>> from unlazy import Progress
    >>> Progress("solving", step=3, total=10, seconds=0.5).total
    10
    """

    what: str
    step: float
    total: int | None
    seconds: float
    note: str = ""


ProgressOption = bool | Callable[[Progress], None]
"""Type of `progress=`: whether to show a progress line, or a function that is called after every step."""

_SCREEN = threading.Lock()
"""Held by the visible display. Displays nested in it (a solver in a trial) stay silent, since two would overwrite each
other."""


class ProgressDisplay:
    """A progress bar with a description, completed steps, a note, a warning, elapsed time and remaining time.

    Without a `total`, only a spinner and the note are shown. The display starts on `with` or on the first `advance`,
    but not before `delay` seconds. When it is closed, it stays on the screen if `persist` is true, and is cleared
    otherwise. If `show` is a function, it is called with a `Progress` after every step instead.
    """

    def __init__(
        self, what: str, total: int | None = None, *, show: ProgressOption = True, persist: bool = False,
        delay: float = 0.0,
    ):  # fmt: skip
        self._what, self._total, self._persist, self._delay = what, total, persist, delay
        self._callback = show if callable(show) else None
        self._show = self._callback is None and bool(show)
        self._step: float = 0
        self._start = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressDisplay":
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def advance(self, note: str = "", steps: float = 1, warning: str = "") -> None:
        """Add completed steps, and replace the note and the warning."""
        self._step += steps
        if self._callback is not None:
            self._callback(Progress(self._what, self._step, self._total, self.seconds, warning or note))
        self._begin()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._step, note=note, warning=warning)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def close(self) -> None:
        """Stop the display and release the screen."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()
            _SCREEN.release()

    def _begin(self) -> None:
        """Start the display, unless it is hidden, early, already running, or nested in another one."""
        if not self._show or self._bar is not None or self.seconds < self._delay:
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
        self._task = self._bar.add_task(
            self._what,
            total=self._total,
            completed=self._step,  # type: ignore[arg-type]  # fractions are fine, as in `update`
            note="",
            warning="",
        )
        self._bar.start()
