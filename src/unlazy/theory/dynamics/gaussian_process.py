"""Gaussian process regression [K2, K5]: evidence and conditioning as pure functions of Gram matrices."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.linalg import dot
from unlazy.core.precision import rounding
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.dynamics.spectral_filters import Coefficient
from unlazy.theory.numerics.matrix_functions import constant, filtered


def posterior_covariance(
    K_zz: Float[Array, "m m"], K_zx: Float[Array, "m n"], eigenvectors: Float[Array, "n n"], coefficient: Coefficient
) -> Float[Array, "*t m m"]:
    """K_zz - K_zX (K + ρI)⁻¹ K_Xz, with (K + ρI)⁻¹ = U c(λ) Uᵀ: the posterior under noise of variance ρ."""
    B = dot(K_zx, eigenvectors)
    return K_zz - dot(B, filtered(coefficient, B.T))


@jax.custom_jvp
def square_root(covariance: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The symmetric A with A² = C, for any C that is positive up to rounding, where Cholesky would fail.

    A = U √max(λ,0) Uᵀ is a function of C, unlike U√λ, so draws have derivatives where eigenvalues repeat:
    √[λ, μ] = 1/(√λ + √μ). Between null directions it counts as zero: C keeps its rank.
    """
    return _square_root(covariance)[0]


def _square_root(C: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    values, U = jnp.linalg.eigh(jax.lax.stop_gradient((C + C.T) / 2))
    root = jnp.sqrt(jnp.maximum(values, 0))
    return dot(U * root, U.T), root, U


@square_root.defjvp
def _square_root_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    A, root, U = _square_root(primals[0])
    root, U = constant(primals[0], root, U)
    sums = root[:, None] + root
    null = sums <= 2 * jnp.sqrt(spectral_filters.rounding_floor(jnp.square(root)))
    inner = dot(U.T, (tangents[0] + tangents[0].T) / 2, U)
    return A, dot(U, jnp.where(null, 0, inner / jnp.where(null, 1, sums)), U.T)


def log_marginal_likelihood(
    K: Float[Array, "n n"], y: Float[Array, "n c"], noise_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """log N(y; 0, K + s²I) summed over outputs: -½ tr yᵀP y - (c/2) log det(K + s²I) - (nc/2) log 2π, P = (K + s²I)⁻¹.

    (Rasmussen & Williams 2006, eq. 2.30.) Noise below rounding counts as rounding. Cholesky, and where that fails
    the eigendecomposition with negative eigenvalues set to zero. Derivatives of any order, forward and reverse, come
    from dP = -P dK P and d log det = tr(P dK), so they are finite where K has repeated eigenvalues.
    """
    n, c = y.shape
    s = jnp.maximum(noise_variance, n * rounding(K.dtype) * jnp.trace(K) / n)
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
    (P, log_det), (dK, ds) = _inverse(*primals), tangents
    change = dot(P, dK) + ds * P
    return (P, log_det), (-dot(change, P), jnp.trace(change))
