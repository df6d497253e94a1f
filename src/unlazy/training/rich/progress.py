"""Progress of a rich limit: a callback, or a line on standard error for long runs."""

import sys
import time
from collections.abc import Callable

from unlazy.core.progress import ProgressDisplay

Progress = bool | Callable[[int, float], None] | None
QUIET_SECONDS = 3.0
"""Runs shorter than this show no progress."""


class ProgressReporter:
    """Reports recorded times.

    `progress` is a function of (times done, seconds), or whether to show a progress line; None shows one on a terminal.
    """

    def __init__(self, progress: Progress, what: str, total: int):
        self._callback = progress if callable(progress) else None
        self._show = progress is True or (progress is None and sys.stderr.isatty())
        self._what, self._total = what, total
        self._display: ProgressDisplay | None = None
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def report(self, done: int, note: str) -> None:
        """Report that `done` of all times are done."""
        if self._callback is not None:
            self._callback(done, self.seconds)
        elif self._show and self.seconds > QUIET_SECONDS:
            first = self._display is None
            self._display = self._display or ProgressDisplay(self._what, self._total)
            self._display.advance(note, done if first else 1)

    def close(self) -> None:
        """Close the progress line."""
        if self._display is not None:
            self._display.close()
