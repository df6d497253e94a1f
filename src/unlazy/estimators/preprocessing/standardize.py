"""Columns at mean zero and variance one, for models that need it; a constant column becomes zero.

StandardScaler squares columns as they are: of size 1e200 it finds NaN, of 1e-200 it calls constant.
"""

from typing import NamedTuple

import numpy as np


class Standard(NamedTuple):
    center: np.ndarray
    scale: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (X - self.center) / self.scale

    def back(self, X: np.ndarray) -> np.ndarray:
        return X * self.scale + self.center


def standard(X: np.ndarray, weights: np.ndarray | None = None) -> Standard:
    """Mean and deviation of every column. Columns that vary by rounding only count as constant: scale one."""
    center = np.average(X, axis=0, weights=weights)
    largest = np.abs(X).max(0)
    unit = np.where(largest > 0, largest, 1)  # so that squares neither overflow nor vanish
    deviation = unit * np.sqrt(np.average(((X - center) / unit) ** 2, axis=0, weights=weights))
    varies = deviation > 10 * np.finfo(X.dtype).eps * largest
    return Standard(center.astype(X.dtype), np.where(varies, deviation, 1).astype(X.dtype))
