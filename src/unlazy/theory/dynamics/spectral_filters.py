"""Exact training of a kernel machine, or of a wide network, from one eigendecomposition [K2, K3, K5, K11].

K = U diag(λ) Uᵀ. Each way of training is a filter on λ: r(λ), the remaining fraction of the residual y - f, and
c(λ) = (1 - r(λ))/λ, which gives the coefficients α = U c(λ) Uᵀ (y - f₀) of f(z) = f₀(z) + K(z,X) α.

| training | r(λ) | c(λ) at λ → 0 |
|---|---|---|
| gradient flow on ½Σ(f - y)², time t | e^{-λt} | t |
| gradient descent, step size η, s steps | (1 - ηλ)^s | ηs |
| ridge regression | ρ/(λ + ρ) | 1/ρ |

All functions are pure and run under jit, vmap and grad. Arguments c(λ) can also be c(K)
(theory.numerics.matrix_functions), whose derivatives in K are correct for repeated eigenvalues, unlike autodiff through
an eigendecomposition. Padded rows (weight zero) need K with zero rows and columns and y = f₀ = 0 there: see
`masked_gram`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from unlazy.core.arrays import A, dot, namespace, unit_roundoff
from unlazy.theory.dynamics import leave_one_out
from unlazy.theory.numerics.matrix_functions import MatrixFunction, apply_filter, filter_diagonal, variance_reduction

Coefficient = Float[Array, "*t n"] | MatrixFunction
"""c(λ) of every eigenvalue, or c(K)."""


def masked_gram(K: Float[Array, "n n"], weights: Float[Array, " n"]) -> Float[Array, "n n"]:
    """K with the rows and columns of weight zero set to zero: they become null directions."""
    keep = weights > 0
    return jnp.where(keep[:, None] & keep[None, :], K, 0)


def rounding_floor(eigenvalues: Float[A, " n"]) -> Array | np.floating:
    """Size below which an eigenvalue of K is rounding: n·u·λ_max, with u the unit of rounding.

    The backward error of a symmetric eigensolver is a small multiple of u‖K‖ (Golub and Van Loan, section 8.3), and the
    rounding of the n² entries of K changes an eigenvalue by at most n·u·max|K_ij| ≤ n·u·λ_max.
    """
    return eigenvalues.shape[0] * unit_roundoff(eigenvalues.dtype) * namespace(eigenvalues).abs(eigenvalues).max()


def flow_residual(eigenvalues: Float[Array, " n"], time: Real[ArrayLike, "*t"]) -> Float[Array, "*t n"]:
    """r(λ) = e^{-λt} of gradient flow [K3]; at t = ∞ zero, and one for λ = 0."""
    t, lam = _columns(time, eigenvalues)
    return jnp.exp(-_exponent(t, lam))


def flow_coefficient(eigenvalues: Float[Array, " n"], time: Real[ArrayLike, "*t"]) -> Float[Array, "*t n"]:
    """c(λ) = (1 - e^{-λt})/λ of gradient flow [K3]; t at λ = 0, but zero at λ = 0 and t = ∞."""
    t, lam = _columns(time, eigenvalues)
    return _divide(-jnp.expm1(-_exponent(t, lam)), lam, jnp.where(jnp.isinf(t), 0, t))


def descent_residual(
    eigenvalues: Float[Array, " n"], step_size: Real[ArrayLike, ""], steps: Real[ArrayLike, "*t"]
) -> Float[Array, "*t n"]:
    """r(λ) = (1 - ηλ)^s of gradient descent [K3], accurate for tiny ηλ and any integer s; s = ∞ is allowed."""
    s, lam = _columns(steps, eigenvalues)
    return _power(lam * jnp.asarray(step_size, lam.dtype), s)


def descent_coefficient(
    eigenvalues: Float[Array, " n"], step_size: Real[ArrayLike, ""], steps: Real[ArrayLike, "*t"]
) -> Float[Array, "*t n"]:
    """c(λ) = (1 - (1 - ηλ)^s)/λ of gradient descent [K3]; ηs at λ = 0, but zero at s = ∞."""
    s, lam = _columns(steps, eigenvalues)
    learned = _one_minus_power(lam * jnp.asarray(step_size, lam.dtype), s)
    return _divide(learned, lam, jnp.where(jnp.isinf(s), 0, s * jnp.asarray(step_size, s.dtype)))


def ridge_coefficient(eigenvalues: Float[Array, " n"], ridge: Real[ArrayLike, "*t"]) -> Float[Array, "*t n"]:
    """c(λ) = 1/(λ + ρ) of ridge regression [K2]; zero if both are zero (pseudo-inverse)."""
    rho, lam = _columns(ridge, eigenvalues)
    return _divide(jnp.ones_like(lam), lam + rho, jnp.zeros_like(lam))


def drop_null_directions(
    coefficient: Coefficient, eigenvalues: Float[Array, " n"], floor: Real[ArrayLike, ""]
) -> Coefficient:
    """c(λ) with null directions (λ ≤ floor) set to zero once c exceeds 1/floor.

    K(z,X)u has rounding errors of the size of the floor; multiplied by c they are harmless up to c = 1/floor and noise
    beyond. Training for a finite time is thus exact for singular K, and t → ∞ gives the pseudo-inverse.
    """
    if isinstance(coefficient, MatrixFunction):
        return coefficient._replace(floor=floor)
    return jnp.where((eigenvalues <= floor) & (coefficient * floor >= 1), 0, coefficient)


def coefficients(
    eigenvectors: Float[Array, "n n"], coefficient: Coefficient, residual: Float[Array, " n *c"]
) -> Float[Array, "..."]:
    """α = U c(λ) Uᵀ (y - f₀), so that f(z) = f₀(z) + K(z,X) α [K2, K3].

    Parameters
    ----------
    eigenvectors : array of shape (n, n)
        U.
    coefficient : array of shape (..., n), or MatrixFunction
        c(λ), or c(K).
    residual : array of shape (n,) or (n, c)
        y - f₀.

    Returns
    -------
    array of shape (..., n) or (..., n, c)
    """
    alpha = dot(eigenvectors, apply_filter(coefficient, dot(eigenvectors.T, residual.reshape(residual.shape[0], -1))))
    return alpha.reshape(*alpha.shape[:-1], *residual.shape[1:])


def random_features_covariance(
    K_zz: Float[Array, "m m"],
    K_zx: Float[Array, "m n"],
    eigenvectors: Float[Array, "n n"],
    eigenvalues: Float[Array, " n"],
    coefficient: Coefficient,
) -> Float[Array, "*t m m"]:
    """Covariance of a random-features model whose head starts at N(0, I) [K5].

    f_t = f₀ + A(y - f₀(X)), A = K_zX U c Uᵀ and f₀ ~ GP(0, K): Cov = K_zz - K_zX U (2c - λc²) Uᵀ K_Xz, where
    2c - λc² = (1 - r²)/λ ≥ 0. At t → ∞ it is the noiseless posterior K_zz - K_zX K⁻¹ K_Xz.
    """
    B = dot(K_zx, eigenvectors)
    return K_zz - dot(B, apply_filter(variance_reduction(eigenvalues, coefficient), B.T))


def ensemble_covariance(
    S_zz: Float[Array, "m m"],
    S_zx: Float[Array, "m n"],
    S_xx: Float[Array, "n n"],
    T_zx: Float[Array, "m n"],
    eigenvectors: Float[Array, "n n"],
    coefficient: Coefficient,
) -> Float[Array, "*t m m"]:
    """Covariance of an ensemble of trained wide networks [K11] (Lee et al. 2019, eq. 16).

    With Θ = U diag(λ) Uᵀ the NTK, Σ the NNGP kernel, A = Θ_zX U c Uᵀ: Cov = Σ_zz - AΣ_Xz - Σ_zX Aᵀ + AΣ_XX Aᵀ.
    """
    A_t = dot(eigenvectors, apply_filter(coefficient, dot(T_zx, eigenvectors).T))
    A = jnp.swapaxes(A_t, -1, -2)
    cross = dot(A, S_zx.T)
    covariance = S_zz - cross - jnp.swapaxes(cross, -1, -2) + dot(A, S_xx, A_t)
    return (covariance + jnp.swapaxes(covariance, -1, -2)) / 2


def largest_step_size(eigenvalues: Float[Array, " n"]) -> Float[Array, ""]:
    """2/λ_max: gradient descent converges for every η below it and for none above [K3]."""
    return 2 / jnp.max(eigenvalues)


def leave_one_out_residual(
    eigenvectors: Float[Array, "n n"],
    eigenvalues: Float[Array, " n"],
    y: Float[Array, " n *c"],
    ridge: Real[ArrayLike, "*t"],
) -> Float[Array, "..."]:
    """y_i - f^{(-i)}(x_i) = [(K + ρI)⁻¹y]_i / [(K + ρI)⁻¹]_ii for all ridges at once.

    Exact for kernel ridge regression refitted without point i. Padded rows (y = 0) give zero up to rounding.

    Parameters
    ----------
    eigenvectors : array of shape (n, n)
    eigenvalues : array of shape (n,)
    y : array of shape (n,) or (n, c)
    ridge : array of any shape
        ρ, absolute.

    Returns
    -------
    array of shape (*ridge.shape, *y.shape)
    """
    return leave_one_out_from_coefficient(eigenvectors, ridge_coefficient(eigenvalues, ridge), y)


def leave_one_out_from_coefficient(
    eigenvectors: Float[Array, "n n"], coefficient: Coefficient, y: Float[Array, " n *c"]
) -> Float[Array, "..."]:
    """`leave_one_out_residual` from c = 1/(λ + ρ)."""
    alpha = coefficients(eigenvectors, coefficient, y)
    inverse = filter_diagonal(eigenvectors, coefficient)
    return leave_one_out.leave_one_out_residual(alpha, inverse.reshape(*inverse.shape, *(1,) * (y.ndim - 1)))


def generalized_cross_validation(
    eigenvectors: Float[Array, "n n"],
    eigenvalues: Float[Array, " n"],
    y: Float[Array, " n *c"],
    ridge: Real[ArrayLike, "*t"],
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, "*t"]:
    """GCV(ρ) = (1/n)‖(I - H)y‖² / ((1/n) tr(I - H))², H = K(K + ρI)⁻¹ (Golub, Heath and Wahba 1979).

    I - H = ρ(K + ρI)⁻¹, and ρ cancels, so the result has a limit at ρ → 0. Mean over outputs.

    Parameters
    ----------
    eigenvectors : array of shape (n, n)
    eigenvalues : array of shape (n,)
    y : array of shape (n,) or (n, c)
    ridge : array of any shape
        ρ, absolute.
    weights : array of shape (n,), optional
        Zero on padded rows, which are excluded from the trace.

    Returns
    -------
    array of the shape of ridge
    """
    return gcv_from_coefficient(eigenvectors, ridge_coefficient(eigenvalues, ridge), y, weights)


def gcv_from_coefficient(
    eigenvectors: Float[Array, "n n"],
    coefficient: Coefficient,
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, "*t"]:
    """`generalized_cross_validation` from c = 1/(λ + ρ)."""
    keep = jnp.ones(y.shape[0], y.dtype) if weights is None else (weights > 0).astype(y.dtype)
    alpha = apply_filter(coefficient, dot(eigenvectors.T, y.reshape(y.shape[0], -1)))
    square = jnp.sum(jnp.square(alpha), -2).mean(-1)
    trace = dot(filter_diagonal(eigenvectors, coefficient), keep)
    return leave_one_out.gcv_score(square, trace, keep.sum())


def _columns(path: ArrayLike, eigenvalues: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Path values down, eigenvalues across; negative eigenvalues count as zero."""
    values = jnp.asarray(path, eigenvalues.dtype)[..., None]
    lam = jnp.maximum(eigenvalues, 0)
    shape = jnp.broadcast_shapes(values.shape, lam.shape)
    return jnp.broadcast_to(values, shape), jnp.broadcast_to(lam, shape)


def _exponent(t: jax.Array, lam: jax.Array) -> jax.Array:
    """λt, with 0·∞ = 0."""
    return jnp.where(lam == 0, 0, lam * jnp.where(lam == 0, 0, t))


def _divide(top: jax.Array, bottom: jax.Array, at_zero: jax.Array) -> jax.Array:
    """top/bottom, `at_zero` where bottom is zero; gradients stay finite."""
    safe = jnp.where(bottom == 0, 1, bottom)
    return jnp.where(bottom == 0, at_zero, top / safe)


@jax.custom_jvp
def _power(x: jax.Array, s: jax.Array) -> jax.Array:
    """(1 - x)^s, with a derivative that is finite at x = 1, unlike that of the logarithm."""
    sign, log_size = _descent_parts(s, x)
    return sign * jnp.exp(log_size)


@jax.custom_jvp
def _one_minus_power(x: jax.Array, s: jax.Array) -> jax.Array:
    """1 - (1 - x)^s, accurate also where it is far below rounding."""
    sign, log_size = _descent_parts(s, x)
    return jnp.where(sign > 0, -jnp.expm1(log_size), 1 + jnp.exp(log_size))


def _power_change(x: jax.Array, s: jax.Array, dx: jax.Array, ds: jax.Array) -> jax.Array:
    """-s (1 - x)^{s-1} dx + (1 - x)^s log|1 - x| ds."""
    still = (s == 0) | jnp.isinf(s)  # at s = ∞ every direction is learned or null
    along = jnp.where(still, 0, s) * _power(x, jnp.where(still, 0, s - 1))
    gap = jnp.abs(1 - x)
    log = jnp.where(x < 0.5, jnp.log1p(-jnp.minimum(x, 0.5)), jnp.log(jnp.where(gap == 0, 1, gap)))
    return -along * dx + _power(x, s) * log * ds


@_power.defjvp
def _power_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return _power(*primals), _power_change(*primals, *tangents)


@_one_minus_power.defjvp
def _one_minus_power_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return _one_minus_power(*primals), -_power_change(*primals, *tangents)


def _descent_parts(s: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sign and logarithm of |1 - x|^s; log1p keeps (1 - x)^s exact where 1 - x rounds to 1."""
    log_base = jnp.where(x < 1, jnp.log1p(-jnp.minimum(x, 1)), jnp.log(jnp.abs(1 - jnp.maximum(x, 1))))
    still = (s == 0) | (x == 0)
    log_size = jnp.where(still, 0, jnp.where(still, 0, s) * log_base)
    odd = (x > 1) & (jnp.mod(jnp.where(jnp.isinf(s), 0, s), 2) == 1)
    return jnp.where(odd, -1.0, 1.0).astype(x.dtype), log_size
