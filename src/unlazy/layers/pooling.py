"""Sums and means over windows of positions, or over all of them [C1]."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape, sized
from unlazy.layers.protocol.covariance import State, accepts_blocks, propagate, required_pairs
from unlazy.layers.protocol.finite_evaluation import Context, apply, shape_of
from unlazy.layers.protocol.position_pairs import Window, padding_name, positive_integers, windows


class _Pool(Layer):
    """Base class of sums and means over windows."""

    window: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(self, window: int | Sequence[int], strides: int | Sequence[int] | None = None, padding: str = "valid"):
        self.window = positive_integers("the window")(window)
        self.strides = self.window if strides is None else positive_integers("strides")(strides)
        self.padding = padding_name("same", "valid")(padding)

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        """The window on every axis."""
        return windows(positions, self.window, self.strides, padding=self.padding)

    def factor(self, positions: tuple[int, ...]) -> float:
        """Factor of a sum over a window."""
        return 1.0

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        counts = tuple(w.count(n) for w, n in zip(self.over(shape.positions), shape.positions))
        return Shape(counts, shape.channels)

    @property
    def title(self) -> str:
        """Name of the layer in messages."""
        return f"{type(self).__name__} {sized(self.window)}"


class SumPool(_Pool):
    """Sum pooling over windows of positions [C1].

    Parameters
    ----------
    window : int or tuple of int
        Size of the window, one number for all axes or one per axis.
    strides : int or tuple of int, optional
        Step of the window; by default its size.
    padding : {"valid", "same"}, default "valid"
        No padding, or zeros outside.

    Examples
    --------
    >>> from unlazy.layers import Shape, SumPool
    >>> SumPool(2).after(Shape((8, 8), 3)).positions
    (4, 4)
    """

    if TYPE_CHECKING:  # type checkers would derive it from the fields
        __init__ = _Pool.__init__


class AvgPool(_Pool):
    """Average pooling over windows of positions; zeros outside count [C1].

    Parameters
    ----------
    window : int or tuple of int
        Size of the window, one number for all axes or one per axis.
    strides : int or tuple of int, optional
        Step of the window; by default its size.
    padding : {"valid", "same"}, default "valid"
        No padding, or zeros outside.

    Examples
    --------
    >>> from unlazy.layers import AvgPool, Shape
    >>> AvgPool(2).after(Shape((8, 8), 3)).positions
    (4, 4)
    """

    if TYPE_CHECKING:
        __init__ = _Pool.__init__

    def factor(self, positions: tuple[int, ...]) -> float:
        """One over the points of a window."""
        return 1 / math.prod(w.size for w in self.over(positions))


class GlobalSumPool(Layer):
    """Sum over all positions.

    Examples
    --------
    >>> from unlazy.layers import GlobalSumPool, Shape
    >>> GlobalSumPool().after(Shape((8, 8), 3)).positions
    ()
    """

    def factor(self, positions: tuple[int, ...]) -> float:
        """Factor of the sum over all positions."""
        return 1.0

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        if not shape.positions:
            raise ValueError("needs positions (pixels, tokens) to pool over, and these points have none")
        return Shape((), shape.channels)


class GlobalAvgPool(GlobalSumPool):
    """Mean over all positions.

    Examples
    --------
    >>> from unlazy.layers import GlobalAvgPool, Shape
    >>> GlobalAvgPool().after(Shape((8, 8), 3)).positions
    ()
    """

    def factor(self, positions: tuple[int, ...]) -> float:
        """One over the number of positions."""
        return 1 / math.prod(positions)


@propagate.register(AvgPool)
@propagate.register(SumPool)
@accepts_blocks
def _propagate_pool(layer: _Pool, state: State, left: PyTree, right: PyTree) -> State:
    positions = state.shape.positions
    factor = layer.factor(positions) ** 2
    # means over positions are Gaussian where they were, sums over independent channels too
    return state.along(position_pairs.pooled, layer.over(positions)).each(lambda A: factor * A)


@required_pairs.register(AvgPool)
@required_pairs.register(SumPool)
def _reaches_pool(layer: _Pool, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    over = layer.over(shape.positions)
    return tuple(min(r * w.stride + (w.size - 1) * w.dilation, position_pairs.ALL) for w, r in zip(over, out))


@propagate.register(GlobalSumPool)
@propagate.register(GlobalAvgPool)
@accepts_blocks
def _propagate_global_pool(layer: GlobalSumPool, state: State, left: PyTree, right: PyTree) -> State:
    factor = layer.factor(state.shape.positions) ** 2
    return state.each(lambda A: factor * position_pairs.total(A, state.grid))._replace(grid=())


@apply.register(AvgPool)
@apply.register(SumPool)
def _apply_pool(layer: _Pool, params: PyTree, x: Array, context: Context) -> Array:
    positions = shape_of(x).positions
    over = layer.over(positions)
    padding = [(0, 0), *((w.low, w.high) for w in over), (0, 0)]
    sizes, strides = ((1, *(getattr(w, name) for w in over), 1) for name in ("size", "stride"))
    # a zero of NumPy's: with one of JAX's the sum is not known to be one, and has no derivative
    summed = jax.lax.reduce_window(x, np.zeros((), x.dtype), jax.lax.add, sizes, strides, padding)
    return layer.factor(positions) * summed


@apply.register(GlobalSumPool)
@apply.register(GlobalAvgPool)
def _apply_global_pool(layer: GlobalSumPool, params: PyTree, x: Array, context: Context) -> Array:
    return layer.factor(shape_of(x).positions) * jnp.sum(x, tuple(range(1, x.ndim - 1)))


@required_pairs.register(GlobalSumPool)
@required_pairs.register(GlobalAvgPool)
def _reaches_all_pairs(layer: GlobalSumPool, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (position_pairs.ALL,) * len(shape.positions)
