"""What a Gram matrix shows of a kernel's spectrum: eigenvalues, effective dimension [L3]."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers


@of_any_numbers
def gram_spectrum(K: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Eigenvalues of K/n, largest first: estimates of those of the kernel's integral operator."""
    return jnp.linalg.eigvalsh(K)[::-1] / K.shape[0]


@of_any_numbers
def effective_dimension(eigenvalues: Float[Array, " n"], ridge: Float[Array, ""] | float) -> Float[Array, ""]:
    """tr K(K + ρI)⁻¹ = Σ λ/(λ + ρ): how many directions a ridge ρ leaves free."""
    lam = jnp.maximum(eigenvalues, 0)
    return jnp.sum(lam / (lam + ridge))


@of_any_numbers
def participation_ratio(eigenvalues: Float[Array | np.ndarray, " n"]) -> Float[Array, ""] | float:
    """(Σλ)²/Σλ²: how many directions carry a kernel, or an average gradient outer product: n for the identity, 1 for
    rank one, 0 where all are 0."""
    squares = (eigenvalues**2).sum()
    return eigenvalues.sum() ** 2 / (squares + (squares == 0))
