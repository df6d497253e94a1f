"""The Gram matrix itself, in tiles that stay in the cache; symmetric halves are computed once."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Points, count, float_type
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram_tiles import part, starts, symmetric_tiles
from unlazy.products.engines.pairs import both_sides, entries, prepared

TILE = 800
"""Side of a square tile on the CPU: its entries stay in the cache until they are copied out. For n = 20,000 sides
from 400 to 1,000 cost the same within noise, 250 and 2,000 nearly twice as much."""


def gram(kernel: Kernel, X: Points, Z: Points | None = None, memory: int | str | None = None) -> Float[Array, "n m"]:
    """K(X, Z), or K(X, X) exactly symmetric with an exact diagonal; refused where it does not fit the budget."""
    X, Z = kernel.read(X, Z)
    n, m = count(X), count(X if Z is None else Z)
    need, budget = n * m * float_type(X).itemsize, memory_budget(memory)
    if need > budget:
        raise ValueError(
            f"a Gram matrix of {n} × {m} takes {need / 2**30:.3g} GiB and the memory budget is {budget / 2**30:.3g} "
            "GiB: use products.matmul, which never forms it, or allow more with memory='8GiB'"
        )
    if not devices.is_host():
        return kernel.gram(X, Z)
    return jax.device_put(fill(kernel, X, Z))


def fill(kernel: Kernel, X: Any, Z: Any = None) -> Float[np.ndarray, "n m"]:
    """The same as a NumPy array of one's own, which LAPACK may overwrite; JAX takes it without a copy."""
    n, m = count(X), count(X if Z is None else Z)
    if min(n, m) < TILE:
        entries_of_K = kernel.gram(X, Z)
        K = aligned((n, m), entries_of_K.dtype)
        K[...] = entries_of_K
        return K
    left, right = _prepared(kernel, *both_sides(kernel, X, Z))
    return _rectangular(kernel, left, right) if Z is not None else _symmetric(kernel, left, np.asarray(kernel.diag(X)))


def aligned(shape: tuple[int, int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """An empty array that starts at a multiple of 64 bytes: only such memory does JAX take over without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


_prepared = jax.jit(prepared)


def _symmetric(kernel: Kernel, points: Any, diagonal: np.ndarray) -> np.ndarray:
    K = aligned((count(points),) * 2, diagonal.dtype)
    for j, i in symmetric_tiles(count(points), TILE):
        tile = np.asarray(_tile(kernel, points, points, i, j))
        if i == j:
            lower = np.tril(tile, -1)
            tile = lower + lower.T
        K[i : i + TILE, j : j + TILE] = tile
        K[j : j + TILE, i : i + TILE] = tile.T
    np.fill_diagonal(K, diagonal)
    return K


def _rectangular(kernel: Kernel, left: Any, right: Any) -> np.ndarray:
    K = aligned((count(left), count(right)), float_type(left))
    for i in starts(count(left), TILE):
        for j in starts(count(right), TILE):
            K[i : i + TILE, j : j + TILE] = _tile(kernel, left, right, i, j)
    return K


@jax.jit
def _tile(kernel: Kernel, left: Any, right: Any, i: int | Array, j: int | Array) -> Array:
    return entries(kernel, part(left, i, TILE), part(right, j, TILE))
