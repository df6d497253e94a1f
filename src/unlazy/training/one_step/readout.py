"""Fit the last layer alone: ridge regression on fixed features for every ridge at once, or T steps of descent [D4].

L(a) = (1/n) Σ_i (φ(x_i)·a - y_i)². With G = ΦᵀΦ/n the ridge solution is (G + ρI)⁻¹ Φᵀy/n, and one decomposition of
the smaller of ΦᵀΦ (w×w) and ΦΦᵀ (n×n) serves all ρ. In float32 the Gram loses half the digits (its small
eigenvalues come out negative), so there the features themselves are decomposed.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.linalg import dot, vdot
from unlazy.core.precision import rounding
from unlazy.solvers.ridge import factorization
from unlazy.theory.dynamics import leave_one_out, spectral_filters


class HeadPath(eqx.Module):
    """Heads for a path of ridges, and what training data alone say about each (None unless asked for)."""

    ridges: Float[Array, " l"]
    heads: Float[Array, "l w"]
    leave_one_out: Float[Array, " l"] | None
    gcv: Float[Array, " l"] | None

    def best(self, errors: Float[Array, " l"]) -> tuple[Float[Array, " w"], Float[Array, ""]]:
        """The head and the ridge where these errors are smallest (NaN never is)."""
        at = jnp.nanargmin(jnp.where(jnp.isnan(errors), jnp.inf, errors))
        return self.heads[at], self.ridges[at]


def relative_ridges(low: float = 1e-12, high: float = 1e3, count: int = 31) -> Float[Array, " l"]:
    """A logarithmic path, in units of the mean of ‖φ(x)‖²."""
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
) -> HeadPath:
    """Ridge regression on fixed features, min (1/n)‖Φa - y‖² + ρ‖a‖², for every ρ = relative × mean ‖φ(x)‖².

    Rows of weight zero are padding. With `errors` the exact leave-one-out error and GCV of each ridge come too: both
    treat the features as fixed. Features that were learned from the same labels (Algorithm 1) break that:
    leave-one-out is then too hopeful for n ≲ d², and GCV can choose an interpolant.
    """
    xp = library(features, y, relative, weights)
    Phi, labels, n = _masked(xp, features, y, weights)
    ridges = xp.asarray(relative) * vdot(Phi, Phi) / n
    spectrum, heads, basis = _solve(xp, Phi, labels, n, ridges)
    if not errors:
        return HeadPath(jnp.asarray(ridges), jnp.asarray(heads), None, None)
    kept = xp.ones(labels.shape, bool) if weights is None or xp is np else weights > 0
    loo, gcv = _errors(xp, _unit_columns(xp, basis(), spectrum), spectrum, labels, ridges, kept, n)
    return HeadPath(jnp.asarray(ridges), jnp.asarray(heads), jnp.asarray(loo), jnp.asarray(gcv))


def descent_head(
    features: Float[Array, "n w"],
    y: Float[Array, " n"],
    *,
    steps: Float[Array, ""] | float,
    step_size: Float[Array, ""] | float,
    decay: Float[Array, ""] | float = 0.0,
    start: Float[Array, " w"] | None = None,
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, " w"]:
    """The head after T steps a ← a - η(∇_a L + λa) [D4], in closed form: equal to the loop, at no cost in T.

    ∇L = 2Ga - 2Φᵀy/n, so in the eigenbasis of G each coordinate contracts by 1 - η(2s + λ). The loop itself would
    need millions of steps here (condition numbers of 10^7). Diverges, as the loop does, beyond η = 2/(2s_max + λ).
    """
    Phi, y, n = _masked(jnp, features, y, weights)
    s, V = jnp.linalg.eigh(dot(Phi.T, Phi) / n)
    curvature = 2 * jnp.maximum(s, 0) + decay
    learned = spectral_filters.descent_coefficient(curvature, step_size, steps) * dot(V.T, dot(2 * Phi.T, y) / n)
    left = 0.0 if start is None else spectral_filters.descent_residual(curvature, step_size, steps) * dot(V.T, start)
    return dot(V, learned + left)


def library(*arrays: Any) -> Any:
    """NumPy for values that lie on the CPU, jax.numpy while tracing or on an accelerator.

    In float64 NumPy's products are several times faster than XLA's on a CPU, and padding can be dropped.
    """
    return np if all(devices.lies_on_host(array) for array in arrays) else jnp


def _masked(xp: Any, features: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """The rows that count, and their number: padding is dropped where values are known, else set to zero."""
    Phi, labels = xp.asarray(features), xp.asarray(y)
    if weights is None:
        return Phi, labels, xp.asarray(labels.shape[0], labels.dtype)
    keep = xp.asarray(weights) > 0
    if xp is np:
        return Phi[keep], labels[keep], np.sum(keep).astype(labels.dtype)
    return xp.where(keep[:, None], Phi, 0), xp.where(keep, labels, 0), xp.sum(keep).astype(labels.dtype)


def _solve(xp: Any, Phi: Any, y: Any, n: Any, ridges: Any) -> tuple[Any, Any, Callable[[], Any]]:
    """Eigenvalues of ΦᵀΦ/n, the heads of every ridge, and (on demand) columns along the left singular vectors of Φ.

    Each ridge is the filter 1/(s + ρ). No null direction is cut: it meets a filter of at most 1/ρ.
    """
    if Phi.dtype == jnp.float32:
        U, sigma, Vt = xp.linalg.svd(Phi / xp.sqrt(n), full_matrices=False)
        filtered = sigma / (sigma**2 + ridges[:, None]) * dot(U.T, y)
        return sigma**2, dot(filtered, Vt) / xp.sqrt(n), lambda: U
    if Phi.shape[1] <= Phi.shape[0]:
        s, V = _eigh(xp, dot(Phi.T, Phi) / n)
        return s, dot(dot(V.T, dot(Phi.T, y)) / (s + ridges[:, None]), V.T) / n, lambda: dot(Phi, V)
    s, U = _eigh(xp, dot(Phi, Phi.T) / n)
    return s, dot(dot(U.T, y) / (s + ridges[:, None]), U.T, Phi) / n, lambda: U


def _eigh(xp: Any, G: Any) -> tuple[Any, Any]:
    s, V = factorization.eigh(G, overwrite=True) if xp is np else jnp.linalg.eigh(G)
    return xp.maximum(s, 0), V


def _unit_columns(xp: Any, columns: Any, spectrum: Any) -> Any:
    """Columns at unit length, those of null directions zero."""
    lengths = xp.sqrt(xp.sum(columns * columns, 0))
    keep = spectrum > len(spectrum) * rounding(spectrum.dtype) * xp.max(spectrum)
    return columns * xp.where(keep, 1 / xp.where(lengths > 0, lengths, 1), 0)


def _errors(xp: Any, U: Any, s: Any, y: Any, ridges: Any, kept: Any, n: Any) -> tuple[Any, Any]:
    """Leave-one-out and GCV from 1 - H = U diag(ρ/(s + ρ)) Uᵀ + (1 - UUᵀ): sums of positive parts, no cancellation."""
    shrink = ridges[:, None] / (s + ridges[:, None])
    inside = dot(U.T, y)
    residual = dot(shrink * inside, U.T) + (y - dot(U, inside))
    outside = xp.maximum(1 - xp.sum(U * U, 1), 0)
    leverage = dot(shrink, (U * U).T) + xp.where(kept, outside, 1)
    tiny = xp.finfo(y.dtype).eps
    loo = xp.sum(leave_one_out.left_out(residual, xp.maximum(leverage, tiny)) ** 2, 1) / n
    free = xp.maximum(xp.sum(xp.where(kept, leverage, 0), 1), n * tiny)
    return loo, leave_one_out.generalized(xp.sum(residual**2, 1), free, n)
