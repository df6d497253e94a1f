"""Weighted kernel ridge regression with a free intercept, for every ridge at once, and its leave-one-out error.

min Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖²:  [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0]. With C that bordered matrix the
prediction that never saw point i misses y_i by α_i/(C⁻¹)_ii, and one eigendecomposition of √W K √W serves all ρ.
A point is a distinct row: copies of a row are left out together (`Training.merged`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.linear import dot
from unlazy.core.precision import precision
from unlazy.theory.leave_one_out import bordered_diagonal, left_out, with_intercept

RELATIVE = np.geomspace(1e2, 1e-9, 34)
"""Ridges that are tried, in units of the mean of k(x, x); from the largest, so that ties give the smoother fit."""


class RidgeFit(NamedTuple):
    """Coefficients at the chosen ridge, and the predictions at every training point by the fit without it."""

    alpha: np.ndarray
    intercept: np.ndarray
    held_out: np.ndarray
    error: float
    """Mean squared leave-one-out error, in units of the variance of each output."""
    ridge: float


def fit_ridge(K: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, ridge: float | None) -> RidgeFit:
    """The fit at `ridge`, or at the ridge of the smallest leave-one-out error where it is None."""
    n = len(K)
    w = np.ones(n, Y.dtype) if weights is None else weights
    mean = dot(w, Y) / w.sum()
    if n == 1:
        return RidgeFit(np.zeros_like(Y), mean, Y, 0.0, 0.0 if ridge is None else float(ridge))
    root = np.sqrt(w)[:, None]
    s, V = _eigh(K * root * root.T)
    floor = n * float(np.finfo(K.dtype).eps) * max(float(s[-1]), float(np.finfo(K.dtype).tiny))
    unit = float(np.mean(np.diag(K)))
    rho = np.maximum(RELATIVE * unit if ridge is None else np.array([ridge]), floor)
    F = 1 / (np.maximum(s, 0)[:, None] + rho)  # (n, ridges)
    G = _Inverse(V, F, root)
    scale = np.maximum(dot(w, (Y - mean) ** 2) / w.sum(), np.finfo(Y.dtype).tiny)
    found = [_at(G, Y - mean, l) for l in range(len(rho))]
    errors = [float(np.mean(dot(w, e**2) / w.sum() / scale)) for _, _, e in found]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else 0
    alpha, shift, missed = found[best]
    return RidgeFit(alpha, mean + shift, Y - missed, errors[best], float(rho[best]))


class _Inverse:
    """(K + ρW⁻¹)⁻¹ = √W V F Vᵀ √W, F one column a ridge."""

    def __init__(self, V: np.ndarray, F: np.ndarray, root: np.ndarray):
        self.V, self.F, self.root = V, F, root
        self.diagonal = root**2 * dot(V**2, F)
        self.ones = root * dot(V, F * dot(V.T, root))
        self._cache: dict[str, Any] = {}

    def times(self, Y: np.ndarray, l: int) -> np.ndarray:
        if "inside" not in self._cache:
            self._cache["inside"] = dot(self.V.T, self.root * Y)
        return self.root * dot(self.V, self.F[:, l, None] * self._cache["inside"])


def _at(G: _Inverse, Y: np.ndarray, l: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """α, intercept and leave-one-out residuals at one ridge, through the bordered inverse."""
    g = G.ones[:, l]
    alpha, shift = with_intercept(G.times(Y, l), g)
    return alpha, shift, left_out(alpha, bordered_diagonal(G.diagonal[:, l], g, g.sum())[:, None])


def _eigh(K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """LAPACK on the CPU; the accelerator where there is one. In the precision of K, whatever the caller's scope."""
    if jax.default_backend() != "cpu":
        with precision(K.dtype.name):
            s, V = jnp.linalg.eigh(jnp.asarray(K))
            return np.asarray(s), np.asarray(V)
    from scipy.linalg import eigh

    return eigh(K, driver="evd", check_finite=False)
