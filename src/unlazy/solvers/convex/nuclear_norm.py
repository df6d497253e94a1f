"""Quadratic regression f(x) = xᵀMx with the nuclear norm: the F1 problem of the square activation [L6].

    min_M  ‖M‖_* + ‖A(M) - y‖²/(2μ),   A(M)_i = x_iᵀMx_i;   μ = 0: the least ‖M‖_* that interpolates.

Alternating directions (Boyd et al. 2011): m ← least squares around Z - D, Z ← eigenvalues of m + D shrunk by 1/ρ. With
A rotated so that AAᵀ is diagonal a step costs two products with A and one small eigendecomposition, and the same step
yields a dual point u, so that every solve carries its certificate:

    max_u  yᵀu - μ‖u‖²/2   subject to   ‖Σ_i u_i x_i x_iᵀ‖ ≤ 1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unlazy.core.arrays import Points, points
from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.core.precision import rounding
from unlazy.core.results import Evidence, Words

_RELAX = 1.7
"""Over-relaxation; 1.5 to 1.8 saves a third of the steps."""
_CHECK = 20
"""Steps between certificates: one costs as much as two steps."""
_TUNE = 400
"""Steps in which ρ is balanced; fixed afterward, so that convergence is guaranteed."""


class MatrixFit(eqx.Module):
    """M with its evidence: `gap` is (primal - dual)/primal, so the objective is within that share of the optimum."""

    M: Float[Array, "d d"]
    objective: Float[Array, ""]
    gap: Float[Array, ""]
    misfit: Float[Array, ""]
    """‖A(M) - y‖/‖y‖."""
    steps: Int[Array, ""]
    converged: Bool[Array, ""]
    tolerance: Float[Array, ""]
    """The gap that was asked for."""

    def predict(self, Z: Points) -> Float[Array, " m"]:
        """xᵀMx at the rows of Z."""
        rows = points(Z, "Z", self.M.dtype)
        return jnp.sum(dot(rows, self.M) * rows, 1)

    @property
    def evidence(self) -> Evidence:
        """The duality gap."""
        words = Words("min ‖M‖_* + ‖A(M) - y‖²/(2μ) [L6]", "alternating directions")
        return Evidence(self.gap, self.tolerance, steps=self.steps, words=words)


class _Problem(eqx.Module):
    """The problem in coordinates where AAᵀ = diag(λ), and symmetric matrices are vectors, isometrically."""

    A: Float[Array, "n D"]
    y: Float[Array, " n"]
    spectrum: Float[Array, " n"]
    keep: Bool[Array, " n"]
    mu: Float[Array, ""]
    d: int = eqx.field(static=True)

    def matrix(self, v: Float[Array, " D"]) -> Float[Array, "d d"]:
        i, j, scale = _triangle(self.d)
        return jnp.zeros((self.d, self.d), v.dtype).at[i, j].set(v / scale).at[j, i].set(v / scale)

    def shrunk(self, v: Float[Array, " D"], by: Float[Array, ""]) -> Float[Array, " D"]:
        i, j, scale = _triangle(self.d)
        e, V = jnp.linalg.eigh(self.matrix(v))
        e = jnp.sign(e) * jnp.maximum(jnp.abs(e) - by, 0)
        return dot(V * e, V.T)[i, j] * scale

    def sizes(self, v: Float[Array, " D"]) -> Float[Array, " d"]:
        return jnp.abs(jnp.linalg.eigvalsh(self.matrix(v)))

    def primal(self, v: Float[Array, " D"]) -> Float[Array, ""]:
        loss = jnp.sum((dot(self.A, v) - self.y) ** 2) / (2 * jnp.where(self.mu > 0, self.mu, 1))
        return jnp.sum(self.sizes(v)) + jnp.where(self.mu > 0, loss, 0)

    def dual(self, u: Float[Array, " n"]) -> Float[Array, ""]:
        """The dual value of u, scaled back into the unit ball of the operator norm."""
        u = u / jnp.maximum(1, jnp.max(self.sizes(dot(self.A.T, u))))
        return dot(self.y, u) - self.mu / 2 * dot(u, u)


def minimum_nuclear_norm(
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    misfit_weight: Any = 0.0,
    weights: Float[Array, " n"] | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> MatrixFit:
    """The quadratic form of least nuclear norm that fits y, certified by its duality gap [L6].

    `misfit_weight` is μ above: 0 interpolates (labels must then be consistent: more points than d(d+1)/2 need exact
    labels), larger values tolerate noise. Rows of `weights` zero are padding. Works under jit and vmap. Recht, Fazel
    and Parrilo, Guaranteed minimum-rank solutions (2010); as the limit of a quadratic network with weight decay, Bach,
    Breaking the curse of dimensionality with convex neural networks (2017).
    """
    check_positive_integer("max_steps", max_steps)
    if X.shape[0] != y.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y {y.shape[0]}; give one label per row")
    if isinstance(misfit_weight, int | float) and misfit_weight < 0:
        raise ValueError(f"misfit_weight must be zero (interpolate) or positive, got {misfit_weight}")
    p = _rotated(X, y, weights, misfit_weight)
    zero = jnp.zeros(p.A.shape[1], p.A.dtype)
    scale = jnp.sum(p.spectrum) / jnp.maximum(jnp.sum(p.y**2), jnp.finfo(p.y.dtype).tiny)
    rho = jnp.sqrt(scale / jnp.maximum(jnp.sum(p.keep), 1))  # 1/ρ in units of M's entries

    def unfinished(c: tuple) -> Array:
        return (c[0] < max_steps) & ~(c[4] <= tolerance)

    def several(c: tuple) -> tuple:
        k, Z, D, rho, _, _ = c
        (Z, D, _), report = jax.lax.scan(lambda s, _: _step(p, s), (Z, D, rho), None, _CHECK)
        u, m, primal_gap, dual_gap = (part[-1] for part in report)
        best = jnp.where(p.mu > 0, Z, m)  # m satisfies the equations, Z has the low rank
        value = p.primal(best)
        gap = (value - p.dual(u)) / jnp.maximum(value, jnp.finfo(value.dtype).tiny)
        ratio = primal_gap / jnp.maximum(dual_gap, jnp.finfo(value.dtype).tiny)
        factor = jnp.where(k < _TUNE, jnp.where(ratio > 3, 1.5, jnp.where(ratio < 1 / 3, 1 / 1.5, 1.0)), 1.0)
        return k + _CHECK, Z, D / factor, rho * factor, gap, best

    first = (jnp.int32(0), zero, zero, rho, jnp.asarray(jnp.inf, zero.dtype), zero)
    steps, _, _, _, gap, best = jax.lax.while_loop(unfinished, several, first)
    misfit = jnp.linalg.norm(dot(p.A, best) - p.y) / jnp.maximum(jnp.linalg.norm(y), jnp.finfo(y.dtype).tiny)
    asked = jnp.asarray(tolerance, gap.dtype)
    return MatrixFit(p.matrix(best), p.primal(best), gap, misfit, steps, gap <= asked, asked)


def minimum_frobenius_norm(
    X: Float[Array, "n d"], y: Float[Array, " n"], *, weights: Float[Array, " n"] | None = None
) -> Float[Array, "d d"]:
    """The interpolating quadratic form of least Frobenius norm: F2, kernel regression with ⟨x,z⟩² [L6].

    M = Σ_i α_i x_i x_iᵀ, Kα = y with K_ij = ⟨x_i,x_j⟩². K is lifted by 400 units of rounding (1e-13), which serves n >
    d(d+1)/2 points (K singular, labels consistent) and is below what the labels can show otherwise.
    """
    K = jnp.square(dot(X, X.T))
    if weights is not None:
        keep = weights > 0
        K, y = jnp.where(keep[:, None] & keep, K, 0), jnp.where(keep, y, 0)
    lift = 800 * rounding(y.dtype) * jnp.trace(K) / jnp.sum(jnp.diagonal(K) > 0)
    K = K + jnp.diag(jnp.where(jnp.diagonal(K) > 0, lift, 1))
    alpha = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(K), y)
    return dot(X.T * alpha, X)


def _step(p: _Problem, state: tuple) -> tuple[tuple, tuple]:
    Z, D, rho = state
    v = Z - D
    u = jnp.where(p.keep, (p.y - dot(p.A, v)) / jnp.where(p.keep, p.spectrum + p.mu * rho, 1), 0)
    m = v + dot(p.A.T, u)
    relaxed = _RELAX * m + (1 - _RELAX) * Z
    new = p.shrunk(relaxed + D, 1 / rho)
    report = (rho * u, m, rho * jnp.linalg.norm(m - new), rho * jnp.linalg.norm(new - Z))
    return (new, D + relaxed - new, rho), report


def _rotated(X: Array, y: Array, weights: Array | None, misfit_weight: Any) -> _Problem:
    i, j, scale = _triangle(X.shape[1])
    A = X[:, i] * X[:, j] * scale
    if weights is not None:
        A, y = jnp.where(weights[:, None] > 0, A, 0), jnp.where(weights > 0, y, 0)
    spectrum, U = jnp.linalg.eigh(dot(A, A.T))
    mu = jnp.asarray(misfit_weight, y.dtype)
    seen = spectrum > 4 * len(y) * rounding(y.dtype) * spectrum[-1]
    keep = seen | (mu > 0)  # labels outside the range of A: misfit where it is weighed, inconsistent where it is not
    A, y = jnp.where(seen[:, None], dot(U.T, A), 0), jnp.where(keep, dot(U.T, y), 0)
    return _Problem(A, y, jnp.where(seen, spectrum, 0), keep, mu, X.shape[1])


def _triangle(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upper triangle and the factor that makes it an isometry: off-diagonal entries count twice."""
    i, j = np.triu_indices(d)
    return i, j, np.where(i == j, 1.0, np.sqrt(2.0))
