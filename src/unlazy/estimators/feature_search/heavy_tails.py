"""Labels with outliers: noticed in what held-out predictions leave unexplained, and clipped where that predicts better.

    y*_i = f_i + clip(y_i - f_i, ±3 s),   s = 1.48 median |y - f|,

f_i the prediction of row i by a fit without it (pseudo-values of Huber 1964). Whether y* or y makes the better fit is
asked of held-out rows with the labels they have, in squared error, the loss of R²; y* wins only where the difference is
beyond its standard error, and the mean of both fits is taken where y* is better by less.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import difference
from unlazy.estimators.preprocessing.column_scale import median
from unlazy.solvers.ridge.intercept import mean

Labels = Float[np.ndarray, "n c"]


class Tail(NamedTuple):
    """Of every output: the kurtosis of its residuals, and how far clipped labels may lie from predictions."""

    kurtosis: Float[np.ndarray, " c"]
    reach: Float[np.ndarray, " c"]
    """Infinite where nothing is clipped."""


def tail(held_out: Labels, data: Training) -> Tail:
    """Heavy are residuals of a kurtosis above rules.HEAVY that hold at least rules.MATTERS of the variance, where at
    least rules.SEVERAL would be clipped: one odd row is no tail."""
    missed, w = data.Y - held_out, data.weights
    heavy = kurtosis(missed, w)
    share = mean(missed**2, w) / np.maximum(mean((data.Y - mean(data.Y, w)) ** 2, w), np.finfo(np.float64).tiny)
    size = 1.4826 * median(np.abs(missed), w)
    several = np.sum(np.abs(missed) > thresholds.KEPT * size, 0) >= thresholds.SEVERAL
    clip = (heavy > thresholds.HEAVY) & (share > thresholds.MATTERS) & (size > 0) & several
    return Tail(heavy, np.where(clip, thresholds.KEPT * size, np.inf))


def kurtosis(values: Labels, weights: Float[np.ndarray, " n"] | None) -> Float[np.ndarray, " c"]:
    """E(v - Ev)⁴ / (E(v - Ev)²)²: 3 for a normal distribution, 6 for Laplace's, 9 for an exponential one."""
    off = values - mean(values, weights)
    second = mean(off**2, weights)
    return mean(off**4, weights) / np.maximum(second**2, np.finfo(np.float64).tiny)


def clipped(data: Training, around: Labels, reach: Float[np.ndarray, " c"]) -> Training:
    """Labels no further from `around` than `reach`."""
    return data._replace(Y=np.clip(data.Y, around - reach, around + reach))


def verdict(as_is: Labels, clip: Labels, data: Training) -> str:
    """'clipped', 'averaged' or 'kept', by both fits' predictions of held-out rows with their own labels."""
    worse = difference(clip, as_is, data)
    return "clipped" if worse < -1 else "averaged" if worse < 0 else "kept"
