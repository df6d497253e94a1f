"""Kernels by NumPy in float64, apart from the rest of the library: the reference of products in the device check."""

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist

from unlazy.device_check.compositions import DEEP, metric_of_check

Moments = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def relu_moments(xz: np.ndarray, xx: np.ndarray, zz: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) of φ = ReLU for a Gaussian pair with these covariances."""
    size = np.sqrt(xx * zz)
    cosine = np.clip(xz / np.where(size > 0, size, 1), -1, 1)
    angle = np.arccos(cosine)
    return size * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi), (np.pi - angle) / (2 * np.pi)


def erf_moments(xz: np.ndarray, xx: np.ndarray, zz: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for φ = erf."""
    square = (1 + 2 * xx) * (1 + 2 * zz)
    return 2 / np.pi * np.arcsin(2 * xz / np.sqrt(square)), 4 / np.pi / np.sqrt(square - 4 * xz**2)


def network(
    X: np.ndarray, Z: np.ndarray, depth: int, sigma_w: float = 2**0.5, sigma_b: float = 0.0,
    moments: Moments = relu_moments,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Σ and Θ of a fully connected network [K7, K8]."""
    weight, bias, d = sigma_w**2, sigma_b**2, X.shape[1]
    xz, xx, zz = (weight * a / d + bias for a in (X @ Z.T, (X**2).sum(1)[:, None], (Z**2).sum(1)[None]))
    tangent = xz
    for _ in range(depth):
        value, slope = moments(xz, xx, zz)
        tangent = weight * (value + tangent * slope) + bias
        xx, zz = (weight * moments(a, a, a)[0] + bias for a in (xx, zz))
        xz = weight * value + bias
    return xz, tangent


def _matern(s: np.ndarray) -> np.ndarray:
    return (1 + s + s**2 / 3) * np.exp(-s)


def _deep(X: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return network(X, Z, DEEP.depth, 1.3, 0.2)


def _gaussian(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.exp(-cdist(X, Z, "sqeuclidean") / 32)


def _metric(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(np.asarray(metric_of_check(), np.float64))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return np.exp(-cdist(X @ root, Z @ root) / 4)


GRAMS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gaussian": _gaussian,
    "laplace": lambda X, Z: np.exp(-cdist(X, Z) / 4),
    "matern": lambda X, Z: _matern(5**0.5 * cdist(X, Z) / 4),
    "product_laplace": lambda X, Z: np.exp(-cdist(X, Z, "cityblock") / 20),
    "linear": lambda X, Z: X @ Z.T,
    "polynomial": lambda X, Z: (X @ Z.T + 1) ** 3,
    "ntk": lambda X, Z: network(X, Z, 3)[1],
    "ntk_biases": lambda X, Z: _deep(X, Z)[1],
    "ntk_erf": lambda X, Z: network(X, Z, 2, 1.3, 0.2, erf_moments)[1],
    "nngp": lambda X, Z: _deep(X, Z)[0],
    "sum": lambda X, Z: _gaussian(X, Z) + 0.5 * _deep(X, Z)[1],
    "metric": _metric,
}
"""K(X, Z) of the kernels of the same names in `compositions.VECTORS`."""
