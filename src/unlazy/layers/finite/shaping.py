"""Layers without weights, and layers of layers: arrays in, arrays out [C1, C3]."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.linalg import einsum
from unlazy.layers.description import (
    Activation,
    Aggregate,
    AvgPool,
    Concatenate,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalSumPool,
    Identity,
    ImageResize,
    Index,
    LayerNorm,
    Product,
    Serial,
    Shape,
    Sum,
    SumPool,
)  # fmt: skip
from unlazy.layers.finite.dispatch import Context, apply, rates, shape_of, start


@apply.register
def _activation(layer: Activation, params: Any, x: Array, context: Context) -> Array:
    return layer.phi(x)


@apply.register
def _normalized(layer: LayerNorm, params: Any, x: Array, context: Context) -> Array:
    axes = -1 if layer.over == "channels" else tuple(range(1, x.ndim))
    centered = x - jnp.mean(x, axes, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered * centered, axes, keepdims=True) + layer.epsilon)


@apply.register
def _dropped(layer: Dropout, params: Any, x: Array, context: Context) -> Array:
    """Without a key nothing is dropped."""
    if context.key is None:
        return x
    return jnp.where(jax.random.bernoulli(context.key, layer.keep, x.shape), x / layer.keep, 0)


@apply.register(AvgPool)
@apply.register(SumPool)
def _pooled(layer: Any, params: Any, x: Array, context: Context) -> Array:
    positions = shape_of(x).positions
    over = layer.over(positions)
    padding = [(0, 0), *((w.low, w.high) for w in over), (0, 0)]
    sizes, strides = ((1, *(getattr(w, name) for w in over), 1) for name in ("size", "stride"))
    # a zero of NumPy's: with one of JAX's the sum is not known to be one, and has no derivative
    summed = jax.lax.reduce_window(x, np.zeros((), x.dtype), jax.lax.add, sizes, strides, padding)
    return layer.factor(positions) * summed


@apply.register(GlobalSumPool)
@apply.register(GlobalAvgPool)
def _pooled_to_one(layer: GlobalSumPool, params: Any, x: Array, context: Context) -> Array:
    return layer.factor(shape_of(x).positions) * jnp.sum(x, tuple(range(1, x.ndim - 1)))


@apply.register
def _flat(layer: Flatten, params: Any, x: Array, context: Context) -> Array:
    return x.reshape(x.shape[0], -1)


@apply.register
def _resized(layer: ImageResize, params: Any, x: Array, context: Context) -> Array:
    for a, M in enumerate(layer.matrices(shape_of(x).positions)):
        x = jnp.moveaxis(einsum("ip,...p->...i", jnp.asarray(M, x.dtype), jnp.moveaxis(x, a + 1, -1)), -1, a + 1)
    return x


@apply.register
def _chosen(layer: Index, params: Any, x: Array, context: Context) -> Array:
    return x[(slice(None), *layer.chosen)]


@apply.register
def _aggregated(layer: Aggregate, params: Any, x: Array, context: Context) -> Array:
    if context.pattern is None:
        raise ValueError(f"{layer.title} needs graphs: points are pairs (nodes × channels, matrix of nodes × nodes)")
    return einsum("npq,npc->nqc", context.pattern, x)


@apply.register
def _nothing(layer: Identity, params: Any, x: Array, context: Context) -> Array:
    return x


@start.register
def _start_serial(layer: Serial, key: PRNGKeyArray, shape: Shape, context: Context) -> tuple:
    steps = layer.steps(shape)
    return tuple(start(one, k, before, context) for (before, one), k in zip(steps, jax.random.split(key, len(steps))))


@apply.register
def _serial(layer: Serial, params: tuple, x: Array, context: Context) -> Array:
    for i, (one, own) in enumerate(zip(layer.layers, params)):
        x = apply(one, own, x, _folded(context, i))
    return x


@start.register(Sum)
@start.register(Product)
@start.register(Concatenate)
def _start_branches(layer: Any, key: PRNGKeyArray, shape: Shape, context: Context) -> tuple:
    keys = jax.random.split(key, len(layer.branches))
    return tuple(start(branch, k, shape, context) for branch, k in zip(layer.branches, keys))


def _each(layer: Any, params: tuple, x: Array, context: Context) -> list[Array]:
    return [apply(b, own, x, _folded(context, i)) for i, (b, own) in enumerate(zip(layer.branches, params))]


@apply.register
def _sum(layer: Sum, params: tuple, x: Array, context: Context) -> Array:
    return sum(_each(layer, params, x, context))  # type: ignore[return-value]


@apply.register
def _product(layer: Product, params: tuple, x: Array, context: Context) -> Array:
    first, *others = _each(layer, params, x, context)
    for other in others:
        first = first * other
    return first


@apply.register
def _concatenated(layer: Concatenate, params: tuple, x: Array, context: Context) -> Array:
    return jnp.concatenate(_each(layer, params, x, context), axis=-1)


@rates.register
def _serial_rates(layer: Serial) -> tuple:
    return tuple(rates(one) for one in layer.layers)


@rates.register(Sum)
@rates.register(Product)
@rates.register(Concatenate)
def _branch_rates(layer: Any) -> tuple:
    return tuple(rates(branch) for branch in layer.branches)


def _folded(context: Context, i: int) -> Context:
    return context if context.key is None else context._replace(key=jax.random.fold_in(context.key, i))
