"""Layers made of layers: one after another, and side by side [C3]."""

from collections.abc import Callable
from typing import Any

from unlazy.layers.description.base import Layer, Shape, sized
from unlazy.layers.description.shaping import Activation
from unlazy.theory.activations import functions


class Identity(Layer):
    """Nothing: the skip of a residual branch."""


class Serial(Layer):
    """Layers one after another."""

    layers: tuple[Layer, ...]

    def after(self, shape: Shape) -> Shape:
        for before, layer in self.steps(shape):
            shape = layer.after(before)
        return shape

    def steps(self, shape: Shape) -> list[tuple[Shape, Layer]]:
        """What goes into each layer; a ValueError that names the layer where it does not fit."""
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
        return any(layer.weighs for layer in self.layers)


def serial(*layers: Layer | str | Callable | functions.Activation) -> Serial:
    """A network description from its layers; a name or a function is an activation.

    >>> serial(Dense(), "relu", Dense()).after(Shape((), 5)).positions
    ()
    """
    if not layers:
        raise ValueError("a description needs at least one layer")
    return Serial(tuple(_layer(layer) for layer in layers))


def _layer(what: Any) -> Layer:
    return what if isinstance(what, Layer) else Activation(what)


class _Branches(Layer):
    """The same input goes into every branch."""

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Any):
        if len(branches) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two branches, got {len(branches)}")
        self.branches = tuple(serial(*b) if isinstance(b, tuple | list) else _layer(b) for b in branches)

    @property
    def weighs(self) -> bool:
        return any(branch.weighs for branch in self.branches)

    def shapes(self, shape: Shape) -> list[Shape]:
        """What comes out of each, with the same positions."""
        found = [branch.after(shape) for branch in self.branches]
        if len({s.positions for s in found}) > 1:
            said = " and ".join(sized(s.positions) for s in found)
            raise ValueError(f"its branches end with different positions: {said}")
        return found

    def after(self, shape: Shape) -> Shape:
        found = self.shapes(shape)
        channels = [s.channels for s in found]
        known = {c for c in channels if c is not None}
        if len(known) > 1:
            raise ValueError(f"its branches end with different numbers of channels: {sorted(known)}")
        return Shape(found[0].positions, None if None in channels else channels[0])


class Sum(_Branches):
    """Branches added. All but one must end in weights of their own: covariances of independent branches add [C3]."""


class Product(_Branches):
    """Branches multiplied entry by entry. All but one must have weights of their own, and so be independent [C3]."""


class Concatenate(_Branches):
    """Channels of all branches side by side."""

    def after(self, shape: Shape) -> Shape:
        found = self.shapes(shape)
        channels = [s.channels for s in found]
        total = None if None in channels else sum(channels)  # type: ignore[arg-type]
        return Shape(found[0].positions, total)

    def shares(self, shape: Shape) -> list[float]:
        """The part of all channels that each branch has; equal ones where the width of the network decides."""
        channels = [s.channels for s in self.shapes(shape)]
        if all(c is None for c in channels):
            return [1 / len(channels)] * len(channels)
        if None in channels:
            raise ValueError(f"branches of {channels} channels: give all of them a width, or none")
        return [c / sum(channels) for c in channels]  # type: ignore[operator, arg-type]


def residual(*layers: Any) -> Sum:
    """x + f(x), f the given layers one after another."""
    return Sum(Identity(), serial(*layers))  # type: ignore[call-arg, arg-type]
