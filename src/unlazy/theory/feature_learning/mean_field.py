"""Two-layer networks of infinite width that learn features, as averages over independent neurons [M1, M2].

f_μ = (σ/γ_0) E[z φ(h_μ)],  h = E w,  E Eᵀ = K^x: a neuron has hidden weights w and head z, initialized at N(0, I).
Gradient flow on Σ_μ ℓ(f_μ, y_μ) with rates γ² = γ_0² · width gives

dw/dt = γ_0 σ Σ_α Δ_α·z φ'(h_α) E_α,  dz/dt = γ_0 σ Σ_α Δ_α φ(h_α),  Δ = -∂ℓ/∂f,

so that h_μ moves by γ_0 σ Σ_α Δ_α·z φ'(h_α) K^x_μα, and f by Θ Δ,

Θ_μα = σ² (E φ(h_μ)φ(h_α) + E[z² φ'(h_μ)φ'(h_α)] K^x_μα).

σ is the head's σ_w; theory.md and the papers use 1. Bordelon and Pehlevan, Self-consistent dynamical field theory of
kernel evolution in wide neural networks (2022); Mei, Montanari and Nguyen (2018). The functions average over the rows
of w and z: Monte Carlo estimates of the limit, or a network with that many neurons.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.infinite_width.architecture import MLP

Scalar = float | Float[Array, ""]


def embed(network: MLP, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
    """(σ_w x/√d, σ_b), whose inner products are K^x = Σ¹ [K7]; without the last coordinate if there are no biases."""
    E = network.sigma_w[0] * X / (math.sqrt(X.shape[1]) if network.scale_input else 1.0)
    if not network.biases:
        return E
    return jnp.concatenate([E, jnp.full((X.shape[0], 1), network.sigma_b[0], E.dtype)], axis=1)


def value_and_slope(phi: ActivationFunction, h: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """φ(h) and φ'(h)."""
    return jax.jvp(phi, (h,), (jnp.ones_like(h),))


def outputs(
    w: Float[Array, "N r"], z: Float[Array, "N c"], E: Float[Array, "n r"], phi: ActivationFunction, scale: Scalar
) -> Float[Array, "n c"]:
    """f_μ = scale · mean of z φ(h_μ) [M2]; scale is σ/γ_0."""
    return scale / w.shape[0] * dot(phi(dot(E, w.T)), z)


def velocity(
    w: Float[Array, "N r"],
    z: Float[Array, "N c"],
    E: Float[Array, "n r"],
    pull: Float[Array, "n c"],
    phi: ActivationFunction,
    scale: Scalar,
) -> tuple[Float[Array, "N r"], Float[Array, "N c"]]:
    """dw/dt and dz/dt [M2]; `pull` is Δ = -∂ℓ/∂f, zero at test points, and scale is γ_0 σ."""
    value, slope = value_and_slope(phi, dot(E, w.T))
    back = slope * dot(pull, z.T)
    return scale * dot(back.T, E), scale * dot(value.T, pull)


def kernels(
    w: Float[Array, "N r"], z: Float[Array, "N c"], E: Float[Array, "n r"], phi: ActivationFunction
) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Φ = E φφ and G = E Σ_k z_k² φ'φ', summed over outputs k [M2]."""
    value, slope = value_and_slope(phi, dot(E, w.T))
    share = 1 / w.shape[0]
    return share * dot(value, value.T), share * dot(slope * jnp.sum(z * z, 1), slope.T)


def tangent(
    Phi: Float[Array, "n m"], G: Float[Array, "n m"], K: Float[Array, "n m"], sigma_w: Scalar, sigma_b: Scalar, c: int
) -> Float[Array, "n m"]:
    """Θ = σ_w² (c Φ + G ∘ K^x) + c σ_b², summed over c outputs [M2]."""
    return sigma_w**2 * (c * Phi + G * K) + c * sigma_b**2
