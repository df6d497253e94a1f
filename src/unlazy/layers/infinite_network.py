"""NNGP and NTK of a whole network description: one pass per point, then one pass per block of pairs [C1]."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape, sized
from unlazy.layers.protocol.covariance import State, propagate_block, propagate_point, required_pairs


class PointCovariances(NamedTuple):
    """Per-point precomputation: inputs (positions × channels), what pairs need at every layer, and Σ and Θ at equal
    points."""

    inputs: Array
    notes: Any
    sigma: Array
    theta: Array | None


def grid_of(network: Layer, shape: Shape) -> position_pairs.Grid:
    """Pairs of positions that must be known of the inputs; raises ValueError if the shape does not fit."""
    end = network.after(shape)
    if end.positions:
        raise ValueError(
            f"the description ends with {sized(end.positions)} positions, and a kernel is one number: end it with "
            "Flatten, GlobalAvgPool or Index before the last Dense"
        )
    return position_pairs.kept(shape.positions, required_pairs(network, shape, ()))


def point_covariances(network: Layer, x: Array, pattern: Array | None, tangent: bool) -> PointCovariances:
    """Same-input covariances of one point through all layers."""
    shape = Shape(x.shape[:-1], x.shape[-1])
    start = _start(x, x, grid_of(network, shape), tangent)._replace(pattern=pattern)
    end, notes = propagate_point(network, start)
    return PointCovariances(x, notes, end.sigma, _final(end) if tangent else None)


def of_block(
    network: Layer, left: PointCovariances, right: PointCovariances, grid: position_pairs.Grid, tangent: bool
) -> tuple[Array, Array | None]:
    """Σ and Θ of all pairs of two sets of points, whose axis is the first."""
    left, right = (jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), side) for side in (left, right))
    notes = jax.tree.map(lambda a: a[..., None], left.notes), jax.tree.map(lambda a: a[..., None, :], right.notes)
    end = propagate_block(network, _start(left.inputs, right.inputs, grid, tangent), *notes)
    return end.sigma, _final(end) if tangent else None


def _start(x: Array, z: Array, grid: position_pairs.Grid, tangent: bool) -> State:
    """Σ_pq = Σ_c x_pc z_qc/channels, without weights yet."""
    channels = x.shape[len(grid)]
    return State(position_pairs.products(x, z, grid) / channels, 0.0 if tangent else None, grid, channels)


def _final(end: State) -> Array:
    return jnp.broadcast_to(jnp.asarray(end.theta, end.sigma.dtype), end.sigma.shape)
