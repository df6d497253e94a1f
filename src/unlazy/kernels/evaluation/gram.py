"""Gram matrices of any kernel from its blocks: exact diagonals, equal points, row blocks, differences of inputs.

A block may be a tuple of matrices (NNGP and NTK together), and so is the Gram matrix then.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

from unlazy.core import devices
from unlazy.core.arrays import Points, float_type, is_concrete, n_points
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.evaluation.gram_tiles import assemble, finish
from unlazy.kernels.evaluation.validation import squares, validate_diagonal
from unlazy.theory.numerics.angles import safe_reciprocal, safe_sqrt
from unlazy.theory.numerics.centering import robust_center
from unlazy.theory.numerics.near_duplicates import is_opposite, rounding_floor, row_hashes, snap_inner_product

CACHED_ROWS = 128
"""Rows of a block on the CPU: its inner products stay in the cache until `entry` has used them."""
TILES_PER_SIDE = 8
"""Tiles per side of K(X, X) of an expensive kernel: 36 of 64 are evaluated."""
TEMPORARIES = 4
"""Gram-sized arrays in memory during one unblocked evaluation besides its outputs, as measured for the NTK."""


class PreparedPoints(NamedTuple):
    """One side of a block of an entry formula.

    Attributes
    ----------
    points : array of shape (n, e)
        Embedded points.
    keys : array of shape (n,) or None
        Row keys, which identify bitwise equal points.
    squares : array of shape (n,) or None
        ⟨x,x⟩. Stored, since XLA would evaluate the overflow check again for each pair.
    rows : tree of arrays or None
        Other quantities that a formula has precomputed per point.
    """

    points: Float[Array, "n e"]
    keys: UInt[Array, " n"] | None = None
    squares: Float[Array, " n"] | None = None
    rows: Any = None

    @classmethod
    def from_points(cls, points: Float[Array, "n e"], keys: UInt[Array, " n"] | None = None) -> "PreparedPoints":
        """Compute the squares of embedded points."""
        return cls(points, keys, squares(points))


def gram(kernel: Any, X: Points, Z: Points | None = None, accurate: bool = False) -> Any:
    """K(X, Z), or K(X, X) with its diagonal set to that of the kernel."""
    X, Z = kernel.read(X, Z)
    if Z is not None:
        kernel.validate(X, Z, accurate=accurate)
        return _gram(kernel, X, Z, accurate, _rows_at_once(kernel, X, n_points(Z), accurate))
    on_diagonal = kernel.prepared_diag(X, accurate)
    n = n_points(X)
    rows = _rows_at_once(kernel, X, n, accurate)
    if kernel.expensive and n >= 2 * TILES_PER_SIDE and is_concrete(X):
        rows = min(rows or n, n // (2 * TILES_PER_SIDE))
    return finish(_gram(kernel, X, None, accurate, rows), on_diagonal, mirror=rows is None)


def diagonal(kernel: Any, X: Points) -> Any:
    """k(x, x) of every point from 1 × 1 blocks; raises ValueError if it or a point is not finite."""
    return plain_diagonal(kernel, functools.partial(_diagonal, kernel), X)


def plain_diagonal(kernel: Any, of: Callable[[Any], Array], X: Points) -> Float[Array, " n"]:
    """k(x, x) of every point from a function of the points, validated."""
    X = kernel.read(X)[0]
    return validate_diagonal(of(X), X)


def pair(kernel: Any, x: Any, z: Any) -> Float[Array, ""]:
    """k(x, z) of two single points."""
    if kernel.input_kind == "tree":
        left, right = (jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], p) for p in (x, z))
    else:
        axes = [np.ndim(p) for p in (x, z)]
        if kernel.input_kind == "matrix" and max(axes) > 1:
            raise ValueError(
                f"kernel(x, z) takes two single points, got arrays with {axes[0]} and {axes[1]} axes; "
                "use kernel.gram(X, Z) for sets of points"
            )
        left, right = (jnp.reshape(jnp.asarray(p), (1, *(np.shape(p) or (1,)))) for p in (x, z))
    return kernel.gram(left, right)[0, 0]


@functools.partial(jax.jit, static_argnames=("accurate", "rows"))
def _gram(kernel: Any, X: Any, Z: Any, accurate: bool, rows: int | None) -> Any:
    left, right = kernel.sides(X, Z)
    return assemble(kernel.accurate_block if accurate else kernel.block, left, right, rows)


@jax.jit
def _diagonal(kernel: Any, X: Any) -> Array:
    """k(x, x) of every point from 1 × 1 blocks, compiled."""

    def one(side: Any) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], side)
        return kernel.block(alone, alone)[0, 0]

    return jax.vmap(one)(kernel.sides(X)[0])


def prepare_sides(formula: Any, X: Array, Z: Array | None, keyed: bool) -> tuple[PreparedPoints, PreparedPoints | None]:
    """Both sides of an entry formula."""
    left, right = embed_sides(formula, X, Z)
    first = PreparedPoints.from_points(left, row_hashes(X) if keyed else None)
    return first, None if Z is None else PreparedPoints.from_points(right, row_hashes(Z) if keyed else None)


def embed_sides(formula: Any, X: Array, Z: Array | None = None) -> tuple[Array, Array]:
    """Both sides after `embed`; those of a stationary kernel are centered together."""
    left = formula.embed(X)
    right = left if Z is None else formula.embed(Z)
    if formula.stationary:
        # distances do not change, and their rounding is then relative to the extent of the points, not the offset
        center = robust_center(right)
        left, right = (left - center, right - center) if Z is not None else (left - center,) * 2
    return left, right


def inner_products(
    left: PreparedPoints, right: PreparedPoints
) -> tuple[Float[Array, "n m"], Float[Array, "n 1"], Float[Array, "1 m"]]:
    """⟨x,z⟩ of all pairs, ⟨x,x⟩ as a column and ⟨z,z⟩ as a row.

    Rows with the same key are equal points; without keys, pairs closer than rounding are.
    """
    x, z = left.points, right.points
    xx, zz = _squares(left)[:, None], _squares(right)[None, :]
    xz = dot(x, z.T)
    same = None if left.keys is None or right.keys is None else left.keys[:, None] == right.keys[None, :]
    return snap_inner_product(xz, xx, zz, x.shape[1], same), xx, zz


def _squares(side: PreparedPoints) -> Float[Array, " n"]:
    """⟨x,x⟩ of one side, computed if it is not stored."""
    return squares(side.points) if side.squares is None else side.squares


def differences(left: PreparedPoints, right: PreparedPoints) -> tuple[Array, Array, Array, Array]:
    """‖x-z‖², 1 - cos θ, ⟨x,x⟩ and ⟨z,z⟩ of all pairs, from differences of inputs."""
    x, z = left.points, right.points
    xx, zz = _squares(left)[:, None], _squares(right)[None, :]
    # differences would give k(∞, z) = 0: points that `squares` maps to NaN are NaN here too
    distance = jnp.where(jnp.isnan(xx + zz), jnp.nan, squared_distances(x, z))
    chord = squared_distances(x * safe_reciprocal(safe_sqrt(xx)), z * safe_reciprocal(safe_sqrt(zz.T)))
    # opposite points: formulas need 2 - u to more digits than u has
    floor = 2 * rounding_floor(0, chord.dtype)
    half_chord = jnp.where(is_opposite(0.5 * chord, floor), 2, 0.5 * chord)
    # 0 is orthogonal to every point without NaN, as in `cosine_gap`
    right_angle = ((xx == 0) & (zz == zz)) | ((zz == 0) & (xx == xx))
    return distance, jnp.where(right_angle, 1, half_chord), xx, zz


def _rows_at_once(kernel: Any, X: Any, columns: int, accurate: bool) -> int | None:
    """Number of rows to evaluate at a time, or None for all; all under a JAX transformation."""
    n = n_points(X)
    if not is_concrete(X):
        return None
    row_bytes = columns * float_type(X).itemsize * kernel.values_per_pair(X, accurate)
    allowed = max(1, memory_budget() // row_bytes)
    on_cpu = devices.is_host()
    wanted = min(allowed, CACHED_ROWS if on_cpu and n * columns > 2**20 else n)
    return None if wanted >= n else wanted


def squared_distances(left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x-z‖² from differences, one coordinate at a time: accurate to rounding at any distance."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]
