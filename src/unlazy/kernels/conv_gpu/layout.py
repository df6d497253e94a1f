"""Where displacement planes and what they are made of lie in memory: stages, the arrays of both sides, pooled pairs.

What `program` walks along; its text says why planes are laid out so.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

DEAD = 2
"""Places added across with zeros outside."""
REACH = DEAD
"""Pixels that one window may reach out: as many as are dead."""
PARTS = 3
"""Displacements down whose rows meet in one row of pooled pairs; each writes apart."""
VECTOR = 4
"""Neighboring columns of one image that are brought from memory together."""
WAITS, NOWHERE = -2, -1
"""Instead of an index, of a row that waits for the next, or is none of the image's."""


class Tile(NamedTuple):
    """Pairs of a program: rows × columns images, a thread each; `width` columns of pixels, `vectors` side by side."""

    rows: int = 8
    columns: int = 8
    width: int = 16
    vectors: int = 2

    @property
    def lanes(self) -> int:
        return self.rows * self.columns


class Layer(NamedTuple):
    """A convolution and ReLU: points of its window on an axis, and σ_w² over all of them."""

    window: int
    scale: float


class Stage(NamedTuple):
    """Layers on size × size pixels, then the mean of 2 × 2 (`last`: of all)."""

    size: int
    layers: tuple[Layer, ...]
    circular: bool = False
    last: bool = False

    @property
    def across(self) -> int:
        """Displacements across: the period of columns."""
        return self.size + (0 if self.circular else DEAD)

    @property
    def down(self) -> int:
        """Displacements down: the period of rows."""
        return self.size + (0 if self.circular else self._reach)

    @property
    def walk(self) -> int:
        """Rows from one plane to the next."""
        return self.size + (2 * self.halo if self.circular else self._reach)

    @property
    def early(self) -> int:
        """Rows before the first pixel with which a plane begins."""
        return self.halo if self.circular else 0

    @property
    def aside(self) -> int:
        """Columns kept left of the first pixel."""
        return VECTOR * -(-self.early // VECTOR)

    @property
    def _reach(self) -> int:
        return max(layer.window // 2 for layer in self.layers)

    @property
    def halo(self) -> int:
        """Pixels that the windows of all layers reach out together."""
        return sum(layer.window // 2 for layer in self.layers)

    @property
    def pooled(self) -> int:
        """Displacements after the pooling, on each axis."""
        return self.across // 2

    @property
    def left_vectors(self) -> int:
        return -(-(self.size + 2 * self.aside) // VECTOR)

    @property
    def right_vectors(self) -> int:
        """In a row of the right array: for every displacement but the last few, which are shifts within a vector."""
        return self.left_vectors + (self.across - 1) // VECTOR


def left_side(stage: Stage, features: Array, tile: Tile) -> Array:
    """Rows × columns × features × images as tiles × rows × vectors × features × images of a tile × columns of a vector.

    Features are pixels (of a first stage), then the standard deviation at every layer.
    """
    rows, columns = np.arange(stage.walk) - stage.early, np.arange(VECTOR * stage.left_vectors) - stage.aside
    return _in_tiles(stage, features, rows, columns, tile.rows)


def right_side(stage: Stage, features: Array, tile: Tile) -> Array:
    """The same with one period of rows, and columns for every displacement; once for each shift within a vector."""
    columns = np.arange(VECTOR * stage.right_vectors) - stage.aside
    shifted = [_in_tiles(stage, features, np.arange(stage.down), (columns + k) % stage.across, tile.columns)
               for k in range(VECTOR)]  # fmt: skip
    return jnp.stack(shifted)


def _in_tiles(stage: Stage, A: Array, rows: np.ndarray, columns: np.ndarray, images: int) -> Array:
    """Some rows and columns, outside the image those round the corner, or zeros."""
    for axis, places in enumerate((rows, columns)):
        if stage.circular:
            A = jnp.take(A, places % stage.size, axis=axis)
        else:
            inside = (places >= 0) & (places < stage.size)
            shape = [-1 if k == axis else 1 for k in range(A.ndim)]
            A = jnp.take(A, np.where(inside, places, 0), axis=axis) * jnp.asarray(inside, A.dtype).reshape(shape)
    A = A.reshape(len(rows), -1, VECTOR, A.shape[2], A.shape[3] // images, images)
    return jnp.transpose(A, (4, 0, 1, 3, 5, 2))


def ranges(stage: Stage, first: int, last: int) -> list[tuple[int, int]]:
    """Columns that layer 0 (the input), 1, … need, so that the last has first … last."""
    found = [(first, last)]
    for layer in reversed(stage.layers):
        half = layer.window // 2
        low, high = found[0][0] - half, found[0][1] + half
        found.insert(0, (low, high) if stage.circular else (max(low, 0), min(high, stage.size)))
    return found


def pooling_table(stage: Stage, lanes: int) -> np.ndarray:
    """For every displacement down and every row on the walk where its pooled pairs begin, or WAITS, or NOWHERE."""
    if stage.last:
        return np.zeros(1, int)
    dy, row = np.arange(stage.down)[:, None], np.arange(stage.walk)[None, :] - stage.early
    d = dy - stage.down * (row + dy >= stage.down)
    a, odd = row % 2, d % 2
    D, part = (d + odd * (2 * a - 1)) // 2 % stage.pooled, 1 + odd * (1 - 2 * a)
    cells = stage.size // 2
    begin = (((D * PARTS + part) * (stage.pooled + 1)) * cells + row // 2) * cells * lanes
    # the first of two rows waits for the second, unless they go to different pairs
    begin = np.where((odd == 0) & (a == 0), WAITS, begin)
    return np.where((row >= 0) & (row < stage.size), begin, NOWHERE).ravel()
