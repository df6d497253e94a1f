"""Linear maps of positions: pooling, flattening, resizing, indices, graphs: Σ → P Σ Pᵀ, Θ → P Θ Pᵀ [C1]."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.linalg import einsum
from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.state import State, look, of_blocks, propagate, reaches
from unlazy.layers.description import (
    Aggregate,
    AvgPool,
    Flatten,
    GlobalAvgPool,
    GlobalSumPool,
    ImageResize,
    Index,
    Shape,
    SumPool,
)  # fmt: skip


@propagate.register(AvgPool)
@propagate.register(SumPool)
@of_blocks
def _pooled(layer: Any, state: State, left: Any, right: Any) -> State:
    positions = state.shape.positions
    factor = layer.factor(positions) ** 2
    # means over positions are Gaussian where they were, sums over independent channels too
    return state.along(position_pairs.pooled, layer.over(positions)).each(lambda A: factor * A)


@reaches.register(AvgPool)
@reaches.register(SumPool)
def _pool_reaches(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    over = layer.over(shape.positions)
    return tuple(min(r * w.stride + (w.size - 1) * w.dilation, position_pairs.ALL) for w, r in zip(over, out))


@propagate.register(GlobalSumPool)
@propagate.register(GlobalAvgPool)
@of_blocks
def _pooled_to_one(layer: GlobalSumPool, state: State, left: Any, right: Any) -> State:
    factor = layer.factor(state.shape.positions) ** 2
    return state.each(lambda A: factor * position_pairs.total(A, state.grid), grid=())


@propagate.register
@of_blocks
def _flat(layer: Flatten, state: State, left: Any, right: Any) -> State:
    """The mean over p of Σ_pp: channels of all positions in one sum."""
    count = math.prod(state.shape.positions)
    channels = layer.after(state.shape).channels
    # entries of one channel may differ in variance from position to position: no longer alike
    normal = state.normal and count == 1
    axes = tuple(range(len(state.grid)))
    mean = state.each(lambda A: jnp.sum(position_pairs.diagonal(A, state.grid), axes) / count, grid=())
    return mean._replace(channels=channels, normal=normal)


@reaches.register
def _flat_reaches(layer: Flatten, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (0,) * len(shape.positions)


@propagate.register
def _resized(layer: ImageResize, state: State, left: Any, right: Any) -> State:
    matrices = [jnp.asarray(M, state.sigma.dtype) for M in layer.matrices(state.shape.positions)]
    resized = state.along(
        lambda A, a, axis, M: (position_pairs.mapped(A, a, M), axis._replace(size=M.shape[0])), matrices
    )
    return resized


@propagate.register
@of_blocks
def _chosen(layer: Index, state: State, left: Any, right: Any) -> State:
    some = state.along(position_pairs.chosen, layer.ranges(state.shape.positions))
    dropped = layer.dropped()
    grid = tuple(axis for a, axis in enumerate(some.grid) if a not in dropped)
    axes = tuple(2 * a for a in dropped)

    def of_one(A: Array) -> Array:
        # of an axis with one position the pair p = q is left, in the middle of its planes
        for a in reversed(dropped):
            A = jnp.take(A, some.grid[a].reach or 0, axis=2 * a + 1)[(*(slice(None),) * (2 * a), 0)]
        return A

    return some.each(of_one, grid=grid) if axes else some


@reaches.register
def _chosen_reaches(layer: Index, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    rest = iter(out)
    ranges = layer.ranges(shape.positions)
    return tuple(
        0 if a in layer.dropped() else min(next(rest) * r.step, position_pairs.ALL) for a, r in enumerate(ranges)
    )  # fmt: skip


@look.register
def _graph(layer: Aggregate, state: State) -> Array:
    if state.pattern is None:
        raise ValueError(f"{layer.title} needs graphs: points are pairs (nodes × channels, matrix of nodes × nodes)")
    return state.pattern


@propagate.register
def _aggregated(layer: Aggregate, state: State, left: Array, right: Array) -> State:
    """A(x)ᵀ Σ A(z)."""
    return state.each(lambda A: einsum("pi,qj,pq->ij", left, right, A))


@reaches.register(GlobalSumPool)
@reaches.register(GlobalAvgPool)
@reaches.register(ImageResize)
@reaches.register(Aggregate)
def _everywhere(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (position_pairs.ALL,) * len(shape.positions)
