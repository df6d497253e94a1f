"""Layers with weights: initialization, learning rates, effect on covariances [K6, K7, K8], and the dense layer.

Σ' = σ_w²/k Σ_Δ V_{p+Δ,q+Δ} + σ_b²,   Θ' = r σ_w²/k Σ_Δ V_{p+Δ,q+Δ} + r_b σ_b² + σ_w²/k Σ_Δ Θ_{p+Δ,q+Δ}, r the rates.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.layers.protocol.base import Layer, Shape
from unlazy.layers.protocol.covariance import State, accepts_blocks, propagate
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params, normal, rates, shape_of
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.theory.infinite_width.architecture import SQRT2, validate_scale


def _number(what: str) -> Any:
    return lambda value: validate_scale(what, value)


def _width(value: int | None) -> int | None:
    return None if value is None else check_positive_integer("width (channels out)", value)


class Weights(Layer):
    """Base class of layers with weights: f = σ_w W h/√fan-in + σ_b b in every position, W, b ~ N(0, 1) [K6].

    Parameters
    ----------
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy.layers import Conv, Dense, Weights
    >>> isinstance(Dense(), Weights), isinstance(Conv(3), Weights)
    (True, True)
    """

    sigma_w: Any = eqx.field(default=SQRT2, converter=_number("sigma_w"))
    sigma_b: Any = eqx.field(default=0.0, converter=_number("sigma_b"))
    width: int | None = eqx.field(default=None, static=True, converter=_width, kw_only=True)
    rate: Any = eqx.field(default=1.0, converter=_number("rate"), kw_only=True)
    bias_rate: Any = eqx.field(default=1.0, converter=_number("bias_rate"), kw_only=True)

    @property
    def weighs(self) -> bool:
        """Whether the layer has trainable weights: always."""
        return True

    def fan_in(self, shape: Shape) -> int | None:
        """Number of weights per output; None if it depends on the width of the network."""
        return shape.channels


def weighted(layer: Weights, state: State) -> State:
    """Apply σ_w², σ_b² and the learning rates to a state whose windows have been averaged.

    Parameters
    ----------
    layer : Weights
        The layer with the standard deviations and rates.
    state : State
        Covariances averaged over the window of the layer.

    Returns
    -------
    State
        Covariances after the weights.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import Dense, State, weighted
    >>> state = State(jnp.array(1.0), 0.0, (), 3)
    >>> float(weighted(Dense(2.0, 1.0), state).sigma)  # 2² · 1 + 1²
    5.0
    """
    weights, bias = layer.sigma_w**2 * state.sigma, layer.sigma_b**2
    theta = state.theta
    if theta is not None:
        theta = layer.rate * weights + layer.bias_rate * bias + layer.sigma_w**2 * theta
    return state._replace(sigma=weights + bias, theta=theta, channels=layer.width, normal=True)


def drawn(layer: Weights, key: PRNGKeyArray, shape: Shape, weight: tuple, bias: tuple, context: Context) -> WeightBias:
    """Random parameters: N(0, 1) in the NTK parametrization, N(0, σ_w²/fan-in) in the standard one."""
    one, two = jax.random.split(key)
    found = WeightBias(normal(one, weight), normal(two, bias))
    by = spread(layer, shape)
    return jax.tree.map(lambda s, v: (s * v).astype(v.dtype), by, found) if context.standard else found


def multipliers(layer: Weights, shape: Shape, context: Context) -> WeightBias:
    """Factors of weights and biases in the forward pass."""
    return WeightBias(1.0, 1.0) if context.standard else spread(layer, shape)


def spread(layer: Weights, shape: Shape) -> WeightBias:
    """Standard deviations of multiplier times parameter."""
    fan_in = layer.fan_in(shape) or 1
    return WeightBias(layer.sigma_w / jnp.sqrt(float(fan_in)), layer.sigma_b)


@rates.register
def _weight_rates(layer: Weights) -> WeightBias:
    return WeightBias(layer.rate, layer.bias_rate)


class Dense(Weights):
    """Fully connected layer over channels, shared by all positions [K6, K7, K8].

    Parameters
    ----------
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy import NTK, layers
    >>> kernel = NTK(layers.serial(layers.Dense(), "relu", layers.Dense()))
    >>> kernel.gram([[1.0, 0.0], [0.0, 1.0]]).shape
    (2, 2)
    """

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        return Shape(shape.positions, self.width)


@propagate.register
@accepts_blocks
def _propagate_dense(layer: Dense, state: State, left: Any, right: Any) -> State:
    return weighted(layer, state)


@init_params.register
def _start_dense(layer: Dense, key: PRNGKeyArray, shape: Shape, context: Context) -> WeightBias:
    return drawn(layer, key, shape, (shape.channels, layer.width), (layer.width,), context)


@apply.register
def _apply_dense(layer: Dense, params: WeightBias, x: Array, context: Context) -> Array:
    by = multipliers(layer, shape_of(x), context)
    return by.weight * dot(x, params.weight) + by.bias * params.bias
