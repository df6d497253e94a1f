"""Learning curves: a power law with a floor, its interval over splits, and extrapolation to more data.

risk(n) ≈ b + c·n^(-a) is fitted to the geometric mean over splits; the bootstrap resamples whole splits because the
sizes are nested. The floor b is the risk that more rows do not remove: noise, or what the model cannot express. From
few sizes the floor is hard to distinguish from a slow power, which shows in the interval. Reports extrapolate to at
most four times the data, next to a backtest that predicts the last size from the previous ones.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unlazy.measures.scaling_fit import FlooredLaw, Interval, floored_laws

BOOTSTRAPS = 500
"""Bootstrap resamples of the splits."""
SMALLEST_RISK = 1e-9
"""Smaller risks count as this one in logarithms."""


@dataclass(frozen=True)
class RiskCurve:
    """Risks of one model as a function of the number of rows.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of training rows, increasing.
    risks : array of shape (sizes, splits)
    """

    sizes: tuple[int, ...]
    risks: Float[np.ndarray, "sizes splits"]

    @property
    def mean(self) -> Float[np.ndarray, " sizes"]:
        """Geometric mean over splits."""
        return np.exp(self._logs.mean(1))

    @property
    def spread(self) -> Float[np.ndarray, " sizes"]:
        """Standard deviation of the logarithm over splits; zero for a single split."""
        return self._logs.std(1, ddof=1) if self.risks.shape[1] > 1 else np.zeros(len(self.sizes))

    def law(self) -> FlooredLaw | None:
        """Fit the power law with a floor to all sizes.

        Returns
        -------
        FlooredLaw or None
            None if there is only one size.
        """
        return floored_laws(self.sizes, self.mean[None])[0] if len(self.sizes) > 1 else None

    def extrapolate(self, n: float) -> Interval | None:
        """Predict the risk at n rows with its 95% bootstrap interval over splits.

        Parameters
        ----------
        n : float
            Number of rows.

        Returns
        -------
        Interval or None
            None if there is only one size.
        """
        law = self.law()
        if law is None:
            return None
        splits = self.risks.shape[1]
        chosen = np.random.default_rng(0).integers(splits, size=(BOOTSTRAPS, splits))
        redrawn = np.exp(self._logs[:, chosen].mean(2).T)
        low, high = np.quantile([float(drawn([n])[0]) for drawn in floored_laws(self.sizes, redrawn)], [0.025, 0.975])
        return Interval(float(law([n])[0]), float(low), float(high))

    def backtest(self) -> tuple[float, float] | None:
        """Predict the last size from the previous ones.

        Returns
        -------
        tuple of float or None
            The predicted and the measured risk; None for fewer than three sizes.
        """
        if len(self.sizes) < 3:
            return None
        before = floored_laws(self.sizes[:-1], self.mean[None, :-1])[0]
        return float(before([self.sizes[-1]])[0]), float(self.mean[-1])

    @property
    def _logs(self) -> Float[np.ndarray, "sizes splits"]:
        return np.log(np.maximum(self.risks, SMALLEST_RISK))
