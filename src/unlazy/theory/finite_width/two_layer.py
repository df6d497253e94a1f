"""Tangent kernels of a two-layer network of finite width, layer by layer [L1].

f(x) = Σ_j a_j φ(w_j·x):  K_1 = Σ_j a_j² φ'(w_j·x) φ'(w_j·z) ⟨x,z⟩,  K_2 = Σ_j φ(w_j·x) φ(w_j·z).
With w_j ~ N(0, I) and a_j² = 1/width, K_1 and K_2/width converge to E φ'φ' ⟨x,z⟩ and E φφ (theory.activations.duals).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.theory.activations.functions import ActivationFunction


def first_layer_kernel(
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    W: Float[Array, "w d"],
    a: Float[Array, " w"],
    phi: ActivationFunction,
) -> Float[Array, "n m"]:
    """K_1, the tangent kernel of the hidden weights W with head a."""
    left, right = _slopes(X, W, phi) * (a * a), _slopes(Z, W, phi)
    return dot(left, right.T) * dot(X, Z.T)


def head_kernel(
    X: Float[Array, "n d"], Z: Float[Array, "m d"], W: Float[Array, "w d"], phi: ActivationFunction
) -> Float[Array, "n m"]:
    """K_2, the tangent kernel of the head: random features."""
    left, right = (phi(dot(x, W.T)) for x in (X, Z))
    return dot(left, right.T)


def _slopes(X: Array, W: Array, phi: ActivationFunction) -> Array:
    """φ'(XWᵀ)."""
    hidden = dot(X, W.T)
    return jax.jvp(phi, (hidden,), (jnp.ones_like(hidden),))[1]
