"""Quadratic regression f(x) = xᵀMx with the nuclear norm: the F1 problem of the square activation [L6].

    min_M  ‖M‖_* + ‖A(M) - y‖²/(2μ),   A(M)_i = x_iᵀMx_i;   μ = 0: the interpolant of least ‖M‖_*.

Alternating direction method of multipliers (Boyd et al. 2011): m ← least squares around Z - D, Z ← eigenvalues of m + D
soft-thresholded by 1/ρ. With A rotated so that AAᵀ is diagonal, a step costs two products with A and one small
eigendecomposition, and also yields a dual point u, so that every solution has a certificate:

    max_u  yᵀu - μ‖u‖²/2   subject to   ‖Σ_i u_i x_i x_iᵀ‖ ≤ 1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from unlazy.core.arrays import Points, as_points, dot, unit_roundoff
from unlazy.core.errors import check_positive_integer
from unlazy.core.results import Evidence, FitDescription

_OVER_RELAXATION = 1.7
"""Over-relaxation; 1.5 to 1.8 saves a third of the steps."""
_CERTIFICATE_STEPS = 20
"""Steps between certificates: one costs as much as two steps."""
_TUNING_STEPS = 400
"""Steps in which ρ is balanced; it is fixed afterward, so that convergence is guaranteed."""


class MatrixFit(eqx.Module):
    """Quadratic form M with its certificate.

    Attributes
    ----------
    M : array of shape (d, d)
        The quadratic form.
    objective : float
        Value of the objective.
    gap : float
        (primal - dual)/primal: the objective is within this share of the optimum.
    misfit : float
        ‖A(M) - y‖/‖y‖.
    steps : int
        Number of steps.
    converged : bool
        Whether `gap` is at most `tolerance`.
    tolerance : float
        The requested gap.
    """

    M: Float[Array, "d d"]
    objective: Float[Array, ""]
    gap: Float[Array, ""]
    misfit: Float[Array, ""]
    """‖A(M) - y‖/‖y‖."""
    steps: Int[Array, ""]
    converged: Bool[Array, ""]
    tolerance: Float[Array, ""]
    """The requested gap."""

    def predict(self, Z: Points) -> Float[Array, " m"]:
        """Evaluate xᵀMx at the rows of Z."""
        rows = as_points(Z, "Z", self.M.dtype)
        return jnp.sum(dot(rows, self.M) * rows, 1)

    @property
    def evidence(self) -> Evidence:
        """The duality gap as evidence."""
        description = FitDescription("min ‖M‖_* + ‖A(M) - y‖²/(2μ) [L6]", "alternating directions")
        return Evidence(self.gap, self.tolerance, steps=self.steps, description=description)


class _NuclearNormProblem(eqx.Module):
    """The problem in coordinates where AAᵀ = diag(λ), with symmetric matrices as vectors, isometrically."""

    A: Float[Array, "n D"]
    y: Float[Array, " n"]
    spectrum: Float[Array, " n"]
    keep: Bool[Array, " n"]
    mu: Float[Array, ""]
    d: int = eqx.field(static=True)

    def matrix(self, v: Float[Array, " D"]) -> Float[Array, "d d"]:
        """The symmetric matrix of a vector."""
        i, j, scale = _triangle(self.d)
        return jnp.zeros((self.d, self.d), v.dtype).at[i, j].set(v / scale).at[j, i].set(v / scale)

    def soft_threshold(self, v: Float[Array, " D"], by: Float[Array, ""]) -> Float[Array, " D"]:
        """Soft-threshold the eigenvalues."""
        i, j, scale = _triangle(self.d)
        e, V = jnp.linalg.eigh(self.matrix(v))
        e = jnp.sign(e) * jnp.maximum(jnp.abs(e) - by, 0)
        return dot(V * e, V.T)[i, j] * scale

    def absolute_eigenvalues(self, v: Float[Array, " D"]) -> Float[Array, " d"]:
        """Absolute eigenvalues of the matrix."""
        return jnp.abs(jnp.linalg.eigvalsh(self.matrix(v)))

    def primal(self, v: Float[Array, " D"]) -> Float[Array, ""]:
        """The objective."""
        loss = jnp.sum((dot(self.A, v) - self.y) ** 2) / (2 * jnp.where(self.mu > 0, self.mu, 1))
        return jnp.sum(self.absolute_eigenvalues(v)) + jnp.where(self.mu > 0, loss, 0)

    def dual(self, u: Float[Array, " n"]) -> Float[Array, ""]:
        """Dual value of u, scaled into the unit ball of the operator norm."""
        u = u / jnp.maximum(1, jnp.max(self.absolute_eigenvalues(dot(self.A.T, u))))
        return dot(self.y, u) - self.mu / 2 * dot(u, u)


def minimum_nuclear_norm(
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    misfit_weight: ArrayLike = 0.0,
    weights: Float[Array, " n"] | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> MatrixFit:
    """Quadratic form of least nuclear norm that fits y, certified by its duality gap [L6].

    Works under jit and vmap.

    Parameters
    ----------
    X : array of shape (n, d)
        Points.
    y : array of shape (n,)
        Labels.
    misfit_weight : float, default 0.0
        μ above. 0 interpolates (the labels must then be consistent: with more than d(d+1)/2 points they must be exact),
        larger values tolerate noise.
    weights : array of shape (n,), optional
        Rows with weight zero are padding.
    tolerance : float, default 1e-6
        Relative duality gap at which to stop.
    max_steps : int, default 20000
        Maximum number of steps.

    Returns
    -------
    MatrixFit
        The quadratic form with its duality gap.

    Raises
    ------
    ValueError
        If the shapes do not match or `misfit_weight` is negative.

    References
    ----------
    Recht, Fazel and Parrilo (2010), Guaranteed minimum-rank solutions of linear matrix equations via nuclear norm
    minimization.
    Bach (2017), Breaking the curse of dimensionality with convex neural networks (the limit of a quadratic network with
    weight decay).

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.solvers import minimum_nuclear_norm
    >>> X = jax.random.normal(jax.random.key(0), (12, 4))
    >>> fit = minimum_nuclear_norm(X, X[:, 0] ** 2, tolerance=1e-3)  # rank one
    >>> bool(fit.converged), bool(jnp.allclose(fit.predict(X), X[:, 0] ** 2, atol=1e-2))
    (True, True)
    """
    check_positive_integer("max_steps", max_steps)
    if X.shape[0] != y.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y has {y.shape[0]}: pass one label per row")
    if isinstance(misfit_weight, int | float) and misfit_weight < 0:
        raise ValueError(f"misfit_weight must be zero (interpolate) or positive, got {misfit_weight}")
    p = _diagonalized_problem(X, y, weights, misfit_weight)
    zero = jnp.zeros(p.A.shape[1], p.A.dtype)
    scale = jnp.sum(p.spectrum) / jnp.maximum(jnp.sum(p.y**2), jnp.finfo(p.y.dtype).tiny)
    rho = jnp.sqrt(scale / jnp.maximum(jnp.sum(p.keep), 1))  # 1/ρ in units of M's entries

    def unfinished(c: tuple) -> Array:
        return (c[0] < max_steps) & ~(c[4] <= tolerance)

    def several(c: tuple) -> tuple:
        k, Z, D, rho, _, _ = c
        (Z, D, _), report = jax.lax.scan(lambda s, _: _step(p, s), (Z, D, rho), None, _CERTIFICATE_STEPS)
        u, m, primal_gap, dual_gap = (part[-1] for part in report)
        best = jnp.where(p.mu > 0, Z, m)  # m satisfies the equations, Z has the low rank
        value = p.primal(best)
        gap = (value - p.dual(u)) / jnp.maximum(value, jnp.finfo(value.dtype).tiny)
        ratio = primal_gap / jnp.maximum(dual_gap, jnp.finfo(value.dtype).tiny)
        factor = jnp.where(k < _TUNING_STEPS, jnp.where(ratio > 3, 1.5, jnp.where(ratio < 1 / 3, 1 / 1.5, 1.0)), 1.0)
        return k + _CERTIFICATE_STEPS, Z, D / factor, rho * factor, gap, best

    first = (jnp.int32(0), zero, zero, rho, jnp.asarray(jnp.inf, zero.dtype), zero)
    steps, _, _, _, gap, best = jax.lax.while_loop(unfinished, several, first)
    misfit = jnp.linalg.norm(dot(p.A, best) - p.y) / jnp.maximum(jnp.linalg.norm(y), jnp.finfo(y.dtype).tiny)
    requested = jnp.asarray(tolerance, gap.dtype)
    return MatrixFit(p.matrix(best), p.primal(best), gap, misfit, steps, gap <= requested, requested)


def minimum_frobenius_norm(
    X: Float[Array, "n d"], y: Float[Array, " n"], *, weights: Float[Array, " n"] | None = None
) -> Float[Array, "d d"]:
    """Interpolating quadratic form of least Frobenius norm: F2, kernel regression with ⟨x,z⟩² [L6].

    M = Σ_i α_i x_i x_iᵀ, Kα = y with K_ij = ⟨x_i,x_j⟩². A jitter of 400 machine epsilons (1e-13) is added to K, which
    allows n > d(d+1)/2 points (K singular, labels consistent) and is otherwise below the accuracy of the labels.

    Parameters
    ----------
    X : array of shape (n, d)
        Points.
    y : array of shape (n,)
        Labels.
    weights : array of shape (n,), optional
        Rows with weight zero are padding.

    Returns
    -------
    array of shape (d, d)
        The symmetric matrix M.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.solvers import minimum_frobenius_norm
    >>> X = jax.random.normal(jax.random.key(0), (6, 4))
    >>> M = minimum_frobenius_norm(X, X[:, 0] ** 2)
    >>> bool(jnp.allclose(jnp.sum((X @ M) * X, 1), X[:, 0] ** 2, atol=1e-2))
    True
    """
    K = jnp.square(dot(X, X.T))
    if weights is not None:
        keep = weights > 0
        K, y = jnp.where(keep[:, None] & keep, K, 0), jnp.where(keep, y, 0)
    lift = 800 * unit_roundoff(y.dtype) * jnp.trace(K) / jnp.sum(jnp.diagonal(K) > 0)
    K = K + jnp.diag(jnp.where(jnp.diagonal(K) > 0, lift, 1))
    alpha = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(K), y)
    return dot(X.T * alpha, X)


def _step(p: _NuclearNormProblem, state: tuple) -> tuple[tuple, tuple]:
    """One step; also returns the dual point, m and the two residuals."""
    Z, D, rho = state
    v = Z - D
    u = jnp.where(p.keep, (p.y - dot(p.A, v)) / jnp.where(p.keep, p.spectrum + p.mu * rho, 1), 0)
    m = v + dot(p.A.T, u)
    relaxed = _OVER_RELAXATION * m + (1 - _OVER_RELAXATION) * Z
    new = p.soft_threshold(relaxed + D, 1 / rho)
    report = (rho * u, m, rho * jnp.linalg.norm(m - new), rho * jnp.linalg.norm(new - Z))
    return (new, D + relaxed - new, rho), report


def _diagonalized_problem(X: Array, y: Array, weights: Array | None, misfit_weight: Any) -> _NuclearNormProblem:
    """The problem rotated so that AAᵀ is diagonal."""
    i, j, scale = _triangle(X.shape[1])
    A = X[:, i] * X[:, j] * scale
    if weights is not None:
        A, y = jnp.where(weights[:, None] > 0, A, 0), jnp.where(weights > 0, y, 0)
    spectrum, U = jnp.linalg.eigh(dot(A, A.T))
    mu = jnp.asarray(misfit_weight, y.dtype)
    seen = spectrum > 4 * len(y) * unit_roundoff(y.dtype) * spectrum[-1]
    keep = seen | (mu > 0)  # labels outside the range of A: misfit if μ > 0, inconsistent if μ = 0
    A, y = jnp.where(seen[:, None], dot(U.T, A), 0), jnp.where(keep, dot(U.T, y), 0)
    return _NuclearNormProblem(A, y, jnp.where(seen, spectrum, 0), keep, mu, X.shape[1])


def _triangle(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upper triangle and the factor that makes it an isometry: off-diagonal entries count twice."""
    i, j = np.triu_indices(d)
    return i, j, np.where(i == j, 1.0, np.sqrt(2.0))
