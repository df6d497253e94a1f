"""Gradients of a kernel predictor from derivatives of its entries [D11].

f(x) = Σ_i α_i k(x, x_i) with k = entry(⟨x,x_i⟩, ⟨x,x⟩, ⟨x_i,x_i⟩) has

    ∇f(x) = Σ_i α_i ∂₁entry · x_i  +  2x Σ_i α_i ∂₂entry,

two products with matrices shaped like K; nothing is differentiated through a Gram matrix. A kernel of D = ‖x - z‖² has
∂₁ = -2k'(D) and ∂₂ = k'(D). The AGOP is (1/n) Σ_x ∇f(x) ∇f(x)ᵀ, summed over outputs (Radhakrishnan et al. 2024).
"""

from typing import Any

from jaxtyping import Float

from unlazy.core.linear import dot


def gradient(
    by_product: Float[Any, "m n"],
    by_norm: Float[Any, "m n"],
    alpha: Float[Any, " n"],
    points: Float[Any, "m e"],
    centres: Float[Any, "n e"],
) -> Float[Any, "m e"]:
    """∇f at every point, of one output; with respect to embedded points. NumPy's arrays stay NumPy's."""
    return dot(by_product, alpha[:, None] * centres) + 2 * dot(by_norm, alpha)[:, None] * points
