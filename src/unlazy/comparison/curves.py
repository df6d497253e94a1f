"""Learning curves: a power law through the sizes, its interval over splits, and what more data would buy.

risk(n) ≈ c·n^(-a), fitted to the geometric mean over splits at the largest sizes; the interval redraws whole splits,
since sizes are nested. A floor of noise is not fitted: three or four sizes cannot tell it from a slow power, so the
extrapolation stops at four times the data, and a backtest (the last size from those before it) is shown beside it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unlazy.measures.scaling_fit import Interval, power_law

LAST = 4
"""Largest sizes that the power law goes through."""
DRAWS = 500
FLOOR = 1e-9


@dataclass(frozen=True)
class Curve:
    """One contestant's risks, sizes × splits, and the law through them."""

    sizes: tuple[int, ...]
    risks: Float[np.ndarray, "sizes splits"]

    @property
    def mean(self) -> Float[np.ndarray, " sizes"]:
        """Geometric mean over splits."""
        return np.exp(np.log(np.maximum(self.risks, FLOOR)).mean(1))

    @property
    def spread(self) -> Float[np.ndarray, " sizes"]:
        """Deviation of the logarithm over splits."""
        return (
            np.log(np.maximum(self.risks, FLOOR)).std(1, ddof=1)
            if self.risks.shape[1] > 1
            else np.zeros(len(self.sizes))
        )

    def exponent(self) -> Interval | None:
        """a of n^(-a) with its 95% interval over splits."""
        return self._law(lambda n, risks: -power_law(n, risks).exponent)

    def extrapolated(self, n: float) -> Interval | None:
        """The risk at n rows if the law goes on."""
        return self._law(lambda sizes, risks: float(power_law(sizes, risks)([n])[0]))

    def backtest(self) -> tuple[float, float] | None:
        """The last size as predicted from those before it, and as measured."""
        if len(self.sizes) < 3:
            return None
        before = power_law(self.sizes[-LAST:-1], self.mean[-LAST:-1])
        return float(before([self.sizes[-1]])[0]), float(self.mean[-1])

    def _law(self, read) -> Interval | None:  # type: ignore[no-untyped-def]
        if len(self.sizes) < 2:
            return None
        n = np.array(self.sizes[-LAST:], float)
        logs = np.log(np.maximum(self.risks[-LAST:], FLOOR))
        rng = np.random.default_rng(0)
        splits = logs.shape[1]
        draws = [read(n, np.exp(logs[:, rng.integers(splits, size=splits)].mean(1))) for _ in range(DRAWS)]
        low, high = np.quantile(draws, [0.025, 0.975])
        return Interval(read(n, np.exp(logs.mean(1))), float(low), float(high))
