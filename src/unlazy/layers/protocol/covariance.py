"""Covariances between two layers of an infinitely wide network, and the functions that layers register [C1].

Functions dispatch on the type of a layer: `required_pairs` (which pairs of positions the input must have),
`propagate_point` (same-input covariances of one point, and what its pairs need) and `propagate` (the covariance of a
pair of points). A custom layer registers with `propagate`, and with the others if it is not the same in every position.

Many pairs are propagated at once: pairs of points are the last axes, so that sums over windows of positions and
elementwise formulas run along contiguous memory. Functions that index position axes from the front accept such blocks
and say so with the decorator `accepts_blocks`; all others are mapped over the pairs.
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape, single_layers, sized
from unlazy.layers.protocol.position_pairs import Grid


class State(NamedTuple):
    """Covariances Σ_pq and Θ_pq of two points between two layers.

    Parameters
    ----------
    sigma : array
        Σ for the pairs of positions in `grid`.
    theta : array, float or None
        Θ; None if no tangent kernel is needed, 0.0 before the first weights.
    grid : tuple of Axis
        The pairs of positions that are kept.
    channels : int or None
        Number of channels; None if it is the width of the network.
    normal : bool, default False
        Whether channels are independent Gaussians of mean 0, as after weights. Activations need that.
    pattern : array, optional
        Graph of a single point.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import State
    >>> State(jnp.array(1.0), 0.0, (), 3).shape
    Shape(positions=(), channels=3)
    """

    sigma: Array
    theta: Any
    grid: Grid
    channels: int | None
    normal: bool = False
    pattern: Any = None

    @property
    def shape(self) -> Shape:
        """Shape of a point."""
        return Shape(position_pairs.sizes(self.grid), self.channels)

    def each(self, linear: Callable[[Array], Array]) -> "State":
        """Apply a linear map to Σ and Θ."""
        theta = self.theta if self.theta is None or isinstance(self.theta, float) else linear(self.theta)
        return self._replace(sigma=linear(self.sigma), theta=theta)

    def along(self, linear: Callable, axes: Iterable) -> "State":
        """Apply linear(A, axis number, axis, …) → (A, axis) to every axis of Σ and Θ in turn."""
        found = []

        def run(A: Array) -> Array:
            grid = list(self.grid)
            for a, (axis, with_it) in enumerate(zip(self.grid, axes)):
                A, grid[a] = linear(A, a, axis, with_it)
            found.append(tuple(grid))
            return A

        state = self.each(run)
        return state._replace(grid=found[0])


@singledispatch
def required_pairs(layer: Layer, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    """Largest distance between positions whose covariance must be known before a layer.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    shape : Shape
        Shape before the layer.
    out : tuple of int
        Largest distance needed after the layer, per axis.

    Returns
    -------
    tuple of int
        Largest distance needed before the layer.

    Examples
    --------
    >>> from unlazy.layers import Conv, Shape, required_pairs
    >>> required_pairs(Conv(3), Shape((8, 8), 3), (0, 0))
    (0, 0)
    """
    return out


@singledispatch
def propagate_point(layer: Layer, state: State) -> tuple[State, PyTree]:
    """Same-input covariances of one point after a layer, and what its pairs need.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    state : State
        Covariances before the layer.

    Returns
    -------
    state : State
        Covariances after the layer.
    notes : pytree of arrays or None
        What `propagate` needs to know of the point.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import Dense, State, propagate_point
    >>> state, notes = propagate_point(Dense(1.0), State(jnp.array(2.0), 0.0, (), 3))
    >>> float(state.sigma)
    2.0
    """
    note = precompute(layer, state)
    return propagate(layer, state, note, note), note


@singledispatch
def precompute(layer: Layer, state: State) -> PyTree:
    """What pairs of a point need to know of it before a layer: None by default.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    state : State
        Same-input covariances before the layer.

    Returns
    -------
    pytree of arrays or None
        For activations the variances.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import Relu, State, precompute
    >>> float(precompute(Relu(), State(jnp.array(2.0), 0.0, (), 3, normal=True)))
    2.0
    """
    return None


@singledispatch
def propagate(layer: Layer, state: State, left: PyTree, right: PyTree) -> State:
    """Covariance of a pair of points after a layer.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    state : State
        Covariance before the layer.
    left, right : pytree of arrays or None
        What `precompute` returned for both points.

    Returns
    -------
    State
        Covariance after the layer.

    Raises
    ------
    ValueError
        If no function is registered for the type of the layer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import Dense, State, propagate
    >>> float(propagate(Dense(1.0), State(jnp.array(2.0), 0.0, (), 3), None, None).sigma)
    2.0
    """
    raise ValueError(
        f"{type(layer).__name__} does not say what it does to covariances: register a function with "
        "unlazy.layers.propagate"
    )


BLOCKS: set[Callable] = set()
"""The registered functions that take blocks of pairs."""


def accepts_blocks(function: Callable) -> Callable:
    """Mark a function registered with `propagate` as one that handles blocks of pairs.

    Parameters
    ----------
    function : callable
        It must index position axes from the front and leave the axes behind them alone.

    Returns
    -------
    callable
        The same function.

    Examples
    --------
    >>> from unlazy.layers import accepts_blocks
    >>> identity = accepts_blocks(lambda layer, state, left, right: state)
    """
    BLOCKS.add(function)
    return function


def propagate_block(layer: Layer, state: State, left: PyTree, right: PyTree) -> State:
    """`propagate` of one pair, or of a block A[…, i, j] with notes left[…, i, 0] and right[…, 0, j]."""
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
    """Variances Σ_pp of one point.

    Parameters
    ----------
    state : State
        Same-input covariances.

    Returns
    -------
    array
        The diagonal over positions.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import State, variances
    >>> float(variances(State(jnp.array(2.0), 0.0, (), 3)))
    2.0
    """
    return position_pairs.diagonal(state.sigma, state.grid)


class PointCovariances(NamedTuple):
    """Per-point precomputation: inputs (positions × channels), what pairs need at every layer, and Σ and Θ at equal
    points. Stochastic layers draw independently for both."""

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


def point_covariances(
    network: Layer, x: Array, pattern: Array | None, tangent: bool, single: bool = False
) -> PointCovariances:
    """Same-input covariances of one point through all layers: of two evaluations, or of a single one with itself."""
    shape = Shape(x.shape[:-1], x.shape[-1])
    start = _start(x, x, grid_of(network, shape), tangent)._replace(pattern=pattern)
    end, notes = propagate_point(network, start)
    if not single and any(layer.stochastic for layer in single_layers(network)):
        end = propagate(network, start._replace(pattern=None), notes, notes)
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
