"""The Gram matrix itself, in tiles that stay in the cache; symmetric halves are computed once."""

import math

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.inputs import Points
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.pairs import both_sides, embedded, entries, read_sides

TILE = 800
"""Side of a square tile on the CPU: its entries stay in the cache until they are copied out. For n = 20,000 sides
from 400 to 1,000 cost the same within noise, 250 and 2,000 nearly twice as much."""


def gram(
    kernel: Kernel, X: Points, Z: Points | None = None, memory: int | str | None = None
) -> Float[Array, "n m"]:
    """K(X, Z), or K(X, X) exactly symmetric with an exact diagonal; refused where it does not fit the budget."""
    X, Z = read_sides(kernel, X, Z)
    n, m = X.shape[0], (X if Z is None else Z).shape[0]
    need, budget = n * m * X.dtype.itemsize, memory_budget(memory)
    if need > budget:
        raise ValueError(
            f"a Gram matrix of {n} × {m} takes {need / 2**30:.3g} GiB and the memory budget is {budget / 2**30:.3g} "
            "GiB: use products.matmul, which never forms it, or allow more with memory='8GiB'"
        )
    if jax.default_backend() != "cpu":
        return kernel.gram(X, Z)
    return jax.device_put(fill(kernel, X, Z))


def fill(kernel: Kernel, X: Float[Array, "n d"], Z: Float[Array, "m _"] | None = None) -> Float[np.ndarray, "n m"]:
    """The same as a NumPy array of one's own, which LAPACK may overwrite; JAX takes it without a copy."""
    n, m = X.shape[0], (X if Z is None else Z).shape[0]
    if min(n, m) < TILE:
        K = aligned((n, m), X.dtype)
        K[...] = kernel.gram(X, Z)
        return K
    left, right = _embedded(kernel, *both_sides(kernel, X, Z))
    return _rectangular(kernel, left, right) if Z is not None else _symmetric(kernel, left, np.asarray(kernel.diag(X)))


def aligned(shape: tuple[int, int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """An empty array that starts at a multiple of 64 bytes: only such memory does JAX take over without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


_embedded = jax.jit(embedded)


def _starts(n: int) -> list[int]:
    """Where tiles begin; the last overlaps the one before, so that all have one shape and one compilation."""
    return [min(i * TILE, n - TILE) for i in range(math.ceil(n / TILE))]


def _symmetric(kernel: Kernel, points: Array, diagonal: np.ndarray) -> np.ndarray:
    K = aligned((points.shape[0],) * 2, points.dtype)
    starts = _starts(points.shape[0])
    for a, i in enumerate(starts):
        for j in starts[:a]:
            tile = np.asarray(_tile(kernel, points, points, i, j))
            K[i : i + TILE, j : j + TILE] = tile
            K[j : j + TILE, i : i + TILE] = tile.T
    for i in starts:  # last, since an overlapping last tile reaches into these
        lower = np.tril(np.asarray(_tile(kernel, points, points, i, i)), -1)
        K[i : i + TILE, i : i + TILE] = lower + lower.T
    np.fill_diagonal(K, diagonal)
    return K


def _rectangular(kernel: Kernel, left: Array, right: Array) -> np.ndarray:
    K = aligned((left.shape[0], right.shape[0]), left.dtype)
    for i in _starts(left.shape[0]):
        for j in _starts(right.shape[0]):
            K[i : i + TILE, j : j + TILE] = _tile(kernel, left, right, i, j)
    return K


@jax.jit
def _tile(kernel: Kernel, left: Array, right: Array, i: int | Array, j: int | Array) -> Array:
    return entries(
        kernel, jax.lax.dynamic_slice_in_dim(left, i, TILE), jax.lax.dynamic_slice_in_dim(right, j, TILE)
    )
