"""ZCA whitening of images: decorrelated pixels that still look like the image (Shankar et al. 2020)."""

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points, as_real_array, check_finite
from unlazy.theory.numerics.whitening import unit_rows, zca_matrix


class ZCAWhitening(TransformerMixin, BaseEstimator):
    """ZCA whitening of images: x → x (XᵀX/n + regularization · 1)^{-1/2}.

    Images keep their shape. Computation is in float64.

    Parameters
    ----------
    regularization : float, default 1e-4
        Added to the second moments of the pixels.
    normalize : bool, default True
        Whether to subtract the mean of each image and divide it by its norm first, so that `regularization` does not
        depend on the scale of the data.
    flips : bool, default False
        Whether to include mirror images in the second moments. Whitening then commutes with flipping, and kernels made
        by `with_flips` see the same as with twice the images.

    Attributes
    ----------
    whitening_ : array of shape (p, p)
        The whitening matrix of the flattened images.
    shape_ : tuple of int
        Shape of one image.

    References
    ----------
    Shankar, Fang, Guo, Fridovich-Keil, Schmidt, Ragan-Kelley and Recht (2020), Neural kernels without tangents.

    Examples
    --------
    >>> import numpy as np
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

    def fit(self, X: Points, y: Labels | None = None) -> "ZCAWhitening":
        """Compute the whitening matrix.

        Parameters
        ----------
        X : array of shape (n, height, width, channels) or (n, ...)
            Images, or points of any shape.
        y : None
            Ignored.

        Returns
        -------
        ZCAWhitening
            The fitted transformer.

        Raises
        ------
        ValueError
            If `regularization` is not positive, or X is empty, not finite or of the wrong shape.
        """
        if not (isinstance(self.regularization, int | float | np.number) and 0 < self.regularization < np.inf):
            raise ValueError(f"regularization must be a positive number, got {self.regularization!r}")
        rows = self._rows(X, fitted=False)
        moments = rows.T @ rows / len(rows)
        if self.flips:
            moments = (moments + self._mirrored(moments)) / 2
        self.whitening_ = zca_matrix(moments, float(self.regularization))
        return self

    def transform(self, X: Points) -> np.ndarray:
        """Whiten images.

        Parameters
        ----------
        X : array of shape (m, height, width, channels) or (m, ...)
            Images of the shape seen in `fit`.

        Returns
        -------
        array of the shape of X
            Whitened images; float32 for float32 images, otherwise float64.
        """
        check_is_fitted(self)
        whitened = self._rows(X, fitted=True) @ self.whitening_
        kept = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        return whitened.reshape(len(whitened), *self.shape_).astype(kept, copy=False)

    def _rows(self, X: Points, fitted: bool) -> np.ndarray:
        """Flatten images to float64 rows, normalized if requested; store or check their shape."""
        X = as_real_array("X", X)
        if X.ndim < 2 or 0 in X.shape:
            raise ValueError(f"X must be non-empty images (n, height, width, channels) or rows, got shape {X.shape}")
        check_finite("X", X)
        if not fitted:
            if self.flips and X.ndim != 4:
                raise ValueError(f"flips=True needs images (n, height, width, channels), got shape {X.shape}")
            self.shape_ = tuple(X.shape[1:])
        elif tuple(X.shape[1:]) != tuple(self.shape_):
            raise ValueError(f"whitening was fitted to points of shape {self.shape_}, got {X.shape[1:]}")
        rows = X.reshape(len(X), -1).astype(np.float64)
        return unit_rows(rows) if self.normalize else rows

    def _mirrored(self, moments: np.ndarray) -> np.ndarray:
        """Second moments of the mirror images."""
        index = np.flip(np.arange(len(moments)).reshape(self.shape_), 1).ravel()
        return moments[np.ix_(index, index)]
