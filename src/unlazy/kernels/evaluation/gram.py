"""Gram matrices of any kernel from its blocks: exact diagonals, coincident points, row blocks, differences of inputs.

Blocks may be a tuple of matrices (the NNGP and the NTK together), and so are then the Grams.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

from unlazy.core import devices
from unlazy.core.arrays import Points, concrete, count, float_type
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.evaluation.gram_tiles import assemble, finish
from unlazy.kernels.evaluation.validation import admit_diagonal, squares
from unlazy.theory.numerics.angles import safe_reciprocal, safe_sqrt
from unlazy.theory.numerics.centering import middle
from unlazy.theory.numerics.near_duplicates import opposite, rounding_floor, row_keys, snap

CACHED_ROWS = 128
"""Rows of a block on the CPU: its inner products stay in the cache until `entry` has used them."""
HALVED = 8
"""Tiles to a side of K(X, X) of a costly kernel: 36 of 64 are evaluated."""
TEMPORARIES = 4
"""Gram-sized arrays that one unblocked evaluation may hold besides its outputs, as measured for the NTK."""


class Side(NamedTuple):
    """One side of a block of an entry formula: embedded points, the keys of their rows where they are kept, and ⟨x,x⟩:
    XLA would evaluate the rule for what is too large again for each pair. `rows` is what else a formula has made of
    each point, where it pays."""

    points: Float[Array, "n e"]
    keys: UInt[Array, " n"] | None = None
    squares: Float[Array, " n"] | None = None
    rows: Any = None

    @classmethod
    def of(cls, points: Float[Array, "n e"], keys: UInt[Array, " n"] | None = None) -> "Side":
        return cls(points, keys, squares(points))


def gram(kernel: Any, X: Points, Z: Points | None = None, accurate: bool = False) -> Any:
    """K(X, Z), or K(X, X) with its diagonal set to that of the kernel."""
    X, Z = kernel.read(X, Z)
    if Z is not None:
        kernel.admit(X, Z, accurate=accurate)
        return _gram(kernel, X, Z, accurate, _rows_at_once(kernel, X, count(Z), accurate))
    on_diagonal = kernel.on_diagonal(X, accurate)
    n = count(X)
    rows = _rows_at_once(kernel, X, n, accurate)
    if kernel.costly and n >= 2 * HALVED and concrete(X):
        rows = min(rows or n, n // (2 * HALVED))
    return finish(_gram(kernel, X, None, accurate, rows), on_diagonal, mirror=rows is None)


def diagonal(kernel: Any, X: Points) -> Any:
    """k(x, x) of every point from blocks of one; a ValueError where it or the point is not finite."""
    return plain_diagonal(kernel, functools.partial(_diagonal, kernel), X)


def plain_diagonal(kernel: Any, of: Callable[[Any], Array], X: Points) -> Float[Array, " n"]:
    """The same from the kernel's own function of its points."""
    X = kernel.read(X)[0]
    return admit_diagonal(of(X), X)


def pair(kernel: Any, x: Any, z: Any) -> Float[Array, ""]:
    """k(x, z) of two points."""
    if kernel.takes == "tree":
        left, right = (jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], p) for p in (x, z))
    else:
        axes = [np.ndim(p) for p in (x, z)]
        if kernel.takes == "matrix" and max(axes) > 1:
            raise ValueError(
                f"kernel(x, z) is k of two points, got {axes[0]} and {axes[1]} axes: K of two sets of points is "
                "kernel.gram(X, Z)"
            )
        left, right = (jnp.reshape(jnp.asarray(p), (1, *(np.shape(p) or (1,)))) for p in (x, z))
    return kernel.gram(left, right)[0, 0]


@functools.partial(jax.jit, static_argnames=("accurate", "rows"))
def _gram(kernel: Any, X: Any, Z: Any, accurate: bool, rows: int | None) -> Any:
    left, right = kernel.sides(X, Z)
    return assemble(kernel.accurate_block if accurate else kernel.block, left, right, rows)


@jax.jit
def _diagonal(kernel: Any, X: Any) -> Array:
    def one(side: Any) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], side)
        return kernel.block(alone, alone)[0, 0]

    return jax.vmap(one)(kernel.sides(X)[0])


def prepared(formula: Any, X: Array, Z: Array | None, keyed: bool) -> tuple[Side, Side | None]:
    """Both sides of an entry formula."""
    left, right = embedded(formula, X, Z)
    first = Side.of(left, row_keys(X) if keyed else None)
    return first, None if Z is None else Side.of(right, row_keys(Z) if keyed else None)


def embedded(formula: Any, X: Array, Z: Array | None = None) -> tuple[Array, Array]:
    """Both sides after `embed`, centered together where only differences matter."""
    left = formula.embed(X)
    right = left if Z is None else formula.embed(Z)
    if formula.stationary:
        # the distance does not change, and its rounding is then relative to the spread, not to the offset
        center = middle(right)
        left, right = (left - center, right - center) if Z is not None else (left - center,) * 2
    return left, right


def inner_products(left: Side, right: Side) -> tuple[Float[Array, "n m"], Float[Array, "n 1"], Float[Array, "1 m"]]:
    """⟨x,z⟩ of all pairs, ⟨x,x⟩ as a column and ⟨z,z⟩ as a row. Rows with the same key are coincident; where no keys
    are kept, pairs closer than rounding."""
    x, z = left.points, right.points
    xx, zz = _squares(left)[:, None], _squares(right)[None, :]
    xz = dot(x, z.T)
    same = None if left.keys is None or right.keys is None else left.keys[:, None] == right.keys[None, :]
    return snap(xz, xx, zz, x.shape[1], same), xx, zz


def _squares(side: Side) -> Float[Array, " n"]:
    return squares(side.points) if side.squares is None else side.squares


def differences(left: Side, right: Side) -> tuple[Array, Array, Array, Array]:
    """‖x-z‖², 1 - cos θ, ⟨x,x⟩ and ⟨z,z⟩ of all pairs, from differences."""
    x, z = left.points, right.points
    xx, zz = _squares(left)[:, None], _squares(right)[None, :]
    # differences would give k(∞, z) = 0: what `squares` cannot take is NaN here too
    distance = jnp.where(jnp.isnan(xx + zz), jnp.nan, squared_distances(x, z))
    chord = squared_distances(x * safe_reciprocal(safe_sqrt(xx)), z * safe_reciprocal(safe_sqrt(zz.T)))
    # opposite points: there 2 - u, not u, would be needed to more digits than u has
    floor = 2 * rounding_floor(0, chord.dtype)
    half_chord = jnp.where(opposite(0.5 * chord, floor), 2, 0.5 * chord)
    # 0 is at right angles to everything that is a number, as in `cosine_gap`
    right_angle = ((xx == 0) & (zz == zz)) | ((zz == 0) & (xx == xx))
    return distance, jnp.where(right_angle, 1, half_chord), xx, zz


def _rows_at_once(kernel: Any, X: Any, columns: int, accurate: bool) -> int | None:
    """How many rows to evaluate at a time; None for all. Under a transformation the caller is in charge: all."""
    n = count(X)
    if not concrete(X):
        return None
    row_bytes = columns * float_type(X).itemsize * kernel.held(X, accurate)
    allowed = max(1, memory_budget() // row_bytes)
    on_cpu = devices.is_host()
    wanted = min(allowed, CACHED_ROWS if on_cpu and n * columns > 2**20 else n)
    return None if wanted >= n else wanted


def squared_distances(left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x-z‖² from differences, a coordinate at a time: exact to rounding however close the points are."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]
