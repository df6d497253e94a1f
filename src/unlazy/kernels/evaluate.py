"""Gram matrices from an entry formula: exact diagonals, coincident points, row blocks, differences of inputs.

A `formula` here is any kernel-like pytree with `entry`, `entry_distance`, `embed` and `stationary`; its entries may be
a tuple (the NNGP and the NTK together), and so are then the Grams.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.memory import memory_budget
from unlazy.theory.angles import SNAP_UNITS, safe_reciprocal, safe_sqrt

CACHED_ROWS = 128
"""Rows of a block on the CPU: its inner products stay in the cache until `entry` has used them."""
TEMPORARIES = 4
"""Gram-sized arrays that one unblocked evaluation may hold besides its outputs, as measured for the NTK."""


def gram(formula: Any, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None, accurate: bool = False) -> Any:
    """K(X, Z), or K(X, X) with its diagonal set to `diagonal(X)`."""
    X, Z = _checked(X, Z)
    on_diagonal = diagonal(formula, X)
    if Z is not None:
        diagonal(formula, Z)
    rows = _rows_at_once(X, X.shape[0] if Z is None else Z.shape[0], accurate)
    return _gram(formula, X, Z, on_diagonal, accurate, rows)


def by_blocks(kernel: Any, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
    """K(X, Z) of a kernel that gives `block(rows, columns)` and `diag`, a block of rows at a time."""
    X, Z = _checked(X, Z)
    on_diagonal = kernel.diag(X)
    if not isinstance(on_diagonal, jax.core.Tracer):
        _refuse_overflow(on_diagonal, X)
    rows = _rows_at_once(X, X.shape[0] if Z is None else Z.shape[0], False)
    return _by_blocks(kernel, X, Z, on_diagonal, rows)


def diagonal(formula: Any, X: Float[Array, "n d"]) -> Any:
    """k(x, x) of every row; a ValueError where it overflows or the inputs are not finite."""
    values, xx = _diagonal(formula, X)
    if not any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(values)):
        _refuse_overflow(values, X)
        if hasattr(formula, "warn"):
            formula.warn(xx)
    return values


@jax.jit
def _diagonal(formula: Any, X: Array) -> Any:
    xx = squares(formula.embed(X))
    return formula.entry(xx, xx, xx), xx


@functools.partial(jax.jit, static_argnames=("accurate", "rows"))
def _gram(formula: Any, X: Array, Z: Array | None, on_diagonal: Any, accurate: bool, rows: int | None) -> Any:
    left, right = _embedded(formula, X, Z)
    block = functools.partial(_block, formula, accurate=accurate)
    return _assemble(block, left, right if Z is not None else None, on_diagonal, rows)


@functools.partial(jax.jit, static_argnames=("rows",))
def _by_blocks(kernel: Any, X: Array, Z: Array | None, on_diagonal: Array, rows: int | None) -> Array:
    return _assemble(kernel.block, X, Z, on_diagonal, rows)


def _assemble(block: Callable, left: Array, right: Array | None, on_diagonal: Any, rows: int | None) -> Any:
    """All entries, whole or in parts; without a right side symmetric, with the diagonal that is given."""
    if right is not None:
        return block(left, right) if rows is None else by_rows(block, left, right, rows)
    K = block(left, left) if rows is None else by_tiles(block, left, min(2 * rows, left.shape[0]))
    i = jnp.arange(left.shape[0])
    K = K if rows is not None else jax.tree.map(_mirrored, K)
    return jax.tree.map(lambda k, v: k.at[i, i].set(v), K, on_diagonal)


def _mirrored(K: Array) -> Array:
    """The upper triangle on both sides: rounding is not always symmetric."""
    i = jnp.arange(K.shape[0])
    return jnp.where(i[:, None] <= i[None, :], K, K.T)


def _embedded(formula: Any, X: Array, Z: Array | None) -> tuple[Array, Array]:
    left = formula.embed(X)
    right = left if Z is None else formula.embed(Z)
    if formula.stationary:
        # the distance does not change, and its rounding is then relative to the spread, not to the offset
        centre = jnp.mean(right, 0)
        left, right = (left - centre, right - centre) if Z is not None else (left - centre,) * 2
    return left, right


def _block(formula: Any, left: Array, right: Array, accurate: bool = False) -> Any:
    """The entries of some rows against all columns."""
    xx, zz = squares(left)[:, None], squares(right)[None, :]
    if accurate:
        distance = squared_distances(left, right)
        chord = squared_distances(left * safe_reciprocal(safe_sqrt(xx)), right * safe_reciprocal(safe_sqrt(zz.T)))
        # opposite points: there 2 - u, not u, would be needed to more digits than u has
        top = 2 - 2 * SNAP_UNITS * float(jnp.finfo(chord.dtype).eps)
        half_chord = jnp.where(0.5 * chord >= top, 2, 0.5 * chord)
        # 0 is at right angles to everything, as in `cosine_gap`
        return formula.entry_distance(distance, jnp.where((xx == 0) | (zz == 0), 1, half_chord), xx, zz)
    xz = jnp.matmul(left, right.T, precision=jax.lax.Precision.HIGHEST)
    return formula.entry(snap(xz, xx, zz, left.shape[1]), xx, zz)


def by_rows(block: Callable[[Array, Array], Any], left: Array, right: Array, rows: int) -> Any:
    """All entries, `rows` at a time, written in place; the last block overlaps the one before."""
    n = left.shape[0]

    def fill(i: Array, K: Any) -> Any:
        start = jnp.minimum(i * rows, n - rows)
        part = block(jax.lax.dynamic_slice_in_dim(left, start, rows), right)
        return jax.tree.map(lambda k, p: jax.lax.dynamic_update_slice_in_dim(k, p, start, 0), K, part)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, _empty(block, left, right, rows))


def by_tiles(block: Callable[[Array, Array], Any], points: Array, side: int) -> Any:
    """K(X, X) by square tiles above the diagonal, each written twice: half the work, and symmetric whatever rounds.

    Tiles on the diagonal come last: those at the end overlap others, and theirs is the last word.
    """
    n = points.shape[0]
    starts = [min(i * side, n - side) for i in range(math.ceil(n / side))]
    pairs = [(s, t) for i, s in enumerate(starts) for t in starts[i + 1 :]] + [(s, s) for s in starts]
    corners = jnp.asarray(pairs)

    def fill(p: Array, K: Any) -> Any:
        s, t = corners[p, 0], corners[p, 1]
        tiles = block(jax.lax.dynamic_slice_in_dim(points, s, side), jax.lax.dynamic_slice_in_dim(points, t, side))
        # without the barriers XLA would evaluate the formula again for each use, column by column
        tiles = jax.lax.optimization_barrier(tiles)
        tiles = jax.tree.map(lambda T: jax.lax.cond(s == t, _mirrored, lambda T: T, T), tiles)
        tiles = jax.lax.optimization_barrier(tiles)
        K = jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T, (s, t)), K, tiles)
        return jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T.T, (t, s)), K, tiles)

    return jax.lax.fori_loop(0, len(pairs), fill, _empty(block, points, points, side))


def _empty(block: Callable, left: Array, right: Array, rows: int) -> Any:
    shape = jax.eval_shape(lambda: block(left[:rows], right))
    return jax.tree.map(lambda s: jnp.zeros((left.shape[0], right.shape[0]), s.dtype), shape)


def _checked(X: Array, Z: Array | None) -> tuple[Array, Array | None]:
    if Z is not None and X.shape[1] != Z.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns and Z has {Z.shape[1]}; they must agree")
    X = jnp.asarray(X, dtype=jnp.result_type(X, 0.0))
    return X, None if Z is None else jnp.asarray(Z, dtype=X.dtype)


def _rows_at_once(X: Array, columns: int, accurate: bool) -> int | None:
    """How many rows to evaluate at a time; None for all. Under a transformation the caller is in charge: all."""
    n = X.shape[0]
    if isinstance(X, jax.core.Tracer):
        return None
    row_bytes = columns * X.dtype.itemsize * (TEMPORARIES + (2 * X.shape[1] if accurate else 0))
    allowed = max(1, memory_budget() // row_bytes)
    on_cpu = jax.default_backend() == "cpu"
    wanted = min(allowed, CACHED_ROWS if on_cpu and n * columns > 2**20 else n)
    return None if wanted >= n else wanted


def squared_distances(left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x-z‖² from differences, a coordinate at a time: exact to rounding however close the points are."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]


def snap_floor(dimension: int, dtype: Any) -> float:
    """Half the relative squared distance that rounding of ⟨x,z⟩ can fake when x = z.

    On the CPU `squares` adds in the order of the matrix product and agrees with it but for a few units. Elsewhere
    the orders differ: independent roundings of d terms then add up to about √d of them.
    """
    units = SNAP_UNITS if jax.default_backend() == "cpu" else SNAP_UNITS + 2 * math.sqrt(dimension)
    return units * float(jnp.finfo(dtype).eps) / 2


def snap(xz: Array, xx: Array, zz: Array, dimension: int) -> Array:
    """⟨x,z⟩ with pairs closer than the rounding floor made coincident; the derivative is left as it was."""
    middle = 0.5 * (xx + zz)
    close = middle - xz <= snap_floor(dimension, xz.dtype) * middle
    return xz + jax.lax.stop_gradient(jnp.where(close, middle - xz, 0))


def squares(X: Float[Array, "n e"]) -> Float[Array, " n"]:
    """⟨x,x⟩ of every row; on the CPU summed as the matrix product sums, so that both round alike."""
    n, e = X.shape
    if jax.default_backend() != "cpu" or n < 8:
        return jnp.sum(X * X, 1)
    padded = jnp.concatenate([X, X[: (-n) % 8]]).reshape(-1, 8, e)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.map(lambda rows: jnp.diagonal(product(rows, rows.T)), padded).reshape(-1)[:n]


def _refuse_overflow(values: Any, X: Array) -> None:
    if all(bool(jnp.isfinite(v).all()) for v in jax.tree.leaves(values)):
        return
    if not bool(jnp.isfinite(X).all()):
        raise ValueError("inputs contain NaN or infinity; remove or impute those rows")
    largest = float(jnp.max(jnp.abs(X)))
    raise ValueError(
        f"k(x, x) overflows {X.dtype} for inputs as large as {largest:.3g}; rescale the inputs (for example to unit "
        "standard deviation) or use float64"
    )
