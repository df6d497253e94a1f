"""Outliers in the labels: detected in held-out residuals, and clipped if that predicts better.

    y*_i = f_i + clip(y_i - f_i, ±3 s),   s = 1.48 median |y - f|,

where f_i is the prediction of row i by a fit without it (pseudo-values of Huber 1964). Fits to y* and y are compared on
held-out rows with their original labels, in squared error, the loss of R². y* is used if it is better by more than one
standard error; if it is better by less, the mean of both fits is used.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import standardized_difference
from unlazy.estimators.preprocessing.column_scale import weighted_median
from unlazy.solvers.ridge.intercept import weighted_mean

Labels = Float[np.ndarray, "n c"]


class ResidualTail(NamedTuple):
    """Kurtosis of the residuals of each output, and the largest distance of clipped labels from predictions."""

    kurtosis: Float[np.ndarray, " c"]
    limit: Float[np.ndarray, " c"]
    """inf if nothing is clipped."""


def residual_tail(held_out: Labels, data: Training) -> ResidualTail:
    """Detect heavy-tailed residuals.

    Residuals are heavy-tailed if their kurtosis is above thresholds.HEAVY_KURTOSIS, they hold at least
    thresholds.MIN_RESIDUAL_SHARE of the variance, and at least thresholds.MIN_CLIPPED labels would be clipped.
    """
    missed, w = data.Y - held_out, data.weights
    heavy = kurtosis(missed, w)
    share = weighted_mean(missed**2, w) / np.maximum(
        weighted_mean((data.Y - weighted_mean(data.Y, w)) ** 2, w), np.finfo(np.float64).tiny
    )
    size = 1.4826 * weighted_median(np.abs(missed), w)
    several = np.sum(np.abs(missed) > thresholds.CLIP_DEVIATIONS * size, 0) >= thresholds.MIN_CLIPPED
    clip = (heavy > thresholds.HEAVY_KURTOSIS) & (share > thresholds.MIN_RESIDUAL_SHARE) & (size > 0) & several
    return ResidualTail(heavy, np.where(clip, thresholds.CLIP_DEVIATIONS * size, np.inf))


def kurtosis(values: Labels, weights: Float[np.ndarray, " n"] | None) -> Float[np.ndarray, " c"]:
    """E(v - Ev)⁴ / (E(v - Ev)²)²: 3 for a normal, 6 for a Laplace, 9 for an exponential distribution."""
    off = values - weighted_mean(values, weights)
    second = weighted_mean(off**2, weights)
    return weighted_mean(off**4, weights) / np.maximum(second**2, np.finfo(np.float64).tiny)


def clip_labels(data: Training, around: Labels, limit: Float[np.ndarray, " c"]) -> Training:
    """Clip labels to within `limit` of `around`."""
    return data._replace(Y=np.clip(data.Y, around - limit, around + limit))


def outlier_treatment(as_is: Labels, clip: Labels, data: Training) -> str:
    """Return 'clipped', 'averaged' or 'kept', by predictions of held-out rows with their original labels."""
    worse = standardized_difference(clip, as_is, data)
    return "clipped" if worse < -1 else "averaged" if worse < 0 else "kept"
