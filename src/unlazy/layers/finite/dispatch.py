"""What every layer of a description does to arrays: its parameters at the start, and its outputs [K6, C1].

A layer is asked by its type: `start` draws its parameters, `apply` evaluates it. A layer of your own registers with
`apply`, and with `start` where it has parameters. Arrays are points × positions × channels.
"""

from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.precision import default_float
from unlazy.layers import parametrization
from unlazy.layers.description import Layer, Shape, Weights


class Context(NamedTuple):
    """What layers may need besides their input: the graphs of the points, a key for dropout, the parametrization."""

    pattern: Array | None = None
    key: PRNGKeyArray | None = None
    standard: bool = False


@singledispatch
def start(layer: Layer, key: PRNGKeyArray, shape: Shape, context: Context) -> Any:
    """Parameters at the start: none, unless the layer says so."""
    return ()


@singledispatch
def apply(layer: Layer, params: Any, x: Array, context: Context) -> Array:
    """The layer's outputs at n points."""
    raise ValueError(
        f"{type(layer).__name__} does not say what it does to arrays: register a function with unlazy.layers.apply"
    )


@singledispatch
def rates(layer: Layer) -> Any:
    """Layer-wise learning rates, shaped like the parameters or coarser."""
    return ()


def shape_of(x: Array) -> Shape:
    return Shape(x.shape[1:-1], x.shape[-1])


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape, default_float())


def drawn(
    layer: Weights, key: PRNGKeyArray, shape: Shape, weight: tuple, bias: tuple, context: Context
) -> parametrization.Layer:
    """N(0,1) in the NTK parametrization, N(0, σ_w²/fan-in) in the standard one."""
    one, two = jax.random.split(key)
    found = parametrization.Layer(normal(one, weight), normal(two, bias))
    by = spread(layer, shape)
    return jax.tree.map(lambda s, v: (s * v).astype(v.dtype), by, found) if context.standard else found


def multipliers(layer: Weights, shape: Shape, context: Context) -> parametrization.Layer:
    """What multiplies weights and biases in the forward pass."""
    return parametrization.Layer(1.0, 1.0) if context.standard else spread(layer, shape)


def spread(layer: Weights, shape: Shape) -> parametrization.Layer:
    """Standard deviations of the products of multipliers and parameters."""
    fan_in = layer.fan_in(shape) or 1
    return parametrization.Layer(layer.sigma_w / jnp.sqrt(float(fan_in)), layer.sigma_b)


@rates.register
def _rates(layer: Weights) -> parametrization.Layer:
    return parametrization.Layer(layer.rate, layer.bias_rate)
