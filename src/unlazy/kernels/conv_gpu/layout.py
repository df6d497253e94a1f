"""Memory layout of displacement planes and their inputs: stages, the arrays of both sides, pooled pairs.

A displacement plane is the covariance Σ_{p,p+d} of all positions p for one displacement d. `triton_program` explains
why planes are laid out in this way.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

PAD_COLUMNS = 2
"""Columns added on the horizontal axis for zero padding."""
MAX_REACH = PAD_COLUMNS
"""Largest half-width of a window: as many pixels as are padded."""
PARTS = 3
"""Vertical displacements whose rows contribute to one row of pooled pairs; each writes to its own part."""
VECTOR = 4
"""Neighboring columns of one image that are loaded together."""
WAITING, OUTSIDE = -2, -1
"""Table entries instead of an index: a row that waits for the next one, and a row outside the image."""


class PairTile(NamedTuple):
    """Pairs of one program: rows × columns images, one thread each; `width` columns of pixels, `vectors` at a time."""

    rows: int = 8
    columns: int = 8
    width: int = 16
    vectors: int = 2

    @property
    def lanes(self) -> int:
        """Number of pairs."""
        return self.rows * self.columns


class ConvLayer(NamedTuple):
    """A convolution and ReLU: window size on an axis, and σ_w² divided by the number of points of the window."""

    window: int
    scale: float


class Stage(NamedTuple):
    """Layers on size × size pixels, followed by the mean of 2 × 2 pixels (`last`: of all pixels)."""

    size: int
    layers: tuple[ConvLayer, ...]
    circular: bool = False
    last: bool = False

    @property
    def across(self) -> int:
        """Horizontal displacements: the period of columns."""
        return self.size + (0 if self.circular else PAD_COLUMNS)

    @property
    def down(self) -> int:
        """Vertical displacements: the period of rows."""
        return self.size + (0 if self.circular else self._reach)

    @property
    def plane_rows(self) -> int:
        """Rows from the start of one plane to the start of the next."""
        return self.size + (2 * self.halo if self.circular else self._reach)

    @property
    def lead_rows(self) -> int:
        """Rows before the first pixel with which a plane starts."""
        return self.halo if self.circular else 0

    @property
    def margin(self) -> int:
        """Columns kept left of the first pixel."""
        return VECTOR * -(-self.lead_rows // VECTOR)

    @property
    def _reach(self) -> int:
        """Largest half-width of a window."""
        return max(layer.window // 2 for layer in self.layers)

    @property
    def halo(self) -> int:
        """Pixels that the windows of all layers reach together."""
        return sum(layer.window // 2 for layer in self.layers)

    @property
    def pooled(self) -> int:
        """Displacements after pooling, on each axis."""
        return self.across // 2

    @property
    def left_vectors(self) -> int:
        """Vectors in a row of the left array."""
        return -(-(self.size + 2 * self.margin) // VECTOR)

    @property
    def right_vectors(self) -> int:
        """Vectors in a row of the right array, for all displacements up to shifts within a vector."""
        return self.left_vectors + (self.across - 1) // VECTOR


class StageInputs(NamedTuple):
    """What a stage reads.

    Attributes
    ----------
    left, right : array
        Features of both sides, in the layout of the program that runs the stage.
    channels : int
        Channels of the pixels, which the first stage reads.
    numbers : array of shape (layers, 3)
        Parameters of the layers: σ_b², σ_b² times the rate of biases, the rate of weights.
    planes : tuple of arrays or None
        Pooled Σ (and Θ) of the previous stage; None for the first stage.
    """

    left: Array
    right: Array
    channels: int
    numbers: Array
    planes: tuple[Array, ...] | None = None


def left_side(stage: Stage, features: Array, tile: PairTile) -> Array:
    """Transpose rows × columns × features × images to tiles × rows × vectors × features × images of a tile × columns.

    Features are pixels (in the first stage), then the standard deviation at every layer.
    """
    rows, columns = np.arange(stage.plane_rows) - stage.lead_rows, np.arange(VECTOR * stage.left_vectors) - stage.margin
    return _in_tiles(stage, features, rows, columns, tile.rows)


def right_side(stage: Stage, features: Array, tile: PairTile) -> Array:
    """Like `left_side`, with one period of rows, and columns for every displacement; once per shift within a vector."""
    columns = np.arange(VECTOR * stage.right_vectors) - stage.margin
    shifted = [_in_tiles(stage, features, np.arange(stage.down), (columns + k) % stage.across, tile.columns)
               for k in range(VECTOR)]  # fmt: skip
    return jnp.stack(shifted)


def _in_tiles(stage: Stage, A: Array, rows: np.ndarray, columns: np.ndarray, images: int) -> Array:
    """Select rows and columns; outside the image they wrap around (circular), or are zero."""
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
    """Columns that the input and each layer need, so that the last layer has columns first … last."""
    found = [(first, last)]
    for layer in reversed(stage.layers):
        half = layer.window // 2
        low, high = found[0][0] - half, found[0][1] + half
        found.insert(0, (low, high) if stage.circular else (max(low, 0), min(high, stage.size)))
    return found


def pooling_table(stage: Stage, lanes: int) -> np.ndarray:
    """For every vertical displacement and row: the start of its pooled pairs, or WAITING, or OUTSIDE."""
    if stage.last:
        return np.zeros(1, int)
    dy, row = np.arange(stage.down)[:, None], np.arange(stage.plane_rows)[None, :] - stage.lead_rows
    d = dy - stage.down * (row + dy >= stage.down)
    a, odd = row % 2, d % 2
    D, part = (d + odd * a) // 2 % stage.pooled, 1 + odd * (1 - 2 * a)
    cells = stage.size // 2
    begin = (((D * PARTS + part) * (stage.pooled + 1)) * cells + row // 2) * cells * lanes
    # the first of two rows waits for the second, unless they contribute to different pairs
    begin = np.where((odd == 0) & (a == 0), WAITING, begin)
    return np.where((row >= 0) & (row < stage.size), begin, OUTSIDE).ravel()
