"""What a Gram matrix shows of a kernel's spectrum: eigenvalues, effective dimension, decay [L3]."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def gram_spectrum(K: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Eigenvalues of K/n, largest first: estimates of those of the kernel's integral operator."""
    return jnp.linalg.eigvalsh(K)[::-1] / K.shape[0]


def effective_dimension(eigenvalues: Float[Array, " n"], ridge: Float[Array, ""] | float) -> Float[Array, ""]:
    """tr K(K + ρI)⁻¹ = Σ λ/(λ + ρ): how many directions a ridge ρ leaves free."""
    lam = jnp.maximum(eigenvalues, 0)
    return jnp.sum(lam / (lam + ridge))


def participation_ratio(eigenvalues: Float[Array, " n"]) -> Float[Array, ""]:
    """(Σλ)²/Σλ²: the number of directions that carry the kernel, n for the identity and 1 for rank one."""
    return jnp.square(jnp.sum(eigenvalues)) / jnp.sum(jnp.square(eigenvalues))


def log_log_slope(x: Float[Array, " k"], y: Float[Array, " k"]) -> Float[Array, ""]:
    """Least-squares slope of log y against log x."""
    u, v = jnp.log(x), jnp.log(y)
    return jnp.sum((u - u.mean()) * (v - v.mean())) / jnp.sum(jnp.square(u - u.mean()))
