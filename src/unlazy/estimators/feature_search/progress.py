"""Progress of a fit of many rows: its parts in order, each weighted by its expected work.

Only the proportions matter: the display extrapolates the remaining time from that of the finished parts.
"""

from unlazy.core import devices
from unlazy.core.progress import ProgressDisplay
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.successive_halving import max_exact_rows, stage_sizes

TOTAL = 100
"""Number of progress units of a fit."""
TICK = 0.1
"""Share of the remainder of a part by which one tick advances."""
FLOP, ENTRY = 2.5e-11, 2e-8
"""CPU-seconds of one operation of a factorization and of one entry of K, on a typical core; GPUs are much faster."""
MAX_PASSES = 30
"""Number of products with K in an iterative fit."""


class FitProgress:
    """Position in the parts of a fit; `tick` advances within a part, `done` reports that a stage is finished."""

    def __init__(self, shown: ProgressDisplay, work: dict[str, float]):
        total = sum(work.values())
        self._shown, self._parts = shown, [(name, TOTAL * cost / total) for name, cost in work.items()]
        self._at, self._within = 0, 0.0

    def tick(self, note: str = "") -> None:
        """Advance a little within the current part."""
        self._forward(TICK * (self._parts[self._at][1] - self._within), note)

    def done(self, stage: str) -> None:
        """Report a finished stage: all parts before the one it belongs to are finished as well."""
        known = [i for i, (name, _) in enumerate(self._parts) if stage.startswith(name)]
        while known and self._at < known[0]:
            self._forward(self._parts[self._at][1] - self._within, stage)
            self._at, self._within = self._at + 1, 0.0
        self.tick(stage)

    def _forward(self, step: float, note: str) -> None:
        self._within += step
        self._shown.advance(note, step)


def expected_work(n: int, candidates: int, updates: int) -> dict[str, float]:
    """Expected work of each part of a fit to n rows, by the prefix of the names of its stages."""
    first, *later = stage_sizes(n)
    found = {"race": candidates * (updates + 2) * _work(first)}
    found |= {
        f"{size} rows": (constants.UPDATES_PER_SIZE + constants.ROTATIONS_PER_SIZE + 6) * _work(size) for size in later
    }
    if n <= max_exact_rows():
        return found | {"last fit": _work(n)}
    last = MAX_PASSES * n * n * (ENTRY if devices.is_host() else FLOP)
    return found | {"last fit": last, "metric": constants.UPDATES_PER_SIZE * last}


def _work(rows: int) -> float:
    """Work of one exact fit."""
    return rows**3 * FLOP / 3 + rows**2 * (ENTRY if devices.is_host() else FLOP)
