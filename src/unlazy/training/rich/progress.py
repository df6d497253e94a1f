"""How far a rich limit has come: a callback, or a line on standard error once it takes long."""

import sys
import time
from collections.abc import Callable

from unlazy.core.progress import Display

Progress = bool | Callable[[int, float], None] | None
QUIET_SECONDS = 3.0
"""No progress is shown for runs that end before this."""


class Teller:
    """Tells of recorded times: `progress` is a function of (how many, seconds), or whether to show a line; None shows
    one on a terminal."""

    def __init__(self, progress: Progress, what: str, total: int):
        self._told = progress if callable(progress) else None
        self._shown = progress is True or (progress is None and sys.stderr.isatty())
        self._what, self._total = what, total
        self._display: Display | None = None
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def tell(self, done: int, note: str) -> None:
        """So many of all are done."""
        if self._told is not None:
            self._told(done, self.seconds)
        elif self._shown and self.seconds > QUIET_SECONDS:
            first = self._display is None
            self._display = self._display or Display(self._what, self._total)
            self._display.advance(note, done if first else 1)

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
