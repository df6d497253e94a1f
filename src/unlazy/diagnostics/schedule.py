"""When a monitor checks: at steps that grow geometrically, as long as all that it does costs little beside training."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unlazy.core.errors import check_positive_integer

BUDGET = 0.03
"""Share of the training time that the monitor may take with `every="auto"`, with its construction and compilation."""
SHARE = {"start": 1.0, "gap": 1.0, "features": 0.7, "kernel": 0.5, "sharpness": 0.5}
"""A measure is taken while everything together stays below this share of the budget: what costs more gives way."""
GUESS = {"start": 2.0, "gap": 5.0, "features": 2.0, "kernel": 80.0, "sharpness": 40.0}
"""Cost of a measure before it was first taken: of the first two in evaluations of the network (a training step, before
one was timed), of the others in gaps, besides what the evaluation at initialization took."""
SAVED = {"features": ("gap", "features"), "kernel": ("gap", "features"), "sharpness": ("gap", "features")}
"""What the end of a run of planned length is given first, by the measure that gives way; "gap" where none is named."""
GROWTH = 1.25
"""Ratio of the steps of two checks in a row: ten checks per decade."""
RETRY = 1.02
"""Least ratio of the steps at which a check that costs too much is considered again."""
FIRST = 0.02
"""The first check, as a share of the planned steps."""
PAUSE = 20
"""An interval longer than this many mean steps counts as that many: a pause pays for no checks."""


class Schedule:
    """Counts steps, measures their time and the cost of checks, and says what may be measured.

    Training time is the time between the monitor's own actions. A device may run many steps behind the program, so that
    single steps say nothing: before every check the program waits for it, and all of that is training. The first step,
    which often compiles, counts for nothing.

    Parameters
    ----------
    every : int or {"auto"}, default "auto"
        Number of steps between checks; "auto" keeps the time of the monitor within 3% of the training time.
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
        # the last wait for the device: its step, the mean time of a step until then, training time since then
        self._synchronized, self._mean, self._since = 0, 0.0, 0.0
        self._first = max(1, math.floor(FIRST * planned_steps)) if planned_steps else 1
        self._next = 1
        self._costs: dict[str, list[float]] = {}
        self._evaluation: float | None = None
        self.steps = 0
        self.training_seconds = 0.0
        self.check_seconds = 0.0
        self.all_seconds = 0.0

    # time

    def step(self) -> bool:
        """Count one training step; return whether a check is to be considered."""
        now = self._clock()
        self.steps += 1
        if self._last is not None and self.steps > 1:
            self._count(now - self._last)
        self._last = now
        if not self.automatic:
            return self.steps % self._every == 0
        return self.steps >= self._next or self.steps == self._planned

    def _count(self, taken: float) -> None:
        """Add an interval between steps; a pause adds no more than the steps on the device may still owe."""
        if self.steps > 2:
            mean = self._mean or self.training_seconds / (self.steps - 2)
            owed = mean * (self.steps - self._synchronized) - self._since
            taken = min(taken, max(PAUSE * mean, owed))
        self.training_seconds += taken
        self._since += taken

    def synchronize(self, wait: Callable[[], object]) -> None:
        """Wait for the training steps that still run on a device, which is training time."""
        before = self._clock() if self._last is None else self._last
        wait()
        self._last = self._clock()
        if self.steps > 1:
            self.training_seconds += self._last - before
            self._mean = self.training_seconds / (self.steps - 1)
        self._synchronized, self._since = self.steps, 0.0

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

    @property
    def ended(self) -> bool:
        """Whether the run has reached its planned length, or may have."""
        return self._planned is None or self.steps >= self._planned

    @property
    def overhead(self) -> float:
        """Time that the monitor took by itself over training time; NaN before the second step."""
        return self.check_seconds / self.training_seconds if self.training_seconds > 0 else math.nan

    # choice

    def allows(self, measure: str, startup: float = 0.0) -> bool:
        """Whether the budget allows this measure now, which takes `startup` seconds more than it will later."""
        if not self.automatic:
            return True
        if self.steps < self._first:
            return False
        cost = self.check_seconds + self.expected(measure) + startup
        allowed = BUDGET * self.training_seconds
        if self._planned is None:
            return cost <= SHARE[measure] * allowed
        if self.steps >= self._planned:
            return cost <= allowed
        # what the end of the run needs is saved
        whole = BUDGET * self.training_seconds / max(1, self.steps - 1) * self._planned
        saved = sum(self.expected(name) for name in SAVED.get(measure, ("gap",)))
        return cost <= SHARE[measure] * allowed and cost + saved <= whole

    def allows_more_points(self) -> bool:
        """Whether the budget allows a gap on twice as many points, which is compiled again, as at initialization."""
        return self.allows("gap", startup=self.expected("gap") + sum(self._costs.get("start", [])))

    def expected(self, measure: str) -> float:
        """Seconds that a measure is expected to take: the shorter of its last two, since the first one may compile."""
        known = self._costs.get(measure)
        if known:
            return min(known[-2:])
        if measure in ("start", "gap"):
            step = self.training_seconds / max(1, self.steps - 1)
            return GUESS[measure] * (step if self._evaluation is None else self._evaluation)
        return GUESS[measure] * self.expected("gap") + sum(self._costs.get("start", []))

    def evaluated(self, seconds: float) -> None:
        """One evaluation of the network took this long, without what only the first one needs."""
        self._evaluation = seconds

    def checked(self) -> None:
        """A check was taken at this step."""
        self._next = max(self.steps + 1, math.ceil(GROWTH * self.steps))

    def postpone(self, measure: str, startup: float = 0.0) -> None:
        """The measure costs too much now: consider it again when the budget may have grown enough."""
        cost = self.check_seconds + self.expected(measure) + startup
        allowed = SHARE[measure] * BUDGET * self.training_seconds
        ratio = cost / allowed if allowed > 0 else 2.0
        self._next = max(self.steps + 1, math.ceil(min(max(ratio, RETRY), GROWTH) * self.steps))
