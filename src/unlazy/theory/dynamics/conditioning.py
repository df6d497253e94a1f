"""Conditioning of the Jacobian of a two-layer network, and how fast gradient descent then converges [L4].

f(x) = Σ_j a_j σ(w_j·x), with J(W) its n × (w d) Jacobian in W. If σ_min(J) > 0 the square loss ½‖f - y‖² satisfies the
Polyak–Łojasiewicz inequality with constant σ_min²; gradient descent converges linearly and ends near its start
(Soltanolkotabi, Javanmard and Lee 2019; Oymak and Soltanolkotabi 2020).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot

CURVATURE = {
    "softplus": 1 / 4,
    "sigmoid": 1 / (6 * math.sqrt(3)),
    "square": 2.0,
    "tanh": 4 / (3 * math.sqrt(3)),
    "erf": 4 / math.sqrt(2 * math.pi * math.e),
    "sin": 1.0,
    "cos": 1.0,
}
"""|σ''|_∞, the Lipschitz constant of σ', of activations that have one."""


def rank_limit(width: int, inputs: int, activation: str) -> int:
    """Largest n at which J can have rank n, so that σ_min(J) > 0, for generic data and weights: w d parameters.

    For σ = square the rows of J are symmetric d × d matrices of the form Σ_j w_j v_jᵀ + v_j w_jᵀ: d(d+1)/2 dimensions
    for w ≥ d, and w d - w(w-1)/2 otherwise (antisymmetric combinations of the w_j do not contribute).
    """
    if activation != "square":
        return width * inputs
    narrow = min(width, inputs)
    return narrow * inputs - narrow * (narrow - 1) // 2


def smallest_singular_scale(W: Float[Array, "w d"], a: Float[Array, " w"]) -> Float[Array, ""]:
    """d σ_min(W) ‖a‖_∞, comparable to σ_min(J(W)) for Gaussian data, w ≥ d and w d ≳ n [L4]."""
    return W.shape[1] * jnp.linalg.svd(W, compute_uv=False)[-1] * jnp.max(jnp.abs(a))


def jacobian_change_bound(
    X: Float[Array, "n d"], a: Float[Array, " w"], move: Float[Array, "w d"], curvature: float
) -> Float[Array, ""]:
    """‖J(W + δ) - J(W)‖ ≤ |σ''|_∞ ‖X ⊗ X‖ ‖a‖_∞ ‖δ‖_F, where the rows of X ⊗ X are x_i ⊗ x_i [L4].

    For ‖V‖_F = 1, entry i of the change applied to V is at most |σ''| ‖a‖_∞ Σ_j |δ_j·x_i| |v_j·x_i|, and by
    2αβ ≤ tα² + β²/t that sum is at most ⟨x_i x_iᵀ, M⟩, M = (δᵀδ/‖δ‖ + ‖δ‖ VᵀV)/2, whose norm is at most ‖δ‖_F.
    """
    gram = jnp.square(dot(X, X.T))
    return curvature * jnp.sqrt(jnp.linalg.eigvalsh(gram)[-1]) * jnp.max(jnp.abs(a)) * jnp.linalg.norm(move)


def loss_rate(step_size: Float[Array, ""] | float, smallest: Float[Array, ""]) -> Float[Array, ""]:
    """Decay rate of the loss per step in the slowest direction, 2 η σ_min² [L4]; exactly -2 log(1 - ησ_min²)."""
    return 2 * step_size * smallest**2


def distance_bound(residual: Float[Array, " n"], smallest: Float[Array, ""]) -> Float[Array, ""]:
    """Bound on the distance to the nearest linearized global minimum: ‖J⁺r‖ ≤ ‖y - f_0‖/σ_min(J) [L4]."""
    return jnp.linalg.norm(residual) / smallest
