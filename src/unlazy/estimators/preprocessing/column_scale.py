"""Columns in units of their own spread."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Columns(NamedTuple):
    """x → (x - offset)/scale, column by column."""

    offset: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    @classmethod
    def of(cls, X: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"] | None, standardize: bool) -> "Columns":
        """Mean and deviation of every column, rows by weight; columns of two values are one apart, since the deviation
        of a rare indicator would make it the largest of all; constant columns become zero.

        Without `standardize` the offset is subtracted (it costs digits of distances) and the units are kept.
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


def median(values: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None) -> Float[np.ndarray, " c"]:
    """The middle of every column where weights count rows: halfway between two, where half of the weight is below."""
    if weights is None:
        return np.median(values, 0)
    order = np.argsort(values, 0)
    below = np.cumsum(weights[order], 0)
    half = 0.5 * below[-1]
    middle = [np.take_along_axis(order, np.argmax(at, 0)[None], 0) for at in (below >= half, below > half)]
    return 0.5 * sum(np.take_along_axis(values, row, 0)[0] for row in middle)
