"""Kernels of images that do not tell an image from its mirror image: the mean over flips of both arguments [C1].

Regression with it is regression on all images and their mirror images, at a fourth of the pairs (or half of them).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import Points, count
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram_tiles import part, starts
from unlazy.kernels.evaluation.validation import admit_diagonal
from unlazy.kernels.networks.layered import LayeredKernel
from unlazy.layers.description import (
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
)  # fmt: skip
from unlazy.layers.description.traversal import with_shapes

WIDTH = 2
"""The axis of (n, height, width, channels) that is turned round."""
DIAGONAL_BLOCK = 8
"""Images per block of the diagonal on a GPU, which evaluates whole tiles of 8 × 8 pairs anyway."""
_PLAIN = (Activation, Dense, Dropout, Flatten, GlobalSumPool, Identity, LayerNorm)
"""Layers that do the same in every position, or to all of them alike."""


class _Two(NamedTuple):
    """Images and their mirror images, of a kernel with k(flip x, flip z) = k(x, z)."""

    plain: Any
    flipped: Any


class _Four(NamedTuple):
    """The same of a kernel that is not known to be so."""

    plain: Any
    flipped: Any


class Flipped(Kernel):
    """The mean of k over horizontal flips of both images: ½(k(x, z) + k(x, flip z)) where k(flip x, flip z) = k(x, z).

    Made by `with_flips`. Where a kernel is not known to be symmetric, all four are evaluated.
    """

    kernel: Kernel

    def __check_init__(self) -> None:
        if self.kernel.takes != "array":
            raise ValueError(
                f"flips need a kernel of images such as NTK(layers.myrtle(5)), and {type(self.kernel).__name__} takes "
                f"a {self.kernel.takes}: begin a description with layers.Flatten() for a fully connected one"
            )

    @property
    def takes(self) -> str:
        return "array"

    @property
    def costly(self) -> bool:
        return self.kernel.costly

    def read(self, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")) -> tuple[Any, Any]:
        X, Z = self.kernel.read(X, Z, names)
        _check(X, names[0])
        return X, Z

    def prepare(self, X: Any) -> Any:
        return self.sides(X)[0]

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Both sides with their mirror images: products take either for the left one."""
        _check(X, "X")
        kind = _Two if symmetric(self.kernel, X.shape[1:]) else _Four
        left, right = self.kernel.sides(_with_mirrors(X), None if Z is None else _with_mirrors(Z), keyed)
        return kind(*_halves(left)), None if right is None else kind(*_halves(right))

    def block(self, left: Any, right: Any) -> Any:
        return self._mean(self.kernel.block, left, right)

    def accurate_block(self, left: Any, right: Any) -> Any:
        return self._mean(self.kernel.accurate_block, left, right)

    def _mean(self, block: Any, left: Any, right: Any) -> Any:
        found = [block(left.plain, right.plain), block(left.plain, right.flipped)]
        if isinstance(left, _Four):
            found += [block(left.flipped, right.plain), block(left.flipped, right.flipped)]
        return jax.tree.map(lambda *values: sum(values) / len(values), *found)

    def diag(self, X: Points) -> Any:
        return self.on_diagonal(self.read(X)[0])

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        return jax.tree.map(lambda values: admit_diagonal(values, X), _diagonal(self, X))

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        self.kernel.admit(*points, names=names, accurate=accurate)

    def held(self, X: Any, accurate: bool = False) -> int:
        return 4 * self.kernel.held(X, accurate)


def with_flips(kernel: Kernel) -> Kernel:
    """The mean of a kernel over horizontal flips of both images, (n, height, width, channels).

    It costs two pairs, not four, for networks whose windows lie evenly on the width (`myrtle`; 3 × 3 convolutions,
    pools that divide it).

    >>> from unlazy.kernels.networks.flips import with_flips
    >>> kernel = with_flips(NTK(myrtle(5)))
    >>> image = np.random.default_rng(0).normal(size=(4, 4, 3))
    >>> bool(np.allclose(kernel(image, image), kernel(image, image[:, ::-1])))
    True
    """
    return kernel if isinstance(kernel, Flipped) else Flipped(kernel)


def symmetric(kernel: Kernel, shape: tuple[int, ...]) -> bool:
    """Whether k(flip x, flip z) = k(x, z) is known of images of this shape; sums and multiples of kernels are asked."""
    if isinstance(kernel, LayeredKernel):
        layers = with_shapes(kernel.network, Shape(shape[:-1], shape[-1]))
        return all(_even(layer, before.positions) for layer, before in layers)
    parts = getattr(kernel, "parts", None)
    return parts is not None and all(symmetric(k, shape) or k.takes == "tree" for k in parts())


def _even(layer: Layer, positions: tuple[int, ...]) -> bool:
    """Whether a layer commutes with a flip of the second axis of positions, in law."""
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
def _diagonal(kernel: Flipped, X: Array) -> Any:
    """k(x, x) of every image, from the diagonals of small square blocks.

    One pair per block on the CPU, where a pair of large images fills the cache.
    """
    side, n = kernel.prepare(X), count(X)
    size = 1 if devices.is_host() else min(n, DIAGONAL_BLOCK)
    corners = jnp.asarray(starts(n, size))

    def of_block(start: Array) -> Any:
        points = part(side, start, size)
        return jax.tree.map(jnp.diagonal, kernel.block(points, points))

    found = jax.lax.map(of_block, corners)
    rows = corners[:, None] + jnp.arange(size)
    return jax.tree.map(lambda values: jnp.zeros(n, values.dtype).at[rows].set(values), found)


def _with_mirrors(X: Array) -> Array:
    return jnp.concatenate([X, jnp.flip(X, WIDTH)])


def _halves(side: Any) -> tuple[Any, Any]:
    n = count(side) // 2
    return jax.tree.map(lambda leaf: leaf[:n], side), jax.tree.map(lambda leaf: leaf[n:], side)


def _check(X: Any, name: str) -> None:
    if np.ndim(X) != 4:
        raise ValueError(f"flips are of images, {name} of shape (n, height, width, channels), got {np.shape(X)}")
