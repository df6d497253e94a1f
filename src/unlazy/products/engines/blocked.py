"""K @ V, Kᵀ @ U and Kᵀ(K @ V) by row blocks: K is never formed, and each block stays in the cache until it is used.

Every kernel is symmetric, K(X, Z) = K(Z, X)ᵀ, so blocks always run along the longer side and are as wide as the shorter
one. If that is too wide, the shorter side is split as well.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Labels, Points, float_type, n_points
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram_tiles import part
from unlazy.products.engines.pairs import add_compensated, as_columns, entries, prepare_sides, validated_sides

CPU_ROWS = 128
"""Rows of a block on the CPU: twice as fast as 2,048 at m = 20,000, since entries are used while they are cached."""
CPU_ENTRIES = 2**19
"""Minimum number of entries of a block on the CPU, so that loop overhead stays small for narrow products."""
GPU_ENTRIES = 2**26
"""Entries of a block on an accelerator, where each entry is written and read once."""
TEMPORARIES = 4
"""Arrays of a block's size alive at once while its entries are evaluated."""
MAX_COLUMNS = 2**16
"""Maximum number of columns of a block: beyond it, even 128 rows exceed every cache."""


def matmul(kernel: Kernel, X: Points, Z: Points, V: Labels, memory: int | str | None = None) -> Float[Array, " n *c"]:
    """K(X, Z) @ V."""
    left, right = _prepared(kernel, *validated_sides(kernel, X, Z))
    columns = as_columns(V, n_points(right), "V", float_type(left))
    return apply(kernel, left, right, columns, memory).reshape((n_points(left), *np.shape(V)[1:]))


def apply(
    kernel: Kernel, left: Any, right: Any, V: Float[Array, "m c"], memory: int | str | None = None
) -> Float[Array, "n c"]:
    """K @ V for prepared sides."""
    n, m = n_points(left), n_points(right)
    along_left = n >= m
    width = min(n, m, MAX_COLUMNS)
    rows = block_rows(max(n, m), width, V.dtype.itemsize, memory)
    total = jnp.zeros((n, V.shape[1]), V.dtype) if along_left else None
    parts = []
    for j in range(0, min(n, m), width):
        if along_left:
            total = total + _matmul(kernel, left, _rows(right, j, width), V[j : j + width], rows)
        else:
            parts.append(_rmatmul(kernel, right, _rows(left, j, width), V, rows))
    return total if along_left else jnp.concatenate(parts)  # type: ignore[return-value]


def normal(
    kernel: Kernel,
    left: Any,
    right: Any,
    V: Float[Array, "m c"],
    memory: int | str | None = None,
    real: int | Array | None = None,
) -> Float[Array, "m c"]:
    """Kᵀ(K V) for prepared sides, with one evaluation of each entry instead of two if a block spans all columns. Only
    the first `real` rows count (by default all); the others are padding."""
    n, m = n_points(left), n_points(right)
    if m > MAX_COLUMNS or m > n:
        U = apply(kernel, left, right, V, memory)
        U = U if real is None else jnp.where((jnp.arange(n) < real)[:, None], U, 0)
        return apply(kernel, right, left, U, memory)
    return _normal(kernel, left, right, V, block_rows(n, m, V.dtype.itemsize, memory), real)


def block_rows(n: int, width: int, itemsize: int, memory: int | str | None = None) -> int:
    """Number of rows of a block: the fastest size for the CPU cache or the GPU, within the memory budget."""
    on_cpu = devices.is_host()
    liked = max(CPU_ROWS, CPU_ENTRIES // width) if on_cpu else max(CPU_ROWS, GPU_ENTRIES // width)
    allowed = memory_budget(memory) // (TEMPORARIES * width * itemsize)
    return int(max(1, min(n, liked, allowed)))


_prepared = jax.jit(prepare_sides)


@functools.partial(jax.jit, static_argnames="rows")
def _matmul(kernel: Kernel, left: Any, right: Any, V: Array, rows: int) -> Array:
    n = n_points(left)

    def fill(i: Array, out: Array) -> Array:
        start = jnp.minimum(i * rows, n - rows)  # the last block overlaps the one before: no padding
        K = entries(kernel, part(left, start, rows), right)
        return jax.lax.dynamic_update_slice_in_dim(out, dot(K, V), start, 0)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, jnp.zeros((n, V.shape[1]), V.dtype))


@functools.partial(jax.jit, static_argnames="rows")
def _rmatmul(kernel: Kernel, left: Any, right: Any, U: Array, rows: int) -> Array:
    """K(left, right)ᵀ @ U."""
    n = n_points(left)

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        start = jnp.minimum(i * rows, n - rows)
        K = entries(kernel, part(left, start, rows), right)
        return add_compensated(sums, _transposed_dot(K, _fresh(part(U, start, rows), start, i * rows)))

    zero = jnp.zeros((n_points(right), U.shape[1]), U.dtype)
    return jax.lax.fori_loop(0, math.ceil(n / rows), add, (zero, zero))[0]


@functools.partial(jax.jit, static_argnames="rows")
def _normal(kernel: Kernel, left: Any, right: Any, V: Array, rows: int, real: int | Array | None) -> Array:
    n = n_points(left)

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        start = jnp.minimum(i * rows, n - rows)
        K = entries(kernel, part(left, start, rows), right)
        return add_compensated(sums, _transposed_dot(K, _fresh(dot(K, V), start, i * rows, real)))

    zero = jnp.zeros((n_points(right), V.shape[1]), V.dtype)
    return jax.lax.fori_loop(0, math.ceil(n / rows), add, (zero, zero))[0]


def _rows(side: Any, start: int, width: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[start : start + width], side)


def _fresh(part: Array, start: Array, first: Array, end: int | Array | None = None) -> Array:
    """Set rows to zero that an earlier block has already counted, and padding rows."""
    index = start + jnp.arange(part.shape[0])
    counts = index >= first if end is None else (index >= first) & (index < end)
    return jnp.where(counts[:, None], part, 0)


def _transposed_dot(K: Array, U: Array) -> Array:
    """Kᵀ @ U written as (Uᵀ @ K)ᵀ, which is 20 times faster for one column in XLA's CPU backend."""
    return dot(U.T, K).T
