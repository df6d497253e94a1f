"""ZCA whitening of images: decorrelated pixels that still look like the image [Shankar et al. 2020]."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import real_numbers, refuse_not_finite
from unlazy.theory.numerics.whitening import unit_rows, zca_matrix


class ZCAWhitening(TransformerMixin, BaseEstimator):
    """x → x (XᵀX/n + regularization · 1)^{-1/2} of images without their mean and of norm 1, as Shankar et al. (2020).

    Points are arrays of any shape behind the first axis, (n, height, width, channels) for images, and keep their shape.
    `normalize` takes its mean off every image and divides it by its norm first, so that `regularization` means the same
    for all data. With `flips` mirror images count as well: whitening and flipping then commute, and kernels made by
    `with_flips` see what they would with twice the images.

    >>> from unlazy.estimators import ZCAWhitening
    >>> pixels = np.random.default_rng(0).normal(size=(50, 4, 4, 3))
    >>> ZCAWhitening().fit_transform(pixels).shape
    (50, 4, 4, 3)
    """

    regularization: float
    normalize: bool
    flips: bool

    def __init__(self, regularization=1e-4, *, normalize=True, flips=False):
        self.regularization = regularization
        self.normalize = normalize
        self.flips = flips

    def fit(self, X: Any, y: Any = None) -> "ZCAWhitening":
        """Learns the second moments of the pixels, in float64."""
        if not (isinstance(self.regularization, int | float | np.number) and 0 < self.regularization < np.inf):
            raise ValueError(f"regularization must be a positive number, got {self.regularization!r}")
        rows = self._rows(X, fitted=False)
        moments = rows.T @ rows / len(rows)
        if self.flips:
            moments = (moments + self._mirrored(moments)) / 2
        self.whitening_ = zca_matrix(moments, float(self.regularization))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """In float64; images in float32 stay so."""
        check_is_fitted(self)
        whitened = self._rows(X, fitted=True) @ self.whitening_
        kept = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        return whitened.reshape(len(whitened), *self.shape_).astype(kept, copy=False)

    def _rows(self, X: Any, fitted: bool) -> np.ndarray:
        """One row for each image, float64, normalized where asked; remembers or checks their shape."""
        X = real_numbers("X", X)
        if X.ndim < 2 or 0 in X.shape:
            raise ValueError(f"X must be images, (n, height, width, channels), or rows, and none empty; got {X.shape}")
        refuse_not_finite("X", X)
        if not fitted:
            if self.flips and X.ndim != 4:
                raise ValueError(f"flips are of images, (n, height, width, channels), got shape {X.shape}")
            self.shape_ = tuple(X.shape[1:])
        elif tuple(X.shape[1:]) != tuple(self.shape_):
            raise ValueError(f"whitening was fitted to points of shape {self.shape_}, got {X.shape[1:]}")
        rows = X.reshape(len(X), -1).astype(np.float64)
        return unit_rows(rows) if self.normalize else rows

    def _mirrored(self, moments: np.ndarray) -> np.ndarray:
        """The second moments of mirror images."""
        index = np.flip(np.arange(len(moments)).reshape(self.shape_), 1).ravel()
        return moments[np.ix_(index, index)]
