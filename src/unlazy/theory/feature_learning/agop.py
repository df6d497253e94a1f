"""Gradients of a kernel predictor from derivatives of the kernel's entry formula [D11].

f(x) = Σ_i α_i k(x, x_i) with k = entry(⟨x,x_i⟩, ⟨x,x⟩, ⟨x_i,x_i⟩) has

    ∇f(x) = Σ_i α_i ∂₁entry · x_i  +  2x Σ_i α_i ∂₂entry,

two products with matrices shaped like K, without differentiating through a Gram matrix. A kernel of D = ‖x - z‖² has
∂₁ = -2k'(D) and ∂₂ = k'(D). The AGOP is (1/n) Σ_x ∇f(x) ∇f(x)ᵀ, summed over outputs (Radhakrishnan et al. 2024).

The ℓ1 kernel exp(-Σ_j |x_j - z_j|/h_j) has ∂_j f(x) = -(1/h_j) Σ_i α_i k(x, x_i) sign(x_j - x_ij), zero at a tie.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import A, dot


def gradient(by_product: A, by_norm: A, alpha: A, points: A, centers: A) -> A:
    """∇f at every point, of one output, with respect to embedded points; NumPy arrays give NumPy.

    Parameters
    ----------
    by_product, by_norm : array of shape (m, n)
        ∂₁entry and ∂₂entry.
    alpha : array of shape (n,)
    points : array of shape (m, e)
    centers : array of shape (n, e)

    Returns
    -------
    array of shape (m, e)
    """
    return dot(by_product, alpha[:, None] * centers) + 2 * dot(by_norm, alpha)[:, None] * points


def l1_gradient(
    K: Float[Array, "m n"], alpha: Float[Array, "n c"], points: Float[Array, "m d"], centers: Float[Array, "n d"]
) -> Float[Array, "m c d"]:
    """∇f of the ℓ1 kernel with respect to inputs divided by their bandwidths, one coordinate at a time."""

    def along(columns: tuple[Array, Array]) -> Array:
        return -dot(K * jnp.sign(columns[0][:, None] - columns[1]), alpha)

    return jnp.moveaxis(jax.lax.map(along, (points.T, centers.T)), 0, 2)
