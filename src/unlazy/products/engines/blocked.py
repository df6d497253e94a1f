"""Blocks of K: preparation of both sides, products with blocks that are discarded, Gram matrices in tiles.

Tiles stay in the cache; of a symmetric matrix only one triangle is computed.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Matrix, Points, Side, as_floats, as_host_floats, dot, float_type, n_points
from unlazy.core.devices import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import part, symmetric_tiles, tile_offsets


def prepare_sides(kernel: Kernel, X: Points, Z: Points | None = None) -> tuple[Side, Side]:
    """Prepare both sides for the kernel, without row keys: pairs closer than rounding count as identical points."""
    left, right = kernel.sides(X, Z, keyed=False)
    return left, left if Z is None else right


def validated_sides(
    kernel: Kernel, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
) -> tuple[Points, Points | None]:
    """Convert and validate the points of both sides; every engine calls this first."""
    left, right = kernel.read(X, Z, names)
    kernel.validate(left, right, names=names)
    return left, right


_prepare_sides = jax.jit(prepare_sides)


def prepared_sides(kernel: Kernel, X: Points, Z: Points | None = None) -> tuple[Side, Side]:
    """Validate both sides and prepare them once."""
    return _prepare_sides(kernel, *validated_sides(kernel, X, Z))


def add_compensated(sums: tuple[Array, Array], part: Array) -> tuple[Array, Array]:
    """Compensated summation of Kahan (1965): add one block's part to (sum, rounding error). Over 10^5 blocks a plain
    float32 sum would lose three digits, which the preconditioner B of Nyström-CG amplifies."""
    total, lost = sums
    part = part - lost
    now = total + part
    return now, (now - total) - part


def as_columns(V: Points, rows: int, what: str, dtype: jnp.dtype, put: bool = True) -> Matrix:
    """V as a matrix of columns of the given type; raises ValueError if the number of rows differs. Without `put`, an
    array that is not a JAX array stays in host memory."""
    V = as_floats(V, what, dtype) if put or isinstance(V, jax.Array) else as_host_floats(V, what, dtype)
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise ValueError(f"{what} needs {rows} rows and one or two axes, got shape {tuple(V.shape)}")
    return V.reshape(rows, -1)


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


def apply(
    kernel: Kernel, left: Side, right: Side, V: Float[Matrix, "m c"], memory: int | None = None
) -> Float[Array, "n c"]:
    """K @ V for prepared sides, within `memory` bytes."""
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
    left: Side,
    right: Side,
    V: Float[Matrix, "m c"],
    memory: int | None = None,
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


def block_rows(n: int, width: int, itemsize: int, memory: int | None = None) -> int:
    """Number of rows of a block: the fastest size for the CPU cache or the GPU, within `memory` bytes."""
    on_cpu = devices.is_host()
    liked = max(CPU_ROWS, CPU_ENTRIES // width) if on_cpu else max(CPU_ROWS, GPU_ENTRIES // width)
    allowed = (memory_budget() if memory is None else memory) // (TEMPORARIES * width * itemsize)
    return int(max(1, min(n, liked, allowed)))


@functools.partial(jax.jit, static_argnames="rows")
def _matmul(kernel: Kernel, left: Side, right: Side, V: Array, rows: int) -> Array:
    n = n_points(left)

    def fill(i: Array, out: Array) -> Array:
        start = jnp.minimum(i * rows, n - rows)  # the last block overlaps the one before: no padding
        K = kernel.block(part(left, start, rows), right)
        return jax.lax.dynamic_update_slice_in_dim(out, dot(K, V), start, 0)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, jnp.zeros((n, V.shape[1]), V.dtype))


@functools.partial(jax.jit, static_argnames="rows")
def _rmatmul(kernel: Kernel, left: Side, right: Side, U: Array, rows: int) -> Array:
    """K(left, right)ᵀ @ U."""
    n = n_points(left)

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        start = jnp.minimum(i * rows, n - rows)
        K = kernel.block(part(left, start, rows), right)
        return add_compensated(sums, _transposed_dot(K, _fresh(part(U, start, rows), start, i * rows)))

    zero = jnp.zeros((n_points(right), U.shape[1]), U.dtype)
    return jax.lax.fori_loop(0, math.ceil(n / rows), add, (zero, zero))[0]


@functools.partial(jax.jit, static_argnames="rows")
def _normal(kernel: Kernel, left: Side, right: Side, V: Array, rows: int, real: int | Array | None) -> Array:
    n = n_points(left)

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        start = jnp.minimum(i * rows, n - rows)
        K = kernel.block(part(left, start, rows), right)
        return add_compensated(sums, _transposed_dot(K, _fresh(dot(K, V), start, i * rows, real)))

    zero = jnp.zeros((n_points(right), V.shape[1]), V.dtype)
    return jax.lax.fori_loop(0, math.ceil(n / rows), add, (zero, zero))[0]


def _rows(side: Side, start: int, width: int) -> Side:
    return jax.tree.map(lambda leaf: leaf[start : start + width], side)


def _fresh(part: Array, start: Array, first: Array, end: int | Array | None = None) -> Array:
    """Set rows to zero that an earlier block has already counted, and padding rows."""
    index = start + jnp.arange(part.shape[0])
    counts = index >= first if end is None else (index >= first) & (index < end)
    return jnp.where(counts[:, None], part, 0)


def _transposed_dot(K: Array, U: Array) -> Array:
    """Kᵀ @ U written as (Uᵀ @ K)ᵀ, which is 20 times faster for one column in XLA's CPU backend."""
    return dot(U.T, K).T


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


def gram_numpy(kernel: Kernel, X: Points, Z: Points | None = None) -> Float[np.ndarray, "n m"]:
    """The Gram matrix as a new NumPy array, which LAPACK may overwrite and JAX can use without a copy."""
    n, m = n_points(X), n_points(X if Z is None else Z)
    if min(n, m) < TILE:
        entries_of_K = kernel.gram(X, Z)
        K = empty_aligned((n, m), entries_of_K.dtype)
        K[...] = entries_of_K
        return K
    left, right = prepared_sides(kernel, X, Z)
    return _rectangular(kernel, left, right) if Z is not None else _symmetric(kernel, left, np.asarray(kernel.diag(X)))


def empty_aligned(shape: tuple[int, int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """An empty array aligned to 64 bytes, which JAX requires to use the memory without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _symmetric(kernel: Kernel, points: Side, diagonal: np.ndarray) -> np.ndarray:
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


def _rectangular(kernel: Kernel, left: Side, right: Side) -> np.ndarray:
    K = empty_aligned((n_points(left), n_points(right)), float_type(left))
    for i in tile_offsets(n_points(left), TILE):
        for j in tile_offsets(n_points(right), TILE):
            K[i : i + TILE, j : j + TILE] = _tile(kernel, left, right, i, j)
    return K


@jax.jit
def _tile(kernel: Kernel, left: Side, right: Side, i: int | Array, j: int | Array) -> Array:
    return kernel.block(part(left, i, TILE), part(right, j, TILE))
