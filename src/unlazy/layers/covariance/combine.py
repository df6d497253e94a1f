"""Layers of layers: one after another, and side by side [C3]."""

import functools
import operator
from typing import Any

from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.state import State, across, of_blocks, propagate, reaches, survey
from unlazy.layers.description import Concatenate, Identity, Product, Serial, Shape, Sum


@propagate.register
@of_blocks
def _nothing(layer: Identity, state: State, left: Any, right: Any) -> State:
    return state


@survey.register
def _survey_serial(layer: Serial, state: State) -> tuple[State, tuple]:
    notes = []
    for one in layer.layers:
        state, note = survey(one, state)
        notes.append(note)
    return state, tuple(notes)


@propagate.register
@of_blocks
def _serial(layer: Serial, state: State, left: tuple, right: tuple) -> State:
    for one, l, r in zip(layer.layers, left, right):
        state = across(one, state, l, r)
    return state


@reaches.register
def _serial_reaches(layer: Serial, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    for before, one in reversed(layer.steps(shape)):
        out = reaches(one, before, out)
    return out


@reaches.register(Sum)
@reaches.register(Product)
@reaches.register(Concatenate)
def _widest(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    each = [reaches(branch, shape, out) for branch in layer.branches]
    return tuple(map(max, zip(*each))) if out or shape.positions else ()


@survey.register(Sum)
@survey.register(Product)
@survey.register(Concatenate)
def _survey_branches(layer: Any, state: State) -> tuple[State, tuple]:
    found = [survey(branch, state) for branch in layer.branches]
    return joined(layer, state, [f[0] for f in found]), tuple(f[1] for f in found)


@propagate.register(Sum)
@propagate.register(Product)
@propagate.register(Concatenate)
@of_blocks
def _branches(layer: Any, state: State, left: tuple, right: tuple) -> State:
    found = [across(branch, state, l, r) for branch, l, r in zip(layer.branches, left, right)]
    return joined(layer, state, found)


def joined(layer: Any, before: State, states: list[State]) -> State:
    """The branches' states as one; pairs of positions that not all of them keep are dropped."""
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
    """The same with fewer pairs of positions."""
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
