"""Convolutions, transposed convolutions and locally connected layers [C1]."""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.arrays import HIGHEST, convolution, dot, einsum
from unlazy.layers.dense import Weights, drawn, multipliers, weighted
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Shape, sized
from unlazy.layers.protocol.covariance import State, accepts_blocks, propagate, required_pairs
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params, shape_of
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.layers.protocol.position_pairs import PADDINGS, Window, padding_name, positive_integers, transposed, windows
from unlazy.theory.infinite_width.architecture import SQRT2

IN_WINDOWS = 2**24
"""Bytes of all windows of a batch up to which the CPU convolves by one product of them with the weights."""


class _Windowed(Weights):
    """Weights over a window of positions; one number stands for every axis."""

    window: tuple[int, ...] = eqx.field(static=True, converter=positive_integers("the window"), kw_only=True)
    strides: tuple[int, ...] = eqx.field(static=True, converter=positive_integers("strides"), kw_only=True)
    padding: str = eqx.field(static=True, kw_only=True)

    def __init__(
        self, window: Any, sigma_w: Any = SQRT2, sigma_b: Any = 0.0, *, strides: Any = 1, padding: str = "same",
        width: int | None = None, rate: Any = 1.0, bias_rate: Any = 1.0,
    ):  # fmt: skip
        self.sigma_w, self.sigma_b, self.width, self.rate, self.bias_rate = sigma_w, sigma_b, width, rate, bias_rate
        self.window, self.strides = window, strides
        self.padding = padding_name(*PADDINGS)(padding)

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        """The window on every axis."""
        return windows(positions, self.window, self.strides, padding=self.padding)

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        over = self.over(shape.positions)
        return Shape(tuple(w.count(n) for w, n in zip(over, shape.positions)), self.width)

    def points(self, shape: Shape) -> int:
        """k, the number of points of a window."""
        return math.prod(w.size for w in self.over(shape.positions))

    def fan_in(self, shape: Shape) -> int | None:
        """Number of weights per output; None if it depends on the width of the network."""
        return None if shape.channels is None else shape.channels * self.points(shape)

    @property
    def title(self) -> str:
        """Name of the layer in messages."""
        return f"{type(self).__name__} {sized(self.window)} {self.padding}"


class Conv(_Windowed):
    """Convolution over any number of axes [C1]: f_p = σ_w Σ_Δ W_Δ h_{p+Δ}/√(k · channels) + σ_b b.

    Parameters
    ----------
    window : int or tuple of int
        Size of the window, one number for all axes or one per axis: ``Conv(3)`` is 3 × 3 on images.
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    strides : int or tuple of int, default 1
        Step of the window.
    dilation : int or tuple of int, default 1
        Distance between the points of a window.
    padding : {"same", "valid", "circular"}, default "same"
        Zeros outside, no padding, or periodic.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy.layers import Conv, Shape
    >>> Conv(3, strides=2).after(Shape((8, 8), 3)).positions
    (4, 4)
    """

    dilation: tuple[int, ...] = eqx.field(static=True, converter=positive_integers("dilation"), kw_only=True)

    def __init__(
        self, window: Any, sigma_w: Any = SQRT2, sigma_b: Any = 0.0, *, strides: Any = 1, dilation: Any = 1,
        padding: str = "same", width: int | None = None, rate: Any = 1.0, bias_rate: Any = 1.0,
    ):  # fmt: skip
        super().__init__(
            window, sigma_w, sigma_b, strides=strides, padding=padding, width=width, rate=rate, bias_rate=bias_rate
        )
        self.dilation = dilation

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        """The window on every axis."""
        return windows(positions, self.window, self.strides, self.dilation, self.padding)


class ConvLocal(_Windowed):
    """Locally connected layer: windows as in a convolution, with unshared weights and biases [C1].

    Different positions are then independent.

    Parameters
    ----------
    window : int or tuple of int
        Size of the window, one number for all axes or one per axis: ``Conv(3)`` is 3 × 3 on images.
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    strides : int or tuple of int, default 1
        Step of the window.
    padding : {"same", "valid", "circular"}, default "same"
        Zeros outside, no padding, or periodic.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy.layers import ConvLocal, Shape
    >>> ConvLocal(3).after(Shape((8, 8), 3)).positions
    (8, 8)
    """


class ConvTranspose(_Windowed):
    """Transposed convolution: `strides` - 1 zeros between positions, then a convolution [C1].

    Parameters
    ----------
    window : int or tuple of int
        Size of the window, one number for all axes or one per axis: ``Conv(3)`` is 3 × 3 on images.
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    strides : int or tuple of int, default 1
        Step of the window.
    padding : {"same", "valid", "circular"}, default "same"
        Zeros outside, no padding, or periodic.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy.layers import ConvTranspose, Shape
    >>> ConvTranspose(2, strides=2).after(Shape((4, 4), 3)).positions
    (8, 8)
    """

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        """The window on every axis."""
        if not positions:
            raise ValueError("needs positions (pixels, tokens), and these points have none: use Dense")
        return transposed(positions, self.window, self.strides, self.padding)


@propagate.register(Conv)
@propagate.register(ConvTranspose)
@accepts_blocks
def _propagate_convolution(layer: Conv | ConvTranspose, state: State, left: Any, right: Any) -> State:
    shape = state.shape
    k = layer.points(shape)
    summed = state.along(position_pairs.slid, layer.over(shape.positions))
    return weighted(layer, summed.each(lambda A: A / k))


@propagate.register
@accepts_blocks
def _propagate_local(layer: ConvLocal, state: State, left: Any, right: Any) -> State:
    """As a convolution, but positions that differ have nothing in common."""
    shape = state.shape
    k = layer.points(shape)
    summed = state.along(position_pairs.slid, layer.over(shape.positions)).each(lambda A: A / k)
    same = position_pairs.is_diagonal(summed.grid, summed.sigma)
    return weighted(layer, summed).each(lambda A: A * same)


@required_pairs.register(Conv)
@required_pairs.register(ConvLocal)
@required_pairs.register(ConvTranspose)
def _reaches_windows(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    """Both positions of a pair move together: planes stay apart [C2]. Round a circle the ends of an axis are near."""
    found = []
    for window, reach in zip(layer.over(shape.positions), out):
        if window.wraps and reach > 0:
            found.append(position_pairs.ALL)
        else:
            found.append(min(-(-reach * window.stride // window.spread), position_pairs.ALL))
    return tuple(found)


@init_params.register(Conv)
@init_params.register(ConvTranspose)
def _start_convolution(layer: Conv | ConvTranspose, key: PRNGKeyArray, shape: Shape, context: Context) -> WeightBias:
    sizes = tuple(w.size for w in layer.over(shape.positions))
    return drawn(layer, key, shape, (*sizes, shape.channels, layer.width), (layer.width,), context)


@apply.register(Conv)
@apply.register(ConvTranspose)
def _apply_convolution(layer: Conv | ConvTranspose, params: WeightBias, x: Array, context: Context) -> Array:
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
    """Convolution as one matrix product of all windows with the weights.

    On the CPU this is faster than XLA's convolution when every example has its own weights or gradients (per-example
    Jacobians, networks trained in parallel).
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


@init_params.register
def _start_local(layer: ConvLocal, key: PRNGKeyArray, shape: Shape, context: Context) -> WeightBias:
    out = layer.after(shape)
    fan_in = (shape.channels or 0) * layer.points(shape)
    own = (*out.positions, layer.width)
    return drawn(layer, key, shape, (*out.positions, fan_in, layer.width), own, context)


@apply.register
def _apply_local(layer: ConvLocal, params: WeightBias, x: Array, context: Context) -> Array:
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
    """Input with circular padding applied, the remaining padding, and the zeros between positions."""
    if not any(w.wraps for w in over):
        return x, [(w.low, w.high) for w in over], [w.spread for w in over]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((0, w.spread - 1, w.spread - 1) for w in over), (0, 0, 0)])
    x = jnp.pad(x, [(0, 0), *((w.low, w.high) for w in over), (0, 0)], mode="wrap")
    return x, [(0, 0)] * len(over), [1] * len(over)


def axis_letters(count: int) -> str:
    """Names of position axes for `jax.lax` convolutions."""
    return "0123456789"[:count]
