"""How lanes of a warp share pairs of images and their columns, and what both sides of `warps` look like for it.

Lanes share the columns of a row, four each, and every lane has 2 × 2 pairs, so that what is read of an image serves two
pairs. Lanes write the pairs they have side by side: `Tile.order` and `Tile.column` say which lie where.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.kernels.conv_gpu.layout import VECTOR, Stage
from unlazy.kernels.conv_gpu.pooling import quotient, remainder
from unlazy.kernels.conv_gpu.warp import LANES

SIDE = 2
"""Images on each side of the pairs of a lane."""
BLOCK = 8
"""Images on each side of what `stages` pads to: a whole number of tiles."""


class Tile(NamedTuple):
    """Images on the left and on the right whose pairs a warp has, and the lanes that share a row."""

    rows: int
    columns: int
    lanes: int

    @classmethod
    def of(cls, size: int) -> "Tile":
        lanes = size // VECTOR
        groups = LANES // lanes
        rows = 1 << ((groups.bit_length() - 1) // 2)
        return cls(SIDE * rows, SIDE * groups // rows, lanes)

    @property
    def pairs(self) -> int:
        return self.rows * self.columns

    @property
    def across(self) -> int:
        """Lanes beside each other that have other images on the right."""
        return self.columns // SIDE

    def order(self, i: Any, j: Any) -> tuple[Any, Any]:
        """Of image i on the left and j on the right of a block: which tile, and where their pair lies in a row of
        pooled ones."""
        tile = quotient(i, self.rows) * (BLOCK // self.columns) + quotient(j, self.columns)
        i, j = remainder(i, self.rows), remainder(j, self.columns)
        lane = (quotient(i, SIDE) * self.across + quotient(j, SIDE)) * self.lanes
        return tile, (lane * SIDE + remainder(i, SIDE)) * SIDE + remainder(j, SIDE)

    def column(self, c: int) -> int:
        """Where a column of pooled pairs begins in a row of them: every lane has two, which lie apart, so that what
        lanes write at once lies together."""
        return (c % 2 * LANES + c // 2) * SIDE * SIDE


def left_side(stage: Stage, features: Array) -> Array:
    """Rows × columns × features × images as tiles × rows × features × images × columns; what a layer needs later lies
    as many rows later."""
    tile, lags = Tile.of(stage.size), _lags(stage, features.shape[2])
    rows = jnp.pad(features, ((0, stage.walk - stage.size), *((0, 0),) * 3))
    rows = jnp.stack([jnp.roll(rows[:, :, f], lag, 0) for f, lag in enumerate(lags)], 1)
    rows = rows.reshape(stage.walk, len(lags), stage.size, -1, tile.rows)
    return jnp.transpose(rows, (3, 0, 1, 4, 2))


def right_side(stage: Stage, features: Array) -> Array:
    """Displacements across × tiles × rows × features × images × columns, which a displacement moves: a row that would
    begin within a line of the cache would take two of them. Nothing lies later."""
    tile = Tile.of(stage.size)
    A = jnp.pad(features, ((0, stage.down - stage.size), (0, stage.across - stage.size), (0, 0), (0, 0)))
    places = (np.arange(stage.across)[:, None] + np.arange(stage.size)[None]) % stage.across
    A = A[:, places].reshape(stage.down, *places.shape, A.shape[2], -1, tile.columns)
    return jnp.transpose(A, (1, 4, 0, 3, 5, 2))


def _lags(stage: Stage, features: int) -> list[int]:
    layers = len(stage.layers)
    return [0] * (features - layers) + [k + 1 for k in range(layers)]
