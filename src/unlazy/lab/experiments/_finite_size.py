"""Comparison of curves measured at two finite d with a theoretical curve for d → ∞."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.measures.scaling_fit import crossing

Curve = Float[np.ndarray, " points"]


class CurveComparison(NamedTuple):
    """Curves measured at one d, one per seed, and the theoretical curve."""

    measured: Float[np.ndarray, "seeds points"]
    theory: Curve

    @property
    def mean(self) -> Curve:
        """Mean over seeds."""
        return self.measured.mean(0)

    @property
    def gap(self) -> Curve:
        """Mean minus theory."""
        return self.mean - self.theory

    @property
    def error(self) -> Curve:
        """Standard error of the mean."""
        return self.measured.std(0, ddof=1) / math.sqrt(len(self.measured))


def extrapolated_gap(small: CurveComparison, large: CurveComparison) -> tuple[Curve, Curve]:
    """2·gap(2d) - gap(d), the gap extrapolated to d = ∞ if it decays like 1/d, and its standard error."""
    return 2 * large.gap - small.gap, np.hypot(2 * large.error, small.error)


def crossing_ratio(
    x: Sequence[float], measured: Float[np.ndarray, "seeds points"], theory: Curve, level: float
) -> tuple[float, float, float, float]:
    """Where theory falls to a level, and the ratio of the measured crossing to it with a 95% bootstrap interval."""
    where, rng, seeds = crossing(x, theory, level), np.random.default_rng(0), len(measured)
    redrawn = [measured[rng.integers(0, seeds, seeds)].mean(0) for _ in range(1000)]
    low, high = np.quantile([crossing(x, curve, level) / where for curve in redrawn], [0.025, 0.975])
    return where, crossing(x, measured.mean(0), level) / where, float(low), float(high)
