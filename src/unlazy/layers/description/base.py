"""What a layer of a network description is: a value that says which shapes it takes and gives.

What it does to covariances is layers.covariance, what it does to arrays is networks.layered; both find it by its type.
"""

from typing import NamedTuple

import equinox as eqx


class Shape(NamedTuple):
    """One point between two layers: the sizes of its positions (pixels, tokens, nodes) and its number of channels.

    `channels` is None where it is the width of the network, which a description leaves open.
    """

    positions: tuple[int, ...]
    channels: int | None


class Layer(eqx.Module):
    """One step of a network. Numbers are leaves, what changes the program is static."""

    def after(self, shape: Shape) -> Shape:
        """The shape that comes out; a ValueError where this layer cannot take what comes in."""
        return shape

    @property
    def weighs(self) -> bool:
        """Whether it has weights of its own, drawn at random and trained."""
        return False

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return type(self).__name__


def sized(sizes: tuple[int, ...]) -> str:
    """Sizes in a sentence: 3 × 3."""
    return " × ".join(map(str, sizes)) if sizes else "none"
