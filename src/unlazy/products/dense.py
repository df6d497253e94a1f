"""The Gram matrix itself, in tiles that stay in the cache; symmetric halves are computed once."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.pairs import embedded, entries, same_width

TILE = 500
"""Side of a square tile on the CPU. For n = 20,000 in CPU-seconds: 250 gave 1.9, 500 1.1, 1,000 1.2, 2,000 2.1;
powers of two are slower (a stride of 2^k bytes sends the transposed writes to few cache sets)."""


def gram(
    kernel: Kernel, X: Float[Array, "n d"], Z: Float[Array, "m _"] | None = None, memory: int | str | None = None
) -> Float[Array, "n m"]:
    """K(X, Z), or K(X, X) exactly symmetric with an exact diagonal; refused where it does not fit the budget."""
    if Z is not None:
        same_width(X, Z)
    n, m = X.shape[0], (X if Z is None else Z).shape[0]
    need, budget = n * m * X.dtype.itemsize, memory_budget(memory)
    if need > budget:
        raise ValueError(
            f"a Gram matrix of {n} × {m} takes {need / 2**30:.3g} GiB and the memory budget is {budget / 2**30:.3g} "
            "GiB: use products.matmul, which never forms it, or allow more with memory='8GiB'"
        )
    if jax.default_backend() != "cpu" or min(n, m) <= TILE:
        return kernel.gram(X, Z)
    left, right = _embedded(kernel, X, Z)
    if Z is None:
        return _symmetric(kernel, left, kernel.diag(X))
    return _rectangular(kernel, left, right)


_embedded = jax.jit(embedded)


def _symmetric(kernel: Kernel, points: Array, diagonal: Array) -> Array:
    n = points.shape[0]
    K = jnp.zeros((n, n), points.dtype)
    starts = [min(i * TILE, n - TILE) for i in range(math.ceil(n / TILE))]
    for a, i in enumerate(starts):
        for j in starts[:a]:
            K = _write_pair(K, kernel, points, i, j)
    for i in starts:  # last, since an overlapping last tile reaches into these
        K = _write_diagonal(K, kernel, points, diagonal, i)
    return K


def _rectangular(kernel: Kernel, left: Array, right: Array) -> Array:
    n, m = left.shape[0], right.shape[0]
    K = jnp.zeros((n, m), left.dtype)
    for i in range(math.ceil(n / TILE)):
        for j in range(math.ceil(m / TILE)):
            K = _write(K, kernel, left, right, min(i * TILE, n - TILE), min(j * TILE, m - TILE))
    return K


def _rows(points: Array, start: Array | int) -> Array:
    return jax.lax.dynamic_slice_in_dim(points, start, TILE)


@functools.partial(jax.jit, donate_argnums=0)
def _write(K: Array, kernel: Kernel, left: Array, right: Array, i: int | Array, j: int | Array) -> Array:
    return jax.lax.dynamic_update_slice(K, entries(kernel, _rows(left, i), _rows(right, j)), (i, j))


@functools.partial(jax.jit, donate_argnums=0)
def _write_pair(K: Array, kernel: Kernel, points: Array, i: int | Array, j: int | Array) -> Array:
    tile = entries(kernel, _rows(points, i), _rows(points, j))
    K = jax.lax.dynamic_update_slice(K, tile.T, (j, i))
    return jax.lax.dynamic_update_slice(K, tile, (i, j))


@functools.partial(jax.jit, donate_argnums=0)
def _write_diagonal(K: Array, kernel: Kernel, points: Array, diagonal: Array, i: int | Array) -> Array:
    tile = entries(kernel, _rows(points, i), _rows(points, i))
    lower = jnp.tril(tile, -1)
    exact = jnp.diag(jax.lax.dynamic_slice_in_dim(diagonal, i, TILE))
    return jax.lax.dynamic_update_slice(K, lower + lower.T + exact, (i, i))
