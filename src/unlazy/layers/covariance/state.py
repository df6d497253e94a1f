"""What flows through the layers of an infinitely wide network, and the three questions a layer answers [C1].

A layer is asked by its type: `reaches` (which pairs of positions must come in), `survey` (same-input covariances of one
point: what comes out, and a note of what pairs with it will need) and `propagate` (the covariance of a pair). A layer
of your own registers with `propagate`, and with the others where it is not the same in every position.

Many pairs go through at once: pairs of points are then the last axes, so that sums over windows of positions and
formulas of every entry run along whole rows of memory. Functions that count axes of positions from the front take such
blocks as they are and say so (`of_blocks`); all others are mapped over the pairs.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.position_pairs import Grid
from unlazy.layers.description import Layer, Shape


class State(NamedTuple):
    """Σ_pq and Θ_pq of two points between two layers, for the pairs of positions that `grid` keeps (`paired`).

    `theta` is None where no tangent kernel is asked for, 0.0 before the first weights. `normal`: channels are
    independent Gaussians of mean 0, as after weights; an activation needs that. `pattern`: the graph of a single point.
    """

    sigma: Array
    theta: Any
    grid: Grid
    channels: int | None
    normal: bool = False
    pattern: Any = None

    @property
    def shape(self) -> Shape:
        return Shape(position_pairs.sizes(self.grid), self.channels)

    def each(self, linear: Callable[[Array], Array], **changes: Any) -> "State":
        """The same linear map of Σ and Θ."""
        theta = self.theta if self.theta is None or isinstance(self.theta, float) else linear(self.theta)
        return self._replace(sigma=linear(self.sigma), theta=theta, **changes)

    def along(self, linear: Callable, axes: Any, **changes: Any) -> "State":
        """linear(A, axis number, axis, …) → (A, axis) on every axis in turn, of Σ and Θ."""
        found = []

        def run(A: Array) -> Array:
            grid = list(self.grid)
            for a, (axis, with_it) in enumerate(zip(self.grid, axes)):
                A, grid[a] = linear(A, a, axis, with_it)
            found.append(tuple(grid))
            return A

        state = self.each(run)
        return state._replace(grid=found[0], **changes)


@singledispatch
def reaches(layer: Layer, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart pairs of positions must be known before the layer, so that those up to `out` are after it."""
    return out


@singledispatch
def survey(layer: Layer, state: State) -> tuple[State, Any]:
    """Same-input covariances of one point after the layer, and a note for its pairs: arrays, in any tree."""
    note = look(layer, state)
    return propagate(layer, state, note, note), note


@singledispatch
def look(layer: Layer, state: State) -> Any:
    """The note alone: nothing, unless the layer bends with the size of its input."""
    return None


@singledispatch
def propagate(layer: Layer, state: State, left: Any, right: Any) -> State:
    """The covariance of a pair after the layer, from that before it and the notes of both points."""
    raise ValueError(
        f"{type(layer).__name__} does not say what it does to covariances: register a function with "
        "unlazy.layers.propagate"
    )


BLOCKS: set[Callable] = set()
"""The registered functions that take blocks of pairs."""


def of_blocks(function: Callable) -> Callable:
    """Says of a function registered with `propagate` that it minds only the axes of positions, which come first."""
    BLOCKS.add(function)
    return function


def across(layer: Layer, state: State, left: Any, right: Any) -> State:
    """`propagate` of one pair, or of a block: A[…, i, j], notes left[…, i, 0] and right[…, 0, j]."""
    if state.sigma.ndim == 2 * len(state.grid) or propagate.dispatch(type(layer)) in BLOCKS:
        return propagate(layer, state, left, right)
    found = []

    def one(sigma: Array, theta: Any, left: Any, right: Any) -> tuple[Array, Any]:
        end = propagate(layer, state._replace(sigma=sigma, theta=state.theta if theta is None else theta), left, right)
        found.append(end)
        return end.sigma, end.theta

    theta = None if isinstance(state.theta, float) else state.theta
    left, right = jax.tree.map(lambda a: a[..., 0], left), jax.tree.map(lambda a: a[..., 0, :], right)
    columns = jax.vmap(one, (-1, -1, None, -1), -1)
    sigma, theta = jax.vmap(columns, (-2, -2, -1, None), -2)(state.sigma, theta, left, right)
    return found[0]._replace(sigma=sigma, theta=theta)


def variances(state: State) -> Array:
    """Σ_pp of one point with itself."""
    return position_pairs.diagonal(state.sigma, state.grid)
