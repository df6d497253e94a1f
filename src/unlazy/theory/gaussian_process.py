"""Gaussian process regression [K2, K5]: evidence and conditioning as pure functions of Gram matrices."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.linear import dot, einsum
from unlazy.core.precision import rounding


def posterior_covariance(
    K_zz: Float[Array, "m m"], K_zx: Float[Array, "m n"], eigenvectors: Float[Array, "n n"],
    coefficient: Float[Array, "*t n"],
) -> Float[Array, "*t m m"]:  # fmt: skip
    """K_zz - K_zX (K + ρI)⁻¹ K_Xz, with (K + ρI)⁻¹ = U c(λ) Uᵀ: the posterior under noise of variance ρ."""
    B = dot(K_zx, eigenvectors)
    return K_zz - einsum("an,...n,bn->...ab", B, coefficient, B)


def square_root(covariance: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """A with AAᵀ = C, for any C that is positive up to rounding: U √max(λ,0), which never fails as Cholesky does."""
    values, vectors = jnp.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))


@jax.custom_vjp
def log_marginal_likelihood(
    K: Float[Array, "n n"], y: Float[Array, "n c"], noise_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """log N(y; 0, K + s²I) summed over outputs: -½ tr yᵀP y - (c/2) log det(K + s²I) - (nc/2) log 2π, P = (K + s²I)⁻¹.

    (Rasmussen & Williams 2006, eq. 2.30.) Noise below rounding counts as rounding. Cholesky, and where that fails
    the eigendecomposition with negative eigenvalues set to zero. The gradient is the closed form
    ∂/∂K = ½(Py yᵀP - cP), so it is finite where K has repeated eigenvalues.
    """
    return _evidence(K, y, noise_variance)[0]


def _evidence(K: jax.Array, y: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The evidence and P."""
    n, c = y.shape
    s = jnp.maximum(noise, n * rounding(K.dtype) * jnp.trace(K) / n)
    eye = jnp.eye(n, dtype=K.dtype)
    L = jnp.linalg.cholesky(K + s * eye)

    def by_cholesky() -> tuple[jax.Array, jax.Array]:
        inverse = jax.scipy.linalg.solve_triangular(L, eye, lower=True)
        return dot(inverse.T, inverse), 2 * jnp.sum(jnp.log(jnp.diagonal(L)))

    def by_eigenvalues() -> tuple[jax.Array, jax.Array]:
        values, U = jnp.linalg.eigh(K)
        shifted = jnp.maximum(values, 0) + s
        return dot(U / shifted, U.T), jnp.sum(jnp.log(shifted))

    P, log_det = jax.lax.cond(jnp.all(jnp.isfinite(L)), by_cholesky, by_eigenvalues)
    return -0.5 * jnp.sum(y * dot(P, y)) - 0.5 * c * log_det - 0.5 * n * c * math.log(2 * math.pi), P


def _forward(K: jax.Array, y: jax.Array, noise: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    value, P = _evidence(K, y, noise)
    return value, (P, dot(P, y))


def _backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    P, alpha = saved
    to_K = 0.5 * g * (dot(alpha, alpha.T) - alpha.shape[1] * P)
    return to_K, -g * alpha, jnp.trace(to_K)


log_marginal_likelihood.defvjp(_forward, _backward)
