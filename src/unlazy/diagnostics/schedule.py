"""When a monitor checks: at steps that grow geometrically, as long as checks cost little beside training."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from unlazy.core.errors import check_positive_integer

T = TypeVar("T")
BUDGET = 0.03
"""Share of the training time that checks may take with `every="auto"`, besides the call of `unlazy.watch` itself."""
SHARE = {"gap": 1.0, "features": 0.7, "kernel": 0.5, "sharpness": 0.5}
"""A measure is taken while all checks together stay below this share of the budget: what costs more gives way."""
GUESS = {"gap": 1.0, "features": 2.0, "kernel": 80.0, "sharpness": 40.0}
"""Cost of a measure in gaps, besides its compilation, before it was first measured."""
SAVED = ("gap", "features")
"""Measures that the end of a run of planned length is given, if anything is."""
GROWTH = 1.25
"""Ratio of the steps of two checks in a row: ten checks per decade."""
FIRST = 0.02
"""The first check, as a share of the planned steps."""
PAUSE = 20
"""An interval longer than this many typical steps counts as that many: a pause pays for no checks."""


class Schedule:
    """Counts steps, measures their time and the cost of checks, and says what may be measured.

    Parameters
    ----------
    every : int or {"auto"}, default "auto"
        Number of steps between checks; "auto" keeps the time of checks within 3% of the training time.
    planned_steps : int, optional
        Length of the run: checks are spread over it, and one is saved for its end.
    clock : callable, default time.perf_counter
        Seconds.

    Raises
    ------
    ValueError
        If `every` is neither "auto" nor a positive integer, or `planned_steps` is not a positive integer.
    """

    def __init__(
        self,
        every: int | str = "auto",
        planned_steps: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.automatic = every == "auto"
        if not self.automatic:
            check_positive_integer("every", every, 'or "auto", which keeps checks within 3% of the training time')
        if planned_steps is not None:
            check_positive_integer("planned_steps", planned_steps, "or None where it is not known")
        self._every = 0 if self.automatic else int(every)
        self._planned = planned_steps
        self._clock = clock
        self._last: float | None = None
        self._typical = 0.0
        self._next = max(1, math.floor(FIRST * planned_steps)) if planned_steps else 1
        self._wait_cost: float | None = None
        self._costs: dict[str, list[float]] = {}
        self.steps = 0
        self.training_seconds = 0.0
        self.check_seconds = 0.0
        self.all_seconds = 0.0

    def step(self) -> bool:
        """Count one training step; return whether a check is due."""
        now = self._clock()
        self.steps += 1
        if self._last is not None:
            taken = now - self._last
            counted = min(taken, PAUSE * self._typical) if self.steps > 2 else taken
            self._typical += (1.0 if self.steps == 2 else 0.05) * (counted - self._typical)
            self.training_seconds += counted
        self._last = now
        if not self.automatic:
            return self.steps % self._every == 0
        return self.steps >= self._next or self.steps == self._planned

    def allows(self, measure: str) -> bool:
        """Whether the budget allows this measure now."""
        if not self.automatic:
            return True
        cost = self.check_seconds + self.expected(measure)
        if self._planned is None or self.steps >= self._planned:
            share = SHARE[measure] if self._planned is None else 1.0
            return cost <= share * BUDGET * self.training_seconds
        # what the end of the run needs is saved
        whole = self.training_seconds / self.steps * self._planned
        saved = sum(self.expected(name) for name in SAVED)
        return cost <= SHARE[measure] * BUDGET * self.training_seconds and cost + saved <= BUDGET * whole

    def expected(self, measure: str) -> float:
        """Seconds that a measure is expected to take: the shorter of its last two, since the first one compiles.

        What was never measured is guessed from the gap, and its compilation from all that was compiled at the start.
        """
        known = self._costs.get(measure)
        if known:
            return min(known[-2:])
        gap = self._costs.get("gap", [0.0])
        return GUESS[measure] * min(gap[-2:]) + sum(self._costs.get("start", [0.0]))

    @contextmanager
    def timed(self, measure: str, forced: bool = False) -> Iterator[None]:
        """Time the block as a measure, which is not training; what the user asked for is not part of the budget."""
        began = self._clock()
        try:
            yield
        finally:
            self._last = self._clock()
            taken = self._last - began
            self._costs.setdefault(measure, []).append(taken)
            self.all_seconds += taken
            if not forced:
                self.check_seconds += taken

    def synchronize(self, wait: Callable[[], T], forced: bool = False) -> T:
        """Wait for the training steps that still run on a device, whose time is not that of the check.

        The call itself takes time, too: that of a second one, which waits for nothing, at the first check.
        """
        before, result = self._last, wait()
        now = self._clock()
        if self._wait_cost is None:
            with self.timed("wait", forced):
                wait()
            self._wait_cost = self._costs.pop("wait")[0]
        if not forced:
            self.check_seconds += self._wait_cost
        if before is not None:
            self.training_seconds += max(0.0, now - before - self._wait_cost)
        self._last = self._clock()
        return result

    def checked(self) -> None:
        """A check was taken at this step."""
        self._next = max(self.steps + 1, math.ceil(GROWTH * self.steps))

    @property
    def overhead(self) -> float:
        """Time of checks that the schedule chose over training time; NaN before the second step."""
        return self.check_seconds / self.training_seconds if self.training_seconds > 0 else math.nan
