"""Kernels of images that are invariant under horizontal flips: the mean over flips of both arguments [C1].

Regression with such a kernel is regression on all images and their mirror images, with a fourth (or half) of the pairs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import Entries, Points, Side, n_points
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import Block, part, tile_offsets, validate_diagonal
from unlazy.kernels.networks.layered import LayeredKernel
from unlazy.layers import (  # fmt: skip
    Activation,
    Dense,
    Dropout,
    Flatten,
    GlobalSumPool,
    Identity,
    ImageResize,
    Layer,
    LayerNorm,
    Shape,
)
from unlazy.layers.traversal import with_shapes

WIDTH = 2
"""The axis of (n, height, width, channels) that is flipped."""
DIAGONAL_BLOCK = 8
"""Images per block of the diagonal on a GPU, which evaluates complete tiles of 8 × 8 pairs anyway."""
_PLAIN = (Activation, Dense, Dropout, Flatten, GlobalSumPool, Identity, LayerNorm)
"""Layers that act alike on every position, or on all of them together."""


class _SymmetricPair(NamedTuple):
    """Images and their mirror images, for a kernel with k(flip x, flip z) = k(x, z)."""

    plain: Side
    flipped: Side


class _GeneralPair(NamedTuple):
    """Images and their mirror images, for a kernel that is not known to be symmetric."""

    plain: Side
    flipped: Side


_Pair = _SymmetricPair | _GeneralPair


class Flipped(Kernel):
    """Mean of a kernel over horizontal flips of both images; use `with_flips` to construct it.

    It is ½(k(x, z) + k(x, flip z)) if k(flip x, flip z) = k(x, z). If the kernel is not known to be symmetric, all four
    terms are evaluated.

    Parameters
    ----------
    kernel : Kernel
        A kernel of images.

    Raises
    ------
    ValueError
        If the kernel is not a kernel of images.
    """

    kernel: Kernel

    def __check_init__(self) -> None:
        if self.kernel.input_kind != "array":
            raise ValueError(
                f"flips need a kernel of images such as NTK(layers.myrtle(5)), but {type(self.kernel).__name__} takes "
                f"a {self.kernel.input_kind}: begin a fully connected description with layers.Flatten()"
            )

    @property
    def input_kind(self) -> str:
        return "array"

    @property
    def expensive(self) -> bool:
        return self.kernel.expensive

    def read(
        self, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
    ) -> tuple[Array, Array | None]:
        X, Z = self.kernel.read(X, Z, names)
        _check(X, names[0])
        return X, Z

    def prepare(self, X: Array) -> _Pair:
        return self.sides(X)[0]

    def sides(self, X: Array, Z: Array | None = None, keyed: bool = True) -> tuple[_Pair, _Pair | None]:
        """Prepare both sides with their mirror images: products may use either as the left one."""
        _check(X, "X")
        kind = _SymmetricPair if is_flip_symmetric(self.kernel, X.shape[1:]) else _GeneralPair
        left, right = self.kernel.sides(_with_mirrors(X), None if Z is None else _with_mirrors(Z), keyed)
        return kind(*_halves(left)), None if right is None else kind(*_halves(right))

    def block(self, left: _Pair, right: _Pair) -> Entries:
        return self._mean(self.kernel.block, left, right)

    def accurate_block(self, left: _Pair, right: _Pair) -> Entries:
        return self._mean(self.kernel.accurate_block, left, right)

    def _mean(self, block: Block, left: _Pair, right: _Pair) -> Entries:
        """Mean of the blocks over flips."""
        found = [block(left.plain, right.plain), block(left.plain, right.flipped)]
        if isinstance(left, _GeneralPair):
            found += [block(left.flipped, right.plain), block(left.flipped, right.flipped)]
        return jax.tree.map(lambda *values: sum(values) / len(values), *found)

    def diag(self, X: Points) -> Entries:
        X = self.read(X)[0]
        return jax.tree.map(lambda values: validate_diagonal(values, X), _diagonal(self, X))

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        self.kernel.validate(*points, names=names, accurate=accurate)

    def values_per_pair(self, X: Array, accurate: bool = False) -> int:
        return 4 * self.kernel.values_per_pair(X, accurate)


def with_flips(kernel: Kernel) -> Kernel:
    """Return the mean of a kernel over horizontal flips of both images.

    It costs two evaluations per pair, not four, for networks whose windows are symmetric on the width (`myrtle`; 3 × 3
    convolutions, pools that divide the width).

    Parameters
    ----------
    kernel : Kernel
        A kernel of images of shape (n, height, width, channels).

    Returns
    -------
    Kernel
        The kernel that is invariant under flips.

    Raises
    ------
    ValueError
        If the kernel is not a kernel of images.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import NTK
    >>> from unlazy.kernels.networks.flips import with_flips
    >>> from unlazy.layers import myrtle
    >>> kernel = with_flips(NTK(myrtle(5)))
    >>> image = np.random.default_rng(0).normal(size=(4, 4, 3))
    >>> bool(np.allclose(kernel(image, image), kernel(image, image[:, ::-1])))
    True
    """
    return kernel if isinstance(kernel, Flipped) else Flipped(kernel)


def is_flip_symmetric(kernel: Kernel, shape: tuple[int, ...]) -> bool:
    """Whether k(flip x, flip z) = k(x, z) is known for images of this shape.

    Sums and multiples of kernels are symmetric if their parts are.
    """
    if isinstance(kernel, LayeredKernel):
        layers = with_shapes(kernel.network, Shape(shape[:-1], shape[-1]))
        return all(_commutes_with_flip(layer, before.positions) for layer, before in layers)
    parts = getattr(kernel, "parts", None)
    return parts is not None and all(is_flip_symmetric(k, shape) or k.input_kind == "tree" for k in parts())


def _commutes_with_flip(layer: Layer, positions: tuple[int, ...]) -> bool:
    """Whether a layer commutes in distribution with a flip of the second axis of positions."""
    if isinstance(layer, _PLAIN):
        return True
    axis = WIDTH - 1
    if len(positions) <= axis:
        return False
    if isinstance(layer, ImageResize):
        matrix = layer.matrices(positions)[axis]
        return np.array_equal(matrix, matrix[::-1, ::-1])
    if not hasattr(layer, "over"):
        return False
    window = layer.over(positions)[axis]
    spread = positions[axis] * window.spread if window.wraps else (positions[axis] - 1) * window.spread + 1
    left_over = (spread + window.low + window.high - window.span) % window.stride
    return window.low == window.high and left_over == 0


@jax.jit
def _diagonal(kernel: Flipped, X: Array) -> Entries:
    """k(x, x) of every image, from the diagonals of small square blocks.

    One pair per block on the CPU, where a pair of large images fills the cache.
    """
    side, n = kernel.prepare(X), n_points(X)
    size = 1 if devices.is_host() else min(n, DIAGONAL_BLOCK)
    corners = jnp.asarray(tile_offsets(n, size))

    def of_block(start: Array) -> Entries:
        points = part(side, start, size)
        return jax.tree.map(jnp.diagonal, kernel.block(points, points))

    found = jax.lax.map(of_block, corners)
    rows = corners[:, None] + jnp.arange(size)
    return jax.tree.map(lambda values: jnp.zeros(n, values.dtype).at[rows].set(values), found)


def _with_mirrors(X: Array) -> Array:
    """Images followed by their mirror images."""
    return jnp.concatenate([X, jnp.flip(X, WIDTH)])


def _halves(side: Side) -> tuple[Side, Side]:
    """Split a side into images and mirror images."""
    n = n_points(side) // 2
    return jax.tree.map(lambda leaf: leaf[:n], side), jax.tree.map(lambda leaf: leaf[n:], side)


def _check(X: Array, name: str) -> None:
    """Raise ValueError if X is not an array of images."""
    if np.ndim(X) != 4:
        raise ValueError(f"flips need images: {name} must have shape (n, height, width, channels), got {np.shape(X)}")
