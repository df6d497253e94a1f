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
    if Z is not None and X.shape[1] != Z.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns and Z has {Z.shape[1]}; they must agree")
    X = jnp.asarray(X, dtype=jnp.result_type(X, 0.0))
    Z = None if Z is None else jnp.asarray(Z, dtype=X.dtype)
    on_diagonal = diagonal(formula, X)
    if Z is not None:
        diagonal(formula, Z)
    columns = X.shape[0] if Z is None else Z.shape[0]
    rows = _rows_at_once(X, columns, accurate)
    return _gram(formula, X, Z, on_diagonal, accurate, rows)


def by_blocks(kernel: Any, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
    """K(X, Z) of a kernel that gives `block(rows, columns)` and `diag`, a block of rows at a time."""
    X = jnp.asarray(X, dtype=jnp.result_type(X, 0.0))
    other = X if Z is None else jnp.asarray(Z, X.dtype)
    rows = _rows_at_once(X, other.shape[0], False)
    return _by_blocks(kernel, X, other, kernel.diag(X) if Z is None else None, rows)


@functools.partial(jax.jit, static_argnames=("rows",))
def _by_blocks(kernel: Any, X: Array, Z: Array, on_diagonal: Array | None, rows: int | None) -> Array:
    K = kernel.block(X, Z) if rows is None else _by_rows(kernel.block, X, Z, rows)
    if on_diagonal is None:
        return K
    i = jnp.arange(X.shape[0])
    return K.at[i, i].set(on_diagonal)


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
    if rows is None:
        K = _block(formula, left, right, accurate)
    else:
        K = _by_rows(lambda a, b: _block(formula, a, b, accurate), left, right, rows)
    if Z is None:
        i = jnp.arange(X.shape[0])
        K = jax.tree.map(lambda k, v: k.at[i, i].set(v), K, on_diagonal)
    return K


def _embedded(formula: Any, X: Array, Z: Array | None) -> tuple[Array, Array]:
    left = formula.embed(X)
    right = left if Z is None else formula.embed(Z)
    if formula.stationary:
        # the distance does not change, and its rounding is then relative to the spread, not to the offset
        centre = jnp.mean(right, 0)
        left, right = (left - centre, right - centre) if Z is not None else (left - centre,) * 2
    return left, right


def _block(formula: Any, left: Array, right: Array, accurate: bool) -> Any:
    """The entries of some rows against all columns."""
    xx, zz = squares(left)[:, None], squares(right)[None, :]
    if accurate:
        distance = squared_distances(left, right)
        chord = squared_distances(left * safe_reciprocal(safe_sqrt(xx)), right * safe_reciprocal(safe_sqrt(zz.T)))
        return formula.entry_distance(distance, 0.5 * chord, xx, zz)
    xz = jnp.matmul(left, right.T, precision=jax.lax.Precision.HIGHEST)
    return formula.entry(snap(xz, xx, zz, left.shape[1]), xx, zz)


def _by_rows(block: Callable[[Array, Array], Any], left: Array, right: Array, rows: int) -> Any:
    """The same, `rows` at a time, written in place; the last block overlaps the one before."""
    n = left.shape[0]
    shape = jax.eval_shape(lambda: block(left[:rows], right))
    outputs = jax.tree.map(lambda s: jnp.zeros((n, s.shape[1]), s.dtype), shape)

    def fill(i: Array, K: Any) -> Any:
        start = jnp.minimum(i * rows, n - rows)
        part = block(jax.lax.dynamic_slice_in_dim(left, start, rows), right)
        return jax.tree.map(lambda k, p: jax.lax.dynamic_update_slice_in_dim(k, p, start, 0), K, part)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, outputs)


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
