"""Self-attention: f → Z f with Z = ζ(scores), deterministic in the limit: Σ → Z(x) Σ Z(z)ᵀ [C4].

Hron, Bahri, Sohl-Dickstein and Novak (2020).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot, einsum
from unlazy.core.errors import did_you_mean
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape
from unlazy.layers.protocol.covariance import State, precompute, propagate, required_pairs
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params, normal, rates
from unlazy.theory.infinite_width.architecture import validate_scale

WEIGHINGS = ("softmax", "identity")


def _number(what: str) -> Any:
    return lambda value: validate_scale(what, value)


class SelfAttention(Layer):
    """Self-attention with tied queries and keys [C4].

    f → σ_o W_O (σ_v W_V f ζ(scores)ᵀ) + σ_b b with scores f_p·f_q/d and W_Q = W_K.

    Parameters
    ----------
    sigma_value, sigma_out, sigma_b : float
        Standard deviations of values, outputs and biases.
    sigma_query_key : float, default 1
        σ_q σ_k, the factor of the scores.
    sigma_position : float, default 0
        Standard deviation of an independent random embedding of every position, added in the scores only.
    weighing : {"softmax", "identity"}, default "softmax"
        ζ, applied to the scores.
    width : int, optional
        Channels out in a finite network; by default the width of the network.

    References
    ----------
    Hron, Bahri, Sohl-Dickstein and Novak (2020), Infinite attention.

    Examples
    --------
    >>> from unlazy.layers import SelfAttention, Shape
    >>> SelfAttention().after(Shape((5,), 3)).positions
    (5,)
    """

    sigma_value: Any = eqx.field(default=1.0, converter=_number("sigma_value"))
    sigma_out: Any = eqx.field(default=1.0, converter=_number("sigma_out"))
    sigma_b: Any = eqx.field(default=0.0, converter=_number("sigma_b"))
    sigma_query_key: Any = eqx.field(default=1.0, converter=_number("sigma_query_key"))
    sigma_position: Any = eqx.field(default=0.0, converter=_number("sigma_position"))
    weighing: str = eqx.field(default="softmax", static=True)
    width: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.weighing not in WEIGHINGS:
            raise ValueError(f"unknown weighing {self.weighing!r}{did_you_mean(str(self.weighing), WEIGHINGS)}")

    @property
    def weighs(self) -> bool:
        """Whether the layer has trainable weights: always."""
        return True

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        if len(shape.positions) != 1:
            raise ValueError(
                f"needs one axis of positions (tokens), got {len(shape.positions)}: points of shape tokens × channels"
            )
        return Shape(shape.positions, self.width)


@precompute.register
def _precompute_attention(layer: SelfAttention, state: State) -> Array:
    """Z(x) = ζ(σ_q σ_k (Σ(x,x) + σ_p² I))."""
    same = jnp.eye(state.grid[0].size, dtype=state.sigma.dtype)
    scores = layer.sigma_query_key * (state.sigma + layer.sigma_position**2 * same)
    return jax.nn.softmax(scores, axis=-1) if layer.weighing == "softmax" else scores


@propagate.register
def _propagate_attention(layer: SelfAttention, state: State, left: Array, right: Array) -> State:
    """Two weight matrices, the values' and the outputs', each of which sees the whole covariance."""
    layer.after(state.shape)
    moved = state.each(lambda A: einsum("ip,jq,pq->ij", left, right, A))
    scale = (layer.sigma_value * layer.sigma_out) ** 2
    weights, bias = scale * moved.sigma, layer.sigma_b**2
    theta = None if state.theta is None else 2 * weights + bias + scale * moved.theta
    return moved._replace(sigma=weights + bias, theta=theta, channels=layer.width, normal=True)


@required_pairs.register
def _reaches_all_pairs(layer: SelfAttention, shape: Shape, out: tuple[int, ...]) -> tuple[Any, ...]:
    return (position_pairs.ALL,)


@init_params.register
def _start_attention(layer: SelfAttention, key: PRNGKeyArray, shape: Shape, context: Context) -> dict[str, Array]:
    """As in the NTK parametrization always; embeddings of positions are drawn with the rest."""
    keys = jax.random.split(key, 5)
    channels, width = shape.channels or 0, layer.width or 0
    return {
        "scores": normal(keys[0], (channels, width)), "values": normal(keys[1], (channels, width)),
        "out": normal(keys[2], (width, width)), "bias": normal(keys[3], (width,)),
        "positions": normal(keys[4], (*shape.positions, channels)),
    }  # fmt: skip


@apply.register
def _apply_attention(layer: SelfAttention, params: dict[str, Array], x: Array, context: Context) -> Array:
    channels, width = x.shape[-1], params["out"].shape[0]
    placed = x + layer.sigma_position * params["positions"]
    queries = dot(placed, params["scores"])
    scores = layer.sigma_query_key * einsum("npw,nqw->npq", queries, queries) / (channels * width)
    Z = jax.nn.softmax(scores, axis=-1) if layer.weighing == "softmax" else scores
    values = layer.sigma_value * dot(x, params["values"]) / jnp.sqrt(float(channels))
    mixed = einsum("npq,nqw->npw", Z, values)
    return layer.sigma_out * dot(mixed, params["out"]) / jnp.sqrt(float(width)) + layer.sigma_b * params["bias"]


@rates.register
def _rates_attention(layer: SelfAttention) -> float:
    return 1.0
