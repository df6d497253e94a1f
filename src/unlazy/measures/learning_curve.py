"""Learning curves: a power law with a floor through the sizes, its interval over splits, and what more data would buy.

risk(n) ≈ b + c·n^(-a), fitted to the geometric mean over splits; the interval redraws whole splits, since sizes are
nested. The floor b is what no number of rows takes away: noise, or what the model cannot express. Few sizes hardly tell
it from a slow power, which the interval shows; the extrapolation stops at four times the data, and a backtest (the last
size from those before it) is shown beside it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unlazy.measures.scaling_fit import FlooredLaw, Interval, floored_laws

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
        return np.exp(self._logs.mean(1))

    @property
    def spread(self) -> Float[np.ndarray, " sizes"]:
        """Deviation of the logarithm over splits."""
        return self._logs.std(1, ddof=1) if self.risks.shape[1] > 1 else np.zeros(len(self.sizes))

    def law(self) -> FlooredLaw | None:
        """The law through all sizes; None for a single one."""
        return floored_laws(self.sizes, self.mean[None])[0] if len(self.sizes) > 1 else None

    def extrapolated(self, n: float) -> Interval | None:
        """The risk at n rows if the law goes on, with its 95% interval over splits."""
        law = self.law()
        if law is None:
            return None
        splits = self.risks.shape[1]
        chosen = np.random.default_rng(0).integers(splits, size=(DRAWS, splits))
        redrawn = np.exp(self._logs[:, chosen].mean(2).T)
        low, high = np.quantile([float(drawn([n])[0]) for drawn in floored_laws(self.sizes, redrawn)], [0.025, 0.975])
        return Interval(float(law([n])[0]), float(low), float(high))

    def backtest(self) -> tuple[float, float] | None:
        """The last size as predicted from those before it, and as measured."""
        if len(self.sizes) < 3:
            return None
        before = floored_laws(self.sizes[:-1], self.mean[None, :-1])[0]
        return float(before([self.sizes[-1]])[0]), float(self.mean[-1])

    @property
    def _logs(self) -> Float[np.ndarray, "sizes splits"]:
        return np.log(np.maximum(self.risks, FLOOR))
