"""Flattening, resizing and indexing of positions: linear maps Σ → P Σ Pᵀ, Θ → P Θ Pᵀ [C1]."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.arrays import einsum
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape, sized
from unlazy.layers.protocol.covariance import State, accepts_blocks, propagate, required_pairs
from unlazy.layers.protocol.finite_evaluation import Context, apply, shape_of
from unlazy.layers.protocol.position_pairs import positive_integers


class Flatten(Layer):
    """Positions become channels.

    Examples
    --------
    >>> from unlazy.layers import Flatten, Shape
    >>> Flatten().after(Shape((4, 4), 3)).channels
    48
    """

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        return Shape((), None if shape.channels is None else shape.channels * math.prod(shape.positions))


class ImageResize(Layer):
    """Resize positions by interpolation, as `jax.image.resize` without antialiasing.

    Parameters
    ----------
    sizes : int or tuple of int
        New sizes, one for all axes or one per axis.
    method : str, default "linear"
        Interpolation method of `jax.image.resize`.

    Examples
    --------
    >>> from unlazy.layers import ImageResize, Shape
    >>> ImageResize(8).after(Shape((4, 4), 3)).positions
    (8, 8)
    """

    sizes: tuple[int, ...] = eqx.field(static=True, converter=positive_integers("sizes"))
    method: str = eqx.field(default="linear", static=True)

    def matrices(self, positions: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Interpolation matrix of every axis, out × in."""
        return tuple(_resizing(n, size, self.method) for n, size in zip(positions, self._each(positions)))

    def _each(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        if len(self.sizes) not in (1, len(positions)) or not positions:
            raise ValueError(f"sizes {self.sizes} do not fit points with {len(positions)} axes of positions")
        return self.sizes * len(positions) if len(self.sizes) == 1 else self.sizes

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        return Shape(self._each(shape.positions), shape.channels)


def _resizing(n: int, size: int, method: str) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.image.resize(jnp.eye(n), (size, n), method, antialias=False))


class Index(Layer):
    """Select positions: a slice per axis, or an integer, which removes the axis.

    Parameters
    ----------
    *at : int or slice
        Index of the first axes; the others stay whole.

    Examples
    --------
    >>> from unlazy.layers import Index, Shape
    >>> Index(0, slice(0, 4)).after(Shape((8, 8), 3)).positions
    (4,)
    """

    at: tuple[int | tuple[int | None, int | None, int | None], ...] = eqx.field(static=True)

    def __init__(self, *at: int | slice):
        # slices have no hash before Python 3.12, and what is static needs one
        self.at = tuple((a.start, a.stop, a.step) if isinstance(a, slice) else int(a) for a in at)
        if any(isinstance(a, slice) and (a.step or 1) < 1 for a in at):
            raise ValueError(f"slices go forward, got {at}")

    @property
    def chosen(self) -> tuple[int | slice, ...]:
        """The indices as given: a slice or an integer for each of the first axes."""
        return tuple(slice(*a) if isinstance(a, tuple) else a for a in self.at)

    def ranges(self, positions: tuple[int, ...]) -> tuple[range, ...]:
        """Selected positions of every axis."""
        if len(self.at) > len(positions):
            raise ValueError(f"{len(self.at)} indices for {len(positions)} axes of positions")
        at = (*self.chosen, *(slice(None),) * (len(positions) - len(self.at)))
        found = tuple(
            range(n)[a] if isinstance(a, slice) else range(n)[a : a + 1 or None] for n, a in zip(positions, at)
        )
        if not all(found):
            raise ValueError(f"index {self.chosen} leaves nothing of {sized(positions)} positions")
        return found

    def dropped(self) -> tuple[int, ...]:
        """Axes that are removed."""
        return tuple(i for i, a in enumerate(self.at) if isinstance(a, int))

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        kept = tuple(len(r) for i, r in enumerate(self.ranges(shape.positions)) if i not in self.dropped())
        return Shape(kept, shape.channels)


@propagate.register
@accepts_blocks
def _propagate_flatten(layer: Flatten, state: State, left: Any, right: Any) -> State:
    """The mean over p of Σ_pp: channels of all positions in one sum."""
    count = math.prod(state.shape.positions)
    channels = layer.after(state.shape).channels
    # entries of one channel may differ in variance from position to position: no longer alike
    normal = state.normal and count == 1
    axes = tuple(range(len(state.grid)))
    mean = state.each(lambda A: jnp.sum(position_pairs.diagonal(A, state.grid), axes) / count)
    return mean._replace(grid=(), channels=channels, normal=normal)


@required_pairs.register
def _reaches_flatten(layer: Flatten, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (0,) * len(shape.positions)


@propagate.register
def _propagate_resize(layer: ImageResize, state: State, left: Any, right: Any) -> State:
    matrices = [jnp.asarray(M, state.sigma.dtype) for M in layer.matrices(state.shape.positions)]
    resized = state.along(
        lambda A, a, axis, M: (position_pairs.mapped(A, a, M), axis._replace(size=M.shape[0])), matrices
    )
    return resized


@propagate.register
@accepts_blocks
def _propagate_index(layer: Index, state: State, left: Any, right: Any) -> State:
    some = state.along(position_pairs.chosen, layer.ranges(state.shape.positions))
    dropped = layer.dropped()
    grid = tuple(axis for a, axis in enumerate(some.grid) if a not in dropped)
    axes = tuple(2 * a for a in dropped)

    def of_one(A: Array) -> Array:
        # of an axis with one position the pair p = q is left, in the middle of its planes
        for a in reversed(dropped):
            A = jnp.take(A, some.grid[a].reach or 0, axis=2 * a + 1)[(*(slice(None),) * (2 * a), 0)]
        return A

    return some.each(of_one)._replace(grid=grid) if axes else some


@required_pairs.register
def _reaches_index(layer: Index, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    rest = iter(out)
    ranges = layer.ranges(shape.positions)
    return tuple(
        0 if a in layer.dropped() else min(next(rest) * r.step, position_pairs.ALL) for a, r in enumerate(ranges)
    )  # fmt: skip


@apply.register
def _apply_flatten(layer: Flatten, params: Any, x: Array, context: Context) -> Array:
    return x.reshape(x.shape[0], -1)


@apply.register
def _apply_resize(layer: ImageResize, params: Any, x: Array, context: Context) -> Array:
    for a, M in enumerate(layer.matrices(shape_of(x).positions)):
        x = jnp.moveaxis(einsum("ip,...p->...i", jnp.asarray(M, x.dtype), jnp.moveaxis(x, a + 1, -1)), -1, a + 1)
    return x


@apply.register
def _apply_index(layer: Index, params: Any, x: Array, context: Context) -> Array:
    return x[(slice(None), *layer.chosen)]


@required_pairs.register
def _reaches_all_pairs(layer: ImageResize, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (position_pairs.ALL,) * len(shape.positions)
