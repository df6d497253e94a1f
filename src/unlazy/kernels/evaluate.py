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
import numpy as np
from jaxtyping import Array, Float, UInt

from unlazy.core.inputs import Points, points, sides
from unlazy.core.linear import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.admit import admit, admit_diagonal, squares
from unlazy.kernels.admit import diagonal as formula_diagonal
from unlazy.kernels.assemble import assemble, finish
from unlazy.theory.angles import SNAP_UNITS, safe_reciprocal, safe_sqrt

CACHED_ROWS = 128
"""Rows of a block on the CPU: its inner products stay in the cache until `entry` has used them."""
TEMPORARIES = 4
"""Gram-sized arrays that one unblocked evaluation may hold besides its outputs, as measured for the NTK."""


def gram(formula: Any, X: Points, Z: Points | None = None, accurate: bool = False) -> Any:
    """K(X, Z), or K(X, X) with its diagonal set to `diagonal(X)`."""
    X, Z = sides(X, Z)
    if Z is not None:
        admit(formula, X, Z, accurate=accurate)
        return _gram(formula, X, Z, accurate, _rows_at_once(X, Z.shape[0], accurate))
    on_diagonal = formula_diagonal(formula, X, accurate=accurate)
    rows = _rows_at_once(X, X.shape[0], accurate)
    return finish(_gram(formula, X, None, accurate, rows), on_diagonal, mirror=rows is None)


def by_blocks(kernel: Any, X: Points, Z: Points | None = None) -> Float[Array, "n m"]:
    """K(X, Z) of a kernel that gives `block(rows, columns)` and `diag`, a block of rows at a time."""
    X, Z = sides(X, Z)
    if Z is not None:
        admit(kernel, X, Z)
        return _by_blocks(kernel, X, Z, _rows_at_once(X, Z.shape[0], False))
    on_diagonal = kernel.diag(X)
    rows = _rows_at_once(X, X.shape[0], False)
    return finish(_by_blocks(kernel, X, None, rows), on_diagonal, mirror=rows is None)


def diagonal(formula: Any, X: Points) -> Any:
    """k(x, x) of every row; a ValueError where it overflows or the inputs are not finite."""
    return formula_diagonal(formula, points(X))


def plain_diagonal(of: Callable[[Array], Array], X: Points) -> Float[Array, " n"]:
    """The same for a kernel without an entry formula, from its own function of the rows."""
    X = points(X)
    return admit_diagonal(of(X), X)


@functools.partial(jax.jit, static_argnames=("accurate", "rows"))
def _gram(formula: Any, X: Array, Z: Array | None, accurate: bool, rows: int | None) -> Any:
    left, right = _embedded(formula, X, Z)
    block = functools.partial(_block, formula, accurate=accurate)
    keyed = (left, row_keys(X)), None if Z is None else (right, row_keys(Z))
    return assemble(block, *keyed, rows)


@functools.partial(jax.jit, static_argnames=("rows",))
def _by_blocks(kernel: Any, X: Array, Z: Array | None, rows: int | None) -> Array:
    return assemble(kernel.block, X, Z, rows)


def _embedded(formula: Any, X: Array, Z: Array | None) -> tuple[Array, Array]:
    left = formula.embed(X)
    right = left if Z is None else formula.embed(Z)
    if formula.stationary:
        # the distance does not change, and its rounding is then relative to the spread, not to the offset
        centre = jnp.mean(right, 0)
        left, right = (left - centre, right - centre) if Z is not None else (left - centre,) * 2
    return left, right


def _block(formula: Any, left: tuple[Array, Array], right: tuple[Array, Array], accurate: bool = False) -> Any:
    """The entries of some rows against some columns; a side is embedded points and the keys of their rows."""
    (x, x_keys), (z, z_keys) = left, right
    xx, zz = squares(x)[:, None], squares(z)[None, :]
    if accurate:
        # differences would give k(∞, z) = 0: what `squares` cannot take is NaN here too
        distance = jnp.where(jnp.isnan(xx + zz), jnp.nan, squared_distances(x, z))
        chord = squared_distances(x * safe_reciprocal(safe_sqrt(xx)), z * safe_reciprocal(safe_sqrt(zz.T)))
        # opposite points: there 2 - u, not u, would be needed to more digits than u has
        top = 2 - 2 * SNAP_UNITS * float(jnp.finfo(chord.dtype).eps)
        half_chord = jnp.where(0.5 * chord >= top, 2, 0.5 * chord)
        # 0 is at right angles to everything that is a number, as in `cosine_gap`
        right_angle = ((xx == 0) & (zz == zz)) | ((zz == 0) & (xx == xx))
        return formula.entry_distance(distance, jnp.where(right_angle, 1, half_chord), xx, zz)
    xz = dot(x, z.T)
    return formula.entry(coincide(xz, xx, zz, x_keys[:, None] == z_keys[None, :], x.shape[1]), xx, zz)


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
    """Half the relative squared distance that rounding of ⟨x,z⟩ fakes when x = z: √d independent roundings or so."""
    return (SNAP_UNITS + 2 * math.sqrt(dimension)) * float(jnp.finfo(dtype).eps) / 2


def snap(xz: Array, xx: Array, zz: Array, dimension: int) -> Array:
    """⟨x,z⟩ with pairs closer than the rounding floor made coincident, for products that keep no keys of rows."""
    middle = 0.5 * (xx + zz)
    close = middle - xz <= snap_floor(dimension, xz.dtype) * middle
    return xz + jax.lax.stop_gradient(jnp.where(close, middle - xz, 0))


def row_keys(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """A whole number a row, the same for rows that are the same bit by bit: sums of integers do not round."""
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(X) + 0.0, f"uint{8 * X.dtype.itemsize}")
    random = np.random.default_rng(0).integers(0, 2**31, X.shape[1], dtype=np.uint32)
    return jnp.sum((bits ^ (bits >> 15)) * jnp.asarray(2 * random + 1, bits.dtype), 1, dtype=bits.dtype)


def coincide(xz: Array, xx: Array, zz: Array, same: Array, dimension: int) -> Array:
    """⟨x,z⟩ with rows that are the same made exactly so. Keys may agree by chance: only where d roundings allow it."""
    middle = 0.5 * (xx + zz)
    allowed = (2 * dimension + 8) * float(jnp.finfo(xz.dtype).eps) / 2
    return xz + jax.lax.stop_gradient(jnp.where(same & (middle - xz <= allowed * middle), middle - xz, 0))
