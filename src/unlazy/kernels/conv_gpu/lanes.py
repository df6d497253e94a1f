"""How the lanes of a warp share pairs of images and their columns, and the array layout of both sides for it.

Lanes share the columns of a row, four each, and every lane has 2 × 2 pairs, so that what is read of an image serves two
pairs. Lanes write their pairs next to each other; `WarpTile.pair_position` and `WarpTile.column_start` give the order.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.kernels.conv_gpu.layout import VECTOR, Stage
from unlazy.kernels.conv_gpu.pooling import Index, quotient, remainder
from unlazy.kernels.conv_gpu.warp import LANES

SIDE = 2
"""Images on each side of the pairs of a lane."""
BLOCK = 8
"""Images on each side are padded to a multiple of this, an integer number of tiles."""


class WarpTile(NamedTuple):
    """Numbers of left and right images whose pairs a warp has, and of lanes that share a row."""

    rows: int
    columns: int
    lanes: int

    @classmethod
    def of(cls, size: int) -> "WarpTile":
        """The tile for images of this size."""
        lanes = size // VECTOR
        groups = LANES // lanes
        rows = 1 << ((groups.bit_length() - 1) // 2)
        return cls(SIDE * rows, SIDE * groups // rows, lanes)

    @property
    def pairs(self) -> int:
        """Pairs of a tile."""
        return self.rows * self.columns

    @property
    def across(self) -> int:
        """Groups of lanes next to each other that have different right images."""
        return self.columns // SIDE

    def pair_position(self, i: Index, j: Index) -> tuple[Index, Index]:
        """Tile of left image i and right image j of a block, and the position of their pair in a row of pooled ones."""
        tile = quotient(i, self.rows) * (BLOCK // self.columns) + quotient(j, self.columns)
        i, j = remainder(i, self.rows), remainder(j, self.columns)
        lane = (quotient(i, SIDE) * self.across + quotient(j, SIDE)) * self.lanes
        return tile, (lane * SIDE + remainder(i, SIDE)) * SIDE + remainder(j, SIDE)

    def column_start(self, c: int) -> int:
        """Start of a column of pooled pairs in a row of them.

        Every lane has two columns, which are apart, so that what all lanes write at once is contiguous.
        """
        return (c % 2 * LANES + c // 2) * SIDE * SIDE


def left_side(stage: Stage, features: Array) -> Array:
    """Transpose rows × columns × features × images to tiles × rows × features × images × columns.

    Features that a later layer needs are delayed by as many rows.
    """
    tile, lags = WarpTile.of(stage.size), _lags(stage, features.shape[2])
    rows = jnp.pad(features, ((0, stage.plane_rows - stage.size), *((0, 0),) * 3))
    rows = jnp.stack([jnp.roll(rows[:, :, f], lag, 0) for f, lag in enumerate(lags)], 1)
    rows = rows.reshape(stage.plane_rows, len(lags), stage.size, -1, tile.rows)
    return jnp.transpose(rows, (3, 0, 1, 4, 2))


def right_side(stage: Stage, features: Array) -> Array:
    """Array of displacements across × tiles × rows × features × images × columns, shifted by the displacement.

    Stored once per displacement, since a row that starts within a cache line would take two lines. Nothing is delayed.
    """
    tile = WarpTile.of(stage.size)
    A = jnp.pad(features, ((0, stage.down - stage.size), (0, stage.across - stage.size), (0, 0), (0, 0)))
    places = (np.arange(stage.across)[:, None] + np.arange(stage.size)[None]) % stage.across
    A = A[:, places].reshape(stage.down, *places.shape, A.shape[2], -1, tile.columns)
    return jnp.transpose(A, (1, 4, 0, 3, 5, 2))


def _lags(stage: Stage, features: int) -> list[int]:
    """Rows by which each feature is delayed."""
    layers = len(stage.layers)
    return [0] * (features - layers) + [k + 1 for k in range(layers)]
