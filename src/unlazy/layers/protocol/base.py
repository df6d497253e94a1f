"""Base class of layers, and the shape of a point between two layers.

A layer is a value. Its effect on covariances is registered with `layers.propagate`, its effect on arrays with
`layers.apply`.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax


class Shape(NamedTuple):
    """Shape of one point between two layers.

    Parameters
    ----------
    positions : tuple of int
        Sizes of the position axes (pixels, tokens, nodes).
    channels : int or None
        Number of channels; None if it is the width of the network.

    Examples
    --------
    >>> from unlazy.layers import Shape
    >>> Shape((32, 32), 3).positions
    (32, 32)
    """

    positions: tuple[int, ...]
    channels: int | None


class Layer(eqx.Module):
    """Base class of layers: a value with array leaves for numbers and static fields for what changes the program.

    Examples
    --------
    >>> from unlazy.layers import Dense, Layer
    >>> isinstance(Dense(), Layer)
    True
    """

    composite: ClassVar[bool] = False
    """Whether the layer consists of other layers."""
    stochastic: ClassVar[bool] = False
    """Whether the layer draws random numbers at every evaluation, independently for every point."""

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer; raises ValueError if the input shape does not fit."""
        return shape

    @property
    def weighs(self) -> bool:
        """Whether the layer has trainable weights."""
        return False

    @property
    def title(self) -> str:
        """Name of the layer in messages."""
        return type(self).__name__


def is_single(part: object) -> bool:
    """Whether this is a layer that does not consist of other layers."""
    return isinstance(part, Layer) and not part.composite


def single_layers(network: Layer) -> list[Layer]:
    """Single layers in the order in which they are applied, branch by branch."""
    return jax.tree.leaves(network, is_leaf=is_single)


def sized(sizes: tuple[int, ...]) -> str:
    """Sizes as text: 3 × 3."""
    return " × ".join(map(str, sizes)) if sizes else "none"
