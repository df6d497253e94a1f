"""Gram matrices, computed in tiles that stay in the cache; of a symmetric matrix only one triangle is computed."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Points, float_type, n_points
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram_tiles import part, starts, symmetric_tiles
from unlazy.products.engines.pairs import entries, prepare_sides, validated_sides

TILE = 800
"""Side of a square tile on the CPU, whose entries stay in the cache until they are copied out. At n = 20,000, sides
from 400 to 1,000 are equally fast within noise; 250 and 2,000 are nearly twice as slow."""


def gram(kernel: Kernel, X: Points, Z: Points | None = None, memory: int | str | None = None) -> Float[Array, "n m"]:
    """Compute the Gram matrix K(X, Z), or K(X, X).

    K(X, X) is exactly symmetric and has an exact diagonal.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows. Kernels of images or trees take their own input layout.
    Z : array of shape (m, d), optional
        Points of the columns; X by default.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (n, m)
        The Gram matrix.

    Raises
    ------
    ValueError
        If the points are invalid or the matrix exceeds the memory budget.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import gram
    >>> gram(Gaussian(1.0), np.zeros((2, 3)))
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    X, Z = kernel.read(X, Z)
    n, m = n_points(X), n_points(X if Z is None else Z)
    need, budget = n * m * float_type(X).itemsize, memory_budget(memory)
    if need > budget:
        raise ValueError(
            f"a Gram matrix of {n} × {m} needs {need / 2**30:.3g} GiB, but the memory budget is {budget / 2**30:.3g} "
            "GiB: use products.matmul, which does not form it, or increase the budget, e.g. memory='8GiB'"
        )
    if not devices.is_host():
        return kernel.gram(X, Z)
    return jax.device_put(gram_numpy(kernel, X, Z))


def gram_numpy(kernel: Kernel, X: Any, Z: Any = None) -> Float[np.ndarray, "n m"]:
    """The Gram matrix as a new NumPy array, which LAPACK may overwrite and JAX can use without a copy."""
    n, m = n_points(X), n_points(X if Z is None else Z)
    if min(n, m) < TILE:
        entries_of_K = kernel.gram(X, Z)
        K = empty_aligned((n, m), entries_of_K.dtype)
        K[...] = entries_of_K
        return K
    left, right = _prepared(kernel, *validated_sides(kernel, X, Z))
    return _rectangular(kernel, left, right) if Z is not None else _symmetric(kernel, left, np.asarray(kernel.diag(X)))


def empty_aligned(shape: tuple[int, int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """An empty array aligned to 64 bytes, which JAX requires to use the memory without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


_prepared = jax.jit(prepare_sides)


def _symmetric(kernel: Kernel, points: Any, diagonal: np.ndarray) -> np.ndarray:
    K = empty_aligned((n_points(points),) * 2, diagonal.dtype)
    for j, i in symmetric_tiles(n_points(points), TILE):
        tile = np.asarray(_tile(kernel, points, points, i, j))
        if i == j:
            lower = np.tril(tile, -1)
            tile = lower + lower.T
        K[i : i + TILE, j : j + TILE] = tile
        K[j : j + TILE, i : i + TILE] = tile.T
    np.fill_diagonal(K, diagonal)
    return K


def _rectangular(kernel: Kernel, left: Any, right: Any) -> np.ndarray:
    K = empty_aligned((n_points(left), n_points(right)), float_type(left))
    for i in starts(n_points(left), TILE):
        for j in starts(n_points(right), TILE):
            K[i : i + TILE, j : j + TILE] = _tile(kernel, left, right, i, j)
    return K


@jax.jit
def _tile(kernel: Kernel, left: Any, right: Any, i: int | Array, j: int | Array) -> Array:
    return entries(kernel, part(left, i, TILE), part(right, j, TILE))
