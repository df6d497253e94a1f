"""Kernels K(Z, X) in NumPy."""

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist

from unlazy.core.errors import UnlazyError
from unlazy.serving.saved_objects import SavedObject

Gram = Callable[[np.ndarray, np.ndarray], np.ndarray]
SMALL = 100_000
"""Differences of coordinates up to which all distances are computed from them."""
NEAR = 1e-6
"""Squared distances below this share of ‖z‖² + ‖x‖² are computed from differences."""
_MATERN = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1 / 3)}
"""For every smoothness, the coefficients of the polynomial in s that multiplies e^{-s}."""


def gram_function(kernel: SavedObject) -> Gram:
    """Return K(Z, X) of a saved kernel; raise UnlazyError if NumPy cannot evaluate it."""
    make = _KERNELS.get(kernel.kind)
    if make is None:
        raise UnlazyError(
            f"the kernel {kernel.kind} needs JAX: load the model with unlazy.load (NumPy evaluates "
            f"{', '.join(sorted(_KERNELS))})"
        )
    return make(kernel)


def _radial(of_square: Callable[[np.ndarray], np.ndarray], kernel: SavedObject) -> Gram:
    """A function of ‖z - x‖²/h², with one bandwidth h or one per coordinate."""
    h = np.asarray(kernel["bandwidth"], np.float64)
    return lambda Z, X: of_square(squared_distances(Z / h, X / h))


def squared_distances(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    """‖z - x‖² by one matrix product; of rows that nearly coincide from their differences.

    The product rounds by some ε (‖z‖² + ‖x‖²), so beyond NEAR times that sum the relative error is ε/NEAR = 2e-10.
    """
    if len(Z) * len(X) * Z.shape[1] <= SMALL:
        return cdist(Z, X, "sqeuclidean")
    center = X.mean(0)
    Z, X = Z - center, X - center
    sizes = np.einsum("ij,ij->i", Z, Z)[:, None] + np.einsum("ij,ij->i", X, X)
    found = Z @ (-2 * X.T)
    found += sizes
    sizes *= NEAR
    rows, columns = np.nonzero(found < sizes)
    found[rows, columns] = np.sum((Z[rows] - X[columns]) ** 2, 1)
    return found


def _matern(kernel: SavedObject) -> Gram:
    smoothness = float(kernel["smoothness"])
    powers = _MATERN[smoothness]

    def of_square(square: np.ndarray) -> np.ndarray:
        s = np.sqrt(2 * smoothness * square)
        return sum(c * s**k for k, c in enumerate(powers)) * np.exp(-s)

    return _radial(of_square, kernel)


def _rational_quadratic(kernel: SavedObject) -> Gram:
    mixture = float(kernel["mixture"])
    return _radial(lambda square: np.exp(-mixture * np.log1p(square / (2 * mixture))), kernel)


def _product_laplace(kernel: SavedObject) -> Gram:
    h = np.asarray(kernel["bandwidth"], np.float64)
    return lambda Z, X: np.exp(-cdist(Z / h, X / h, "cityblock"))


def _linear(kernel: SavedObject) -> Gram:
    offset = float(kernel["offset"])
    return lambda Z, X: Z @ X.T + offset


def _polynomial(kernel: SavedObject) -> Gram:
    inner, degree = _linear(kernel), int(kernel["degree"])
    return lambda Z, X: inner(Z, X) ** degree


def _metric(kernel: SavedObject) -> Gram:
    inner, L = gram_function(kernel["kernel"]), np.asarray(kernel["map"], np.float64)

    def mapped(Z: np.ndarray) -> np.ndarray:
        return Z * L if L.ndim == 1 else Z @ L.T

    return lambda Z, X: inner(mapped(Z), mapped(X))


_KERNELS: dict[str, Callable[[SavedObject], Gram]] = {
    "Gaussian": lambda kernel: _radial(lambda square: np.exp(-0.5 * square), kernel),
    "Laplace": lambda kernel: _radial(lambda square: np.exp(-np.sqrt(square)), kernel),
    "ProductLaplace": _product_laplace,
    "Matern": _matern,
    "RationalQuadratic": _rational_quadratic,
    "Linear": _linear,
    "Polynomial": _polynomial,
    "Metric": _metric,
}
