"""Aggregation over the edges of a graph [C1]."""

from typing import Any

from jaxtyping import Array

from unlazy.core.arrays import einsum
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape
from unlazy.layers.protocol.covariance import State, precompute, propagate, required_pairs
from unlazy.layers.protocol.finite_evaluation import Context, apply


class Aggregate(Layer):
    """Sum over the edges i → j of a graph: f_j → Σ_i A_ij f_i [C1].

    Points are pairs (nodes × channels, A of nodes × nodes). All graphs have the same number of nodes: pad smaller ones
    with nodes without edges.

    Examples
    --------
    >>> from unlazy.layers import Aggregate, Shape
    >>> Aggregate().after(Shape((5,), 3)).positions
    (5,)
    """

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        if len(shape.positions) != 1:
            raise ValueError(f"needs one axis of positions (nodes), got {len(shape.positions)}")
        return shape


@precompute.register
def _precompute_aggregate(layer: Aggregate, state: State) -> Array:
    if state.pattern is None:
        raise ValueError(f"{layer.title} needs graphs: points are pairs (nodes × channels, matrix of nodes × nodes)")
    return state.pattern


@propagate.register
def _propagate_aggregate(layer: Aggregate, state: State, left: Array, right: Array) -> State:
    """A(x)ᵀ Σ A(z)."""
    return state.each(lambda A: einsum("pi,qj,pq->ij", left, right, A))


@apply.register
def _apply_aggregate(layer: Aggregate, params: Any, x: Array, context: Context) -> Array:
    if context.pattern is None:
        raise ValueError(f"{layer.title} needs graphs: points are pairs (nodes × channels, matrix of nodes × nodes)")
    return einsum("npq,npc->nqc", context.pattern, x)


@required_pairs.register
def _reaches_all_pairs(layer: Aggregate, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    return (position_pairs.ALL,) * len(shape.positions)
