"""Standardization of columns to mean zero and variance one; constant columns become zero.

Unlike StandardScaler it neither overflows for columns of size 1e200 nor treats columns of size 1e-200 as constant.
"""

from typing import NamedTuple

import numpy as np


class Standardizer(NamedTuple):
    """x → (x - center)/scale for each column."""

    center: np.ndarray
    scale: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (X - self.center) / self.scale

    def inverse(self, X: np.ndarray) -> np.ndarray:
        """Map standardized columns back to their units."""
        return X * self.scale + self.center


def fit_standardizer(X: np.ndarray, weights: np.ndarray | None = None) -> Standardizer:
    """Compute mean and standard deviation of each column; columns constant up to rounding get scale one."""
    center = np.average(X, axis=0, weights=weights)
    largest = np.abs(X).max(0)
    unit = np.where(largest > 0, largest, 1)  # so that squares neither overflow nor underflow
    deviation = unit * np.sqrt(np.average(((X - center) / unit) ** 2, axis=0, weights=weights))
    varies = deviation > 10 * np.finfo(X.dtype).eps * largest
    return Standardizer(center.astype(X.dtype), np.where(varies, deviation, 1).astype(X.dtype))
