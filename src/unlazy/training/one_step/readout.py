"""Training of the readout: ridge regression on fixed features for many ridges, or T steps of gradient descent [D4].

L(a) = (1/n) Σ_i (φ(x_i)·a - y_i)², without a factor 1/2. With G = ΦᵀΦ/n the ridge solution is (G + ρI)⁻¹ Φᵀy/n, and one
decomposition of the smaller of ΦᵀΦ (w×w) and ΦΦᵀ (n×n) serves all ρ. In float32 the Gram matrix loses half the digits
(its small eigenvalues become negative), so there the features themselves are decomposed.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, dot, is_on_host, unit_roundoff, vdot
from unlazy.solvers.ridge import eigh
from unlazy.theory.dynamics import leave_one_out, spectral_filters


class ReadoutPath(eqx.Module):
    """Readouts for a path of ridges.

    Attributes
    ----------
    ridges : array of shape (l,)
        Ridges ρ.
    readouts : array of shape (l, w)
        Readout weights for every ridge.
    leave_one_out, gcv : array of shape (l,) or None
        Leave-one-out error and generalized cross-validation for every ridge, if requested.
    """

    ridges: Float[Array, " l"]
    readouts: Float[Array, "l w"]
    leave_one_out: Float[Array, " l"] | None
    gcv: Float[Array, " l"] | None

    def best(self, errors: Float[Array, " l"]) -> tuple[Float[Array, " w"], Float[Array, ""]]:
        """Return the readout and the ridge of smallest error, ignoring NaN."""
        at = jnp.nanargmin(jnp.where(jnp.isnan(errors), jnp.inf, errors))
        return self.readouts[at], self.ridges[at]


def relative_ridges(low: float = 1e-12, high: float = 1e3, count: int = 31) -> Float[Array, " l"]:
    """Return a logarithmic path of ridges, relative to the mean of ‖φ(x)‖²."""
    if not 0 < low <= high:
        raise ValueError(f"ridges must satisfy 0 < low ≤ high, got {low} and {high}")
    return jnp.geomspace(low, high, count)


def ridge_path(
    features: Float[Array | np.ndarray, "n w"],
    y: Float[Array | np.ndarray, " n"],
    relative: Float[Array | np.ndarray, " l"],
    weights: Float[Array | np.ndarray, " n"] | None = None,
    *,
    errors: bool = False,
) -> ReadoutPath:
    """Ridge regression on fixed features, min (1/n)‖Φa - y‖² + ρ‖a‖², for every ρ = relative × mean ‖φ(x)‖².

    Leave-one-out error and GCV treat the features as fixed. Features learned from the same labels (Algorithm 1) violate
    this: leave-one-out is then optimistic for n ≲ d², and GCV can select an interpolant.

    Parameters
    ----------
    features : array of shape (n, w)
        Features Φ.
    y : array of shape (n,)
        Labels.
    relative : array of shape (l,)
        Ridges relative to the mean of ‖φ(x)‖².
    weights : array of shape (n,), optional
        Rows of weight zero are padding.
    errors : bool, default False
        Whether to compute the exact leave-one-out error and GCV for every ridge.

    Returns
    -------
    ReadoutPath
        Ridges, readouts and errors.
    """
    xp = array_module(features, y, relative, weights)
    Phi, labels, n = _masked(xp, features, y, weights)
    ridges = xp.asarray(relative) * vdot(Phi, Phi) / n
    spectrum, readouts, basis = _solve(xp, Phi, labels, n, ridges)
    if not errors:
        return ReadoutPath(jnp.asarray(ridges), jnp.asarray(readouts), None, None)
    kept = xp.ones(labels.shape, bool) if weights is None or xp is np else weights > 0
    loo, gcv = _errors(xp, basis(), spectrum, labels, ridges, kept, n)
    return ReadoutPath(jnp.asarray(ridges), jnp.asarray(readouts), jnp.asarray(loo), jnp.asarray(gcv))


def descent_readout(
    features: Float[Array, "n w"],
    y: Float[Array, " n"],
    *,
    steps: Float[Array, ""] | float,
    step_size: Float[Array, ""] | float,
    decay: Float[Array, ""] | float = 0.0,
    start: Float[Array, " w"] | None = None,
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, " w"]:
    """Return the readout after T steps a ← a - η(∇_a L + λa) [D4], in closed form at a cost independent of T.

    ∇L = 2Ga - 2Φᵀy/n, so in the eigenbasis of G each coordinate contracts by 1 - η(2s + λ). The loop itself would need
    millions of steps (condition numbers of 10^7). Diverges, as the loop does, for η > 2/(2s_max + λ).

    Parameters
    ----------
    features : array of shape (n, w)
        Features Φ.
    y : array of shape (n,)
        Labels.
    steps : float
        Number of steps T.
    step_size : float
        Step size η.
    decay : float, default 0.0
        Weight decay λ.
    start : array of shape (w,), optional
        Initial readout; zero by default.
    weights : array of shape (n,), optional
        Rows of weight zero are padding.

    Returns
    -------
    array of shape (w,)
        Readout weights.
    """
    Phi, y, n = _masked(jnp, features, y, weights)
    s, V = jnp.linalg.eigh(dot(Phi.T, Phi) / n)
    curvature = 2 * jnp.maximum(s, 0) + decay
    learned = spectral_filters.descent_coefficient(curvature, step_size, steps) * dot(V.T, dot(2 * Phi.T, y) / n)
    left = 0.0 if start is None else spectral_filters.descent_residual(curvature, step_size, steps) * dot(V.T, start)
    return dot(V, learned + left)


def array_module(*arrays: Matrix | None) -> ModuleType:
    """Return NumPy for arrays on the CPU, jax.numpy while tracing or on an accelerator.

    In float64, NumPy's products are several times faster than XLA's on a CPU, and padding can be dropped.
    """
    return np if all(is_on_host(array) for array in arrays) else jnp


def _masked(xp: ModuleType, features: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return the rows of positive weight and their number; padding is dropped if values are known, else zeroed."""
    Phi, labels = xp.asarray(features), xp.asarray(y)
    if weights is None:
        return Phi, labels, xp.asarray(labels.shape[0], labels.dtype)
    keep = xp.asarray(weights) > 0
    if xp is np:
        return Phi[keep], labels[keep], np.sum(keep).astype(labels.dtype)
    return xp.where(keep[:, None], Phi, 0), xp.where(keep, labels, 0), xp.sum(keep).astype(labels.dtype)


def _solve(xp: ModuleType, Phi: Any, y: Any, n: Any, ridges: Any) -> tuple[Any, Any, Callable[[], Any]]:
    """Return eigenvalues of ΦᵀΦ/n, the readouts for all ridges, and a function for the left singular vectors of Φ.

    Each ridge is the filter 1/(s + ρ). No null direction is dropped: its filter is at most 1/ρ. Singular vectors of a
    Gram matrix are zero where its rounding exceeds the eigenvalue; those of the SVD are all accurate.
    """
    if Phi.dtype == jnp.float32:
        U, sigma, Vt = xp.linalg.svd(Phi / xp.sqrt(n), full_matrices=False)
        filtered = sigma / (sigma**2 + ridges[:, None]) * dot(U.T, y)
        return sigma**2, dot(filtered, Vt) / xp.sqrt(n), lambda: U
    if Phi.shape[1] <= Phi.shape[0]:
        s, V = _eigh(xp, dot(Phi.T, Phi) / n)
        readouts = dot(dot(V.T, dot(Phi.T, y)) / (s + ridges[:, None]), V.T) / n
        return s, readouts, lambda: _unit_columns(xp, dot(Phi, V), s)
    s, U = _eigh(xp, dot(Phi, Phi.T) / n)
    return s, dot(dot(U.T, y) / (s + ridges[:, None]), U.T, Phi) / n, lambda: _unit_columns(xp, U, s)


def _eigh(xp: ModuleType, G: Any) -> tuple[Any, Any]:
    s, V = eigh(G, overwrite=True) if xp is np else jnp.linalg.eigh(G)
    return xp.maximum(s, 0), V


def _unit_columns(xp: ModuleType, columns: Any, spectrum: Any) -> Any:
    """Normalize the columns; those of null directions become zero."""
    lengths = xp.sqrt(xp.sum(columns * columns, 0))
    keep = spectrum > len(spectrum) * unit_roundoff(spectrum.dtype) * xp.max(spectrum)
    return columns * xp.where(keep, 1 / xp.where(lengths > 0, lengths, 1), 0)


def _errors(xp: ModuleType, U: Any, s: Any, y: Any, ridges: Any, kept: Any, n: Any) -> tuple[Any, Any]:
    """Return leave-one-out error and GCV from 1 - H = U diag(ρ/(s + ρ)) Uᵀ + (1 - UUᵀ).

    The sums have positive terms only, so there is no cancellation.
    """
    shrink = ridges[:, None] / (s + ridges[:, None])
    inside = dot(U.T, y)
    residual = dot(shrink * inside, U.T) + (y - dot(U, inside))
    outside = xp.maximum(1 - xp.sum(U * U, 1), 0)
    leverage = dot(shrink, (U * U).T) + xp.where(kept, outside, 1)
    tiny = xp.finfo(y.dtype).eps
    loo = xp.sum(leave_one_out.leave_one_out_residual(residual, xp.maximum(leverage, tiny)) ** 2, 1) / n
    free = xp.maximum(xp.sum(xp.where(kept, leverage, 0), 1), n * tiny)
    return loo, leave_one_out.gcv_score(xp.sum(residual**2, 1), free, n)
