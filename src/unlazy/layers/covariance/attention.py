"""Self-attention: f → Z f with Z = ζ(scores), fixed in the limit: Σ → Z(x) Σ Z(z)ᵀ [C4]. Hron et al. (2020)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.linalg import einsum
from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.state import State, look, propagate, reaches
from unlazy.layers.description import SelfAttention, Shape


@look.register
def _weights(layer: SelfAttention, state: State) -> Array:
    """Z(x) = ζ(σ_q σ_k (Σ(x,x) + σ_p² I))."""
    same = jnp.eye(state.grid[0].size, dtype=state.sigma.dtype)
    scores = layer.sigma_query_key * (state.sigma + layer.sigma_position**2 * same)
    return jax.nn.softmax(scores, axis=-1) if layer.weighing == "softmax" else scores


@propagate.register
def _attended(layer: SelfAttention, state: State, left: Array, right: Array) -> State:
    """Two weight matrices, the values' and the outputs', each of which sees the whole covariance."""
    layer.after(state.shape)
    moved = state.each(lambda A: einsum("ip,jq,pq->ij", left, right, A))
    scale = (layer.sigma_value * layer.sigma_out) ** 2
    weights, bias = scale * moved.sigma, layer.sigma_b**2
    theta = None if state.theta is None else 2 * weights + bias + scale * moved.theta
    return moved._replace(sigma=weights + bias, theta=theta, channels=layer.width, normal=True)


@reaches.register
def _everywhere(layer: SelfAttention, shape: Shape, out: tuple[int, ...]) -> tuple[Any, ...]:
    return (position_pairs.ALL,)
