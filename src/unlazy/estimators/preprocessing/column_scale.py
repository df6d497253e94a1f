"""Scaling of columns to their standard deviation."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class ColumnScale(NamedTuple):
    """x → (x - offset)/scale for each column."""

    offset: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    @classmethod
    def from_data(
        cls, X: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"] | None, standardize: bool
    ) -> "ColumnScale":
        """Compute weighted mean and standard deviation of each column.

        Columns with two values are scaled so that they differ by one, since dividing a rare indicator by its standard
        deviation would make it the largest column. Constant columns become zero. Without `standardize` only the offset
        is subtracted, which improves the accuracy of distances, and the units are kept.
        """
        w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
        low, high = X.min(0), X.max(0)
        unit = np.maximum(np.abs(low), np.abs(high))
        unit = np.where(unit > 0, unit, 1)
        offset = (w @ (X / unit)) * unit
        rounding = 8 * np.finfo(X.dtype).eps * unit
        constant = high - low <= rounding
        offset = np.where(constant, low, offset)
        if not standardize:
            return cls(offset, np.ones_like(offset))
        span = np.where(constant, 1, high - low)
        scale = span * np.sqrt(w @ ((X - offset) / span) ** 2)
        two = np.all((low == X) | (high == X), axis=0)
        return cls(offset, np.where(constant, np.maximum(unit, 1), np.where(two, span, scale)))

    def __call__(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return (X - self.offset) / self.scale


def weighted_median(
    values: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None
) -> Float[np.ndarray, " c"]:
    """Median of each column, where weights count rows; the midpoint of two values if half the weight is below."""
    if weights is None:
        return np.median(values, 0)
    order = np.argsort(values, 0)
    below = np.cumsum(weights[order], 0)
    half = 0.5 * below[-1]
    middle = [np.take_along_axis(order, np.argmax(at, 0)[None], 0) for at in (below >= half, below > half)]
    return 0.5 * sum(np.take_along_axis(values, row, 0)[0] for row in middle)
