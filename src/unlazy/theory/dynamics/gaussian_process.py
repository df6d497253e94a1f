"""Gaussian process regression [K2, K5]: marginal likelihood and conditioning as functions of Gram matrices."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot, unit_roundoff
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.dynamics.spectral_filters import Coefficient
from unlazy.theory.numerics.matrix_functions import apply_filter, forbid_derivative


def posterior_covariance(
    K_zz: Float[Array, "m m"], K_zx: Float[Array, "m n"], eigenvectors: Float[Array, "n n"], coefficient: Coefficient
) -> Float[Array, "*t m m"]:
    """Posterior covariance K_zz - K_zX (K + ρI)⁻¹ K_Xz under noise of variance ρ.

    (K + ρI)⁻¹ = U c(λ) Uᵀ, with `coefficient` c(λ) = 1/(λ + ρ).
    """
    B = dot(K_zx, eigenvectors)
    return K_zz - dot(B, apply_filter(coefficient, B.T))


@jax.custom_jvp
def square_root(covariance: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """Symmetric square root A of C, A² = C, for C positive semidefinite up to rounding, where Cholesky would fail.

    A = U √max(λ,0) Uᵀ is a function of C, unlike U√λ, so samples are differentiable for repeated eigenvalues:
    √[λ, μ] = 1/(√λ + √μ). Between null directions it is set to zero: C keeps its rank.
    """
    return _square_root(covariance)[0]


def _square_root(C: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The square root, the roots of the eigenvalues, and the eigenvectors."""
    values, U = jnp.linalg.eigh(jax.lax.stop_gradient((C + C.T) / 2))
    root = jnp.sqrt(jnp.maximum(values, 0))
    return dot(U * root, U.T), root, U


@square_root.defjvp
def _square_root_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """Divided differences 1/(√λ + √μ)."""
    A, root, U = _square_root(primals[0])
    root, U = forbid_derivative(primals[0], root, U)
    sums = root[:, None] + root
    null = sums <= 2 * jnp.sqrt(spectral_filters.rounding_floor(jnp.square(root)))
    inner = dot(U.T, (tangents[0] + tangents[0].T) / 2, U)
    return A, dot(U, jnp.where(null, 0, inner / jnp.where(null, 1, sums)), U.T)


def log_marginal_likelihood(
    K: Float[Array, "n n"], y: Float[Array, "n c"], noise_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """log N(y; 0, K + s²I) summed over outputs.

    -½ tr yᵀP y - (c/2) log det(K + s²I) - (nc/2) log 2π, P = (K + s²I)⁻¹ (Rasmussen and Williams 2006, eq. 2.30). By
    Cholesky, or if that fails by the eigendecomposition with negative eigenvalues set to zero. Derivatives of any
    order, forward and reverse, use dP = -P dK P and d log det = tr(P dK), so they are finite for repeated eigenvalues.

    Parameters
    ----------
    K : array of shape (n, n)
        Gram matrix.
    y : array of shape (n, c)
        Labels.
    noise_variance : scalar
        s²; values below rounding are raised to it.

    Returns
    -------
    scalar array
    """
    n, c = y.shape
    s = jnp.maximum(noise_variance, n * unit_roundoff(K.dtype) * jnp.trace(K) / n)
    P, log_det = _inverse(K, s)
    return -0.5 * jnp.sum(y * dot(P, y)) - 0.5 * c * log_det - 0.5 * n * c * math.log(2 * math.pi)


@jax.custom_jvp
def _inverse(K: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(K + sI)⁻¹ and log det(K + sI)."""
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    L = jnp.linalg.cholesky(K + s * eye)

    def by_cholesky() -> tuple[jax.Array, jax.Array]:
        inverse = jax.scipy.linalg.solve_triangular(L, eye, lower=True)
        return dot(inverse.T, inverse), 2 * jnp.sum(jnp.log(jnp.diagonal(L)))

    def by_eigenvalues() -> tuple[jax.Array, jax.Array]:
        values, U = jnp.linalg.eigh(K)
        shifted = jnp.maximum(values, 0) + s
        return dot(U / shifted, U.T), jnp.sum(jnp.log(shifted))

    return jax.lax.cond(jnp.all(jnp.isfinite(L)), by_cholesky, by_eigenvalues)


@_inverse.defjvp
def _inverse_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """dP = -P dK P and d log det = tr(P dK)."""
    (P, log_det), (dK, ds) = _inverse(*primals), tangents
    change = dot(P, dK) + ds * P
    return (P, log_det), (-dot(change, P), jnp.trace(change))
