"""How well a kernel points at a target, or at another kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers
from unlazy.core.linalg import dot


@of_any_numbers
def kernel_alignment(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, ""]:
    """⟨K, L⟩_F / (‖K‖_F ‖L‖_F): cosine between two kernels (Cristianini et al. 2001)."""
    return jnp.sum(K * L) / (jnp.linalg.norm(K) * jnp.linalg.norm(L))


@of_any_numbers
def target_alignment(K: Float[Array, "n n"], y: Float[Array, "n *c"]) -> Float[Array, ""]:
    """Alignment of K with the labels' own kernel, yᵀKy / (‖K‖_F ‖yyᵀ‖_F); 1 when K = yyᵀ."""
    Y = y.reshape(y.shape[0], -1)
    return jnp.sum(Y * dot(K, Y)) / (jnp.linalg.norm(K) * jnp.linalg.norm(dot(Y.T, Y)))


@of_any_numbers
def centered_alignment(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, ""]:
    """Cosine after removing the mean feature of both (CKA; Cortes et al. 2012)."""
    return kernel_alignment(_centered(K), _centered(L))


def _centered(K: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return K - K.mean(0, keepdims=True) - K.mean(1, keepdims=True) + K.mean()


@of_any_numbers
def entry_correlation(A: Float[Array, "n m"], B: Float[Array, "n m"]) -> Float[Array, ""]:
    """Pearson's correlation of the entries of two matrices: blind to scale and shift [E5]; 0 if one is flat."""
    a, b = A - A.mean(), B - B.mean()
    size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.sum(a * b) / jnp.where(size > 0, size, 1)
