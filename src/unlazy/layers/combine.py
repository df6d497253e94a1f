"""Layers made of layers: in sequence, and in parallel branches [C3]."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from unlazy.layers.activation import Activation
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer, Shape, sized
from unlazy.layers.protocol.covariance import (
    State,
    accepts_blocks,
    propagate,
    propagate_block,
    propagate_point,
    required_pairs,
)
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params, rates
from unlazy.theory.activations import functions


class Identity(Layer):
    """The identity: the skip connection of a residual branch.

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Sum(layers.Identity(), layers.Dense()).weighs
    True
    """


class Serial(Layer):
    """Layers in sequence; see `serial`.

    Parameters
    ----------
    layers : tuple of Layer
        The layers, first to last.

    Examples
    --------
    >>> from unlazy.layers import Dense, Relu, Serial
    >>> len(Serial((Dense(), Relu(), Dense())).layers)
    3
    """

    composite = True

    layers: tuple[Layer, ...]

    def after(self, shape: Shape) -> Shape:
        """Shape after the last layer."""
        for before, layer in self.steps(shape):
            shape = layer.after(before)
        return shape

    def steps(self, shape: Shape) -> list[tuple[Shape, Layer]]:
        """Input shape and layer, one by one; a ValueError names the layer that does not fit."""
        found = []
        for i, layer in enumerate(self.layers):
            found.append((shape, layer))
            try:
                shape = layer.after(shape)
            except ValueError as error:
                raise ValueError(f"layer {i + 1}, {layer.title}: {error}") from error
        return found

    @property
    def weighs(self) -> bool:
        """Whether any layer has trainable weights."""
        return any(layer.weighs for layer in self.layers)


def serial(*layers: Layer | str | Callable | functions.ActivationFunction) -> Serial:
    """A network description from its layers in sequence.

    Parameters
    ----------
    *layers : Layer, str, callable or ActivationFunction
        The layers; a name or a function stands for an activation.

    Returns
    -------
    Serial
        The description.

    Raises
    ------
    ValueError
        If no layer is given.

    Examples
    --------
    >>> from unlazy.layers import Dense, Shape, serial
    >>> serial(Dense(), "relu", Dense()).after(Shape((), 5)).positions
    ()
    """
    if not layers:
        raise ValueError("a description needs at least one layer")
    return Serial(tuple(_layer(layer) for layer in layers))


def _layer(what: Any) -> Layer:
    return what if isinstance(what, Layer) else Activation(what)


class _Branches(Layer):
    """Base class of layers whose branches all get the same input."""

    composite = True

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Any):
        if len(branches) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two branches, got {len(branches)}")
        self.branches = tuple(serial(*b) if isinstance(b, tuple | list) else _layer(b) for b in branches)

    @property
    def weighs(self) -> bool:
        """Whether any branch has trainable weights."""
        return any(branch.weighs for branch in self.branches)

    def shapes(self, shape: Shape) -> list[Shape]:
        """Shape after each branch; all have the same positions."""
        found = [branch.after(shape) for branch in self.branches]
        if len({s.positions for s in found}) > 1:
            said = " and ".join(sized(s.positions) for s in found)
            raise ValueError(f"its branches end with different positions: {said}")
        return found

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        found = self.shapes(shape)
        channels = [s.channels for s in found]
        known = {c for c in channels if c is not None}
        if len(known) > 1:
            raise ValueError(f"its branches end with different numbers of channels: {sorted(known)}")
        return Shape(found[0].positions, None if None in channels else channels[0])


class Sum(_Branches):
    """Sum of branches [C3].

    All but one must end in weights of their own: covariances of independent branches add.

    Parameters
    ----------
    *branches : Layer, str, callable or tuple of these
        The branches; a tuple is a sequence of layers.

    Examples
    --------
    >>> from unlazy import layers
    >>> len(layers.Sum(layers.Identity(), ("relu", layers.Dense())).branches)
    2
    """


class Product(_Branches):
    """Elementwise product of branches [C3].

    All but one must have weights of their own, so that the branches are independent.

    Parameters
    ----------
    *branches : Layer, str, callable or tuple of these
        The branches; a tuple is a sequence of layers.

    Examples
    --------
    >>> from unlazy import layers
    >>> len(layers.Product(layers.Dense(), layers.Dense()).branches)
    2
    """


class Concatenate(_Branches):
    """Concatenation of the channels of all branches [C3].

    Parameters
    ----------
    *branches : Layer, str, callable or tuple of these
        The branches; a tuple is a sequence of layers.

    Examples
    --------
    >>> from unlazy import layers
    >>> len(layers.Concatenate(layers.Dense(), layers.Dense()).branches)
    2
    """

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        found = self.shapes(shape)
        channels = [s.channels for s in found]
        total = None if None in channels else sum(channels)  # type: ignore[arg-type]
        return Shape(found[0].positions, total)

    def shares(self, shape: Shape) -> list[float]:
        """Share of all channels that each branch has; equal shares if the width of the network decides."""
        channels = [s.channels for s in self.shapes(shape)]
        if all(c is None for c in channels):
            return [1 / len(channels)] * len(channels)
        if None in channels:
            raise ValueError(f"branches of {channels} channels: give all of them a width, or none")
        return [c / sum(channels) for c in channels]  # type: ignore[operator, arg-type]


def residual(*layers: Layer | str | Callable) -> Sum:
    """Residual block x + f(x).

    Parameters
    ----------
    *layers : Layer, str or callable
        The layers of f in sequence.

    Returns
    -------
    Sum
        The identity plus f.

    Examples
    --------
    >>> from unlazy.layers import Conv, residual
    >>> block = residual("relu", Conv(3))
    """
    return Sum(Identity(), serial(*layers))  # type: ignore[call-arg, arg-type]


@propagate.register
@accepts_blocks
def _propagate_identity(layer: Identity, state: State, left: Any, right: Any) -> State:
    return state


@propagate_point.register
def _survey_serial(layer: Serial, state: State) -> tuple[State, tuple]:
    notes = []
    for one in layer.layers:
        state, note = propagate_point(one, state)
        notes.append(note)
    return state, tuple(notes)


@propagate.register
@accepts_blocks
def _propagate_serial(layer: Serial, state: State, left: tuple, right: tuple) -> State:
    for one, l, r in zip(layer.layers, left, right):
        state = propagate_block(one, state, l, r)
    return state


@required_pairs.register
def _reaches_serial(layer: Serial, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    for before, one in reversed(layer.steps(shape)):
        out = required_pairs(one, before, out)
    return out


@required_pairs.register(Sum)
@required_pairs.register(Product)
@required_pairs.register(Concatenate)
def _reaches_branches(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    each = [required_pairs(branch, shape, out) for branch in layer.branches]
    return tuple(map(max, zip(*each))) if out or shape.positions else ()


@propagate_point.register(Sum)
@propagate_point.register(Product)
@propagate_point.register(Concatenate)
def _survey_branches(layer: Any, state: State) -> tuple[State, tuple]:
    found = [propagate_point(branch, state) for branch in layer.branches]
    return joined(layer, state, [f[0] for f in found]), tuple(f[1] for f in found)


@propagate.register(Sum)
@propagate.register(Product)
@propagate.register(Concatenate)
@accepts_blocks
def _propagate_branches(layer: Any, state: State, left: tuple, right: tuple) -> State:
    found = [propagate_block(branch, state, l, r) for branch, l, r in zip(layer.branches, left, right)]
    return joined(layer, state, found)


def joined(layer: "Sum | Product | Concatenate", before: State, states: list[State]) -> State:
    """States of the branches as one; pairs of positions that some branch dropped are dropped."""
    shape = layer.after(before.shape)
    reach = [min(axis.size if axis.reach is None else axis.reach for axis in axes)
             for axes in zip(*(s.grid for s in states))]  # fmt: skip
    grid = position_pairs.kept(shape.positions, tuple(reach))
    states = [narrowed(s, grid) for s in states]
    if isinstance(layer, Sum):
        return _added(layer, states)._replace(channels=shape.channels)
    if isinstance(layer, Product):
        return _multiplied(layer, states)._replace(channels=shape.channels)
    shares = layer.shares(before.shape)
    parts = [s.each(functools.partial(operator.mul, share)) for s, share in zip(states, shares)]
    # channels of one variance where all branches have the same, which is not known here
    return _total(parts)._replace(channels=shape.channels, normal=False)


def narrowed(state: State, grid: position_pairs.Grid) -> State:
    """The state restricted to fewer pairs of positions."""
    return (
        state.along(lambda A, a, axis, to: (position_pairs.narrowed(A, a, axis, to), to), grid)
        if grid != state.grid
        else state
    )


def _total(states: list[State]) -> State:
    first = states[0]
    theta = None if first.theta is None else sum(s.theta for s in states)
    return first._replace(sigma=functools.reduce(operator.add, (s.sigma for s in states)), theta=theta)


def _added(layer: Sum, states: list[State]) -> State:
    loose = [b.title for b, s in zip(layer.branches, states) if not (b.weighs and s.normal)]
    if len(loose) > 1:
        raise ValueError(
            f"branches that are added must be independent and of mean 0, all but one: {' and '.join(loose)} do not end "
            "in weights of their own; end them with Dense or Conv"
        )
    return _total(states)._replace(normal=all(s.normal for s in states))


def _multiplied(layer: Product, states: list[State]) -> State:
    """Σ = Π Σ_i, Θ by the product rule."""
    loose = [b.title for b in layer.branches if not b.weighs]
    if len(loose) > 1:
        raise ValueError(
            f"branches that are multiplied must be independent, all but one: {' and '.join(loose)} have no weights of "
            "their own; give them a Dense or Conv"
        )
    state = states[0]
    for other in states[1:]:
        theta = None if state.theta is None else state.theta * other.sigma + state.sigma * other.theta
        state = state._replace(sigma=state.sigma * other.sigma, theta=theta)
    return state._replace(normal=False)


@apply.register
def _apply_identity(layer: Identity, params: Any, x: Array, context: Context) -> Array:
    return x


@init_params.register
def _start_serial(layer: Serial, key: PRNGKeyArray, shape: Shape, context: Context) -> tuple:
    steps = layer.steps(shape)
    return tuple(
        init_params(one, k, before, context) for (before, one), k in zip(steps, jax.random.split(key, len(steps)))
    )


@apply.register
def _apply_serial(layer: Serial, params: tuple, x: Array, context: Context) -> Array:
    for i, (one, own) in enumerate(zip(layer.layers, params)):
        x = apply(one, own, x, _folded(context, i))
    return x


@init_params.register(Sum)
@init_params.register(Product)
@init_params.register(Concatenate)
def _start_branches(layer: Any, key: PRNGKeyArray, shape: Shape, context: Context) -> tuple:
    keys = jax.random.split(key, len(layer.branches))
    return tuple(init_params(branch, k, shape, context) for branch, k in zip(layer.branches, keys))


def _each(layer: Any, params: tuple, x: Array, context: Context) -> list[Array]:
    return [apply(b, own, x, _folded(context, i)) for i, (b, own) in enumerate(zip(layer.branches, params))]


@apply.register
def _apply_sum(layer: Sum, params: tuple, x: Array, context: Context) -> Array:
    return sum(_each(layer, params, x, context))  # type: ignore[return-value]


@apply.register
def _apply_product(layer: Product, params: tuple, x: Array, context: Context) -> Array:
    first, *others = _each(layer, params, x, context)
    for other in others:
        first = first * other
    return first


@apply.register
def _apply_concatenate(layer: Concatenate, params: tuple, x: Array, context: Context) -> Array:
    return jnp.concatenate(_each(layer, params, x, context), axis=-1)


@rates.register
def _rates_serial(layer: Serial) -> tuple:
    return tuple(rates(one) for one in layer.layers)


@rates.register(Sum)
@rates.register(Product)
@rates.register(Concatenate)
def _rates_branch(layer: Any) -> tuple:
    return tuple(rates(branch) for branch in layer.branches)


def _folded(context: Context, i: int) -> Context:
    return context if context.key is None else context._replace(key=jax.random.fold_in(context.key, i))
