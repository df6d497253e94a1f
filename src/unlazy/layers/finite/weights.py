"""Dense layers, convolutions, self-attention: arrays in, arrays out [K6, C1, C4]."""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.linalg import HIGHEST, convolution, dot, einsum
from unlazy.layers.description import Conv, ConvLocal, ConvTranspose, Dense, SelfAttention, Shape
from unlazy.layers.description.windows import Window
from unlazy.layers.finite.dispatch import Context, apply, drawn, multipliers, normal, rates, shape_of, start
from unlazy.layers.parametrization import Layer as Parameters

IN_WINDOWS = 2**24
"""Bytes of all windows of a batch up to which the CPU convolves by one product of them with the weights."""


@start.register
def _start_dense(layer: Dense, key: PRNGKeyArray, shape: Shape, context: Context) -> Parameters:
    return drawn(layer, key, shape, (shape.channels, layer.width), (layer.width,), context)


@apply.register
def _dense(layer: Dense, params: Parameters, x: Array, context: Context) -> Array:
    by = multipliers(layer, shape_of(x), context)
    return by.weight * dot(x, params.weight) + by.bias * params.bias


@start.register(Conv)
@start.register(ConvTranspose)
def _start_convolution(layer: Conv | ConvTranspose, key: PRNGKeyArray, shape: Shape, context: Context) -> Parameters:
    sizes = tuple(w.size for w in layer.over(shape.positions))
    return drawn(layer, key, shape, (*sizes, shape.channels, layer.width), (layer.width,), context)


@apply.register(Conv)
@apply.register(ConvTranspose)
def _convolution(layer: Conv | ConvTranspose, params: Parameters, x: Array, context: Context) -> Array:
    shape = shape_of(x)
    over = layer.over(shape.positions)
    by = multipliers(layer, shape, context)
    x, padding, spread = padded(x, over)
    if devices.is_host() and x.nbytes * params.weight.size // (x.shape[-1] * params.weight.shape[-1]) <= IN_WINDOWS:
        found = by_windows(x, params.weight, over, padding, spread)
        return by.weight * found + by.bias * params.bias
    axes = axis_letters(len(over))
    found = convolution(
        x, params.weight, [w.stride for w in over], padding, spread, [w.dilation for w in over],
        (f"N{axes}C", f"{axes}IO", f"N{axes}C"),
    )  # fmt: skip
    return by.weight * found + by.bias * params.bias


def by_windows(x: Array, weight: Array, over: tuple[Window, ...], padding: list, spread: list) -> Array:
    """The convolution as one product of every window's entries with the weights, which are laid out beside each other.

    The CPU's convolutions are slow where many have weights or gradients of their own (Jacobians point by point,
    networks trained side by side): such products are not.
    """
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*p, s - 1) for p, s in zip(padding, spread)), (0, 0, 0)])
    counts = [(n - w.span) // w.stride + 1 for n, w in zip(x.shape[1:-1], over)]
    parts = []
    for offsets in itertools.product(*(range(w.size) for w in over)):
        part = x
        for axis, (j, w, count) in enumerate(zip(offsets, over, counts), start=1):
            first = j * w.dilation
            part = jax.lax.slice_in_dim(part, first, first + (count - 1) * w.stride + 1, w.stride, axis)
        parts.append(part)
    return dot(jnp.concatenate(parts, -1), weight.reshape(-1, weight.shape[-1]))


@start.register
def _start_local(layer: ConvLocal, key: PRNGKeyArray, shape: Shape, context: Context) -> Parameters:
    out = layer.after(shape)
    fan_in = (shape.channels or 0) * layer.points(shape)
    own = (*out.positions, layer.width)
    return drawn(layer, key, shape, (*out.positions, fan_in, layer.width), own, context)


@apply.register
def _local(layer: ConvLocal, params: Parameters, x: Array, context: Context) -> Array:
    """The window's entries of every position, times the position's own weights."""
    shape = shape_of(x)
    over = layer.over(shape.positions)
    by = multipliers(layer, shape, context)
    x, padding, _ = padded(x, over)
    axes = axis_letters(len(over))
    patches = jax.lax.conv_general_dilated_patches(
        x, [w.size for w in over], [w.stride for w in over], padding,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"), precision=HIGHEST,
    )  # fmt: skip
    return by.weight * einsum("n...i,...io->n...o", patches, params.weight) + by.bias * params.bias


def padded(x: Array, over: tuple[Window, ...]) -> tuple[Array, list[tuple[int, int]], list[int]]:
    """Circular padding done, other padding and zeros between positions told."""
    if not any(w.wraps for w in over):
        return x, [(w.low, w.high) for w in over], [w.spread for w in over]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((0, w.spread - 1, w.spread - 1) for w in over), (0, 0, 0)])
    x = jnp.pad(x, [(0, 0), *((w.low, w.high) for w in over), (0, 0)], mode="wrap")
    return x, [(0, 0)] * len(over), [1] * len(over)


def axis_letters(count: int) -> str:
    """Names of axes of positions for `jax.lax`'s convolutions."""
    return "0123456789"[:count]


@start.register
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
def _attention(layer: SelfAttention, params: dict[str, Array], x: Array, context: Context) -> Array:
    channels, width = x.shape[-1], params["out"].shape[0]
    placed = x + layer.sigma_position * params["positions"]
    queries = dot(placed, params["scores"])
    scores = layer.sigma_query_key * einsum("npw,nqw->npq", queries, queries) / (channels * width)
    Z = jax.nn.softmax(scores, axis=-1) if layer.weighing == "softmax" else scores
    values = layer.sigma_value * dot(x, params["values"]) / jnp.sqrt(float(channels))
    mixed = einsum("npq,nqw->npw", Z, values)
    return layer.sigma_out * dot(mixed, params["out"]) / jnp.sqrt(float(width)) + layer.sigma_b * params["bias"]


@rates.register
def _attention_rates(layer: SelfAttention) -> float:
    return 1.0
