"""How far a fit of many rows has come: its parts one after another, each as long as its work lets expect.

Only their proportion counts: the display knows how long the finished ones took, and so how long the others will.
"""

from typing import Any

from unlazy.core import devices
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.successive_halving import most_exact, sizes

WHOLE = 100
TICK = 0.1
"""Share of what is left of a part that one sign of life stands for."""
FLOP, ENTRY = 2.5e-11, 2e-8
"""CPU-seconds of a factorization's operation and of an entry of K, on a usual core; a card does both much faster."""
PASSES = 30
"""Products with K that an iterative fit takes."""


class Course:
    """Parts of a fit and where it is; `tick` says that it lives, `done` that a stage is finished."""

    def __init__(self, shown: Any, parts: dict[str, float]):
        total = sum(parts.values())
        self._shown, self._parts = shown, [(name, WHOLE * cost / total) for name, cost in parts.items()]
        self._at, self._within = 0, 0.0

    def tick(self, note: str = "") -> None:
        """A little further within the part."""
        self._forward(TICK * (self._parts[self._at][1] - self._within), note)

    def done(self, stage: str) -> None:
        """A stage is finished: all parts before the one it belongs to are, too."""
        known = [i for i, (name, _) in enumerate(self._parts) if stage.startswith(name)]
        while known and self._at < known[0]:
            self._forward(self._parts[self._at][1] - self._within, stage)
            self._at, self._within = self._at + 1, 0.0
        self.tick(stage)

    def _forward(self, step: float, note: str) -> None:
        self._within += step
        self._shown.advance(note, step)


def parts(n: int, candidates: int, updates: int) -> dict[str, float]:
    """Every part of a fit to n rows by the beginning of its stages' names, and its work."""
    first, *later = sizes(n)
    found = {"race": candidates * (updates + 2) * _work(first)}
    found |= {f"{size} rows": (thresholds.UPDATES + thresholds.TURNS + 6) * _work(size) for size in later}
    if n <= most_exact():
        return found | {"last fit": _work(n)}
    last = PASSES * n * n * (ENTRY if devices.is_host() else FLOP)
    return found | {"last fit": last, "metric": thresholds.UPDATES * last}


def _work(rows: int) -> float:
    return rows**3 * FLOP / 3 + rows**2 * (ENTRY if devices.is_host() else FLOP)
