"""Gram matrices of any kernel from blocks of entries: validation, row blocks, symmetric tiles, exact diagonals.

A side is an array of points, or a tree of arrays with one row per point. A block may be a tuple of matrices (NNGP and
NTK together); the Gram matrix is then a tuple too.

Concrete points raise ValueError before anything is computed from them. Points in host memory are checked with NumPy,
since compiling a program for each shape would take longer than running it. Traced points cannot be checked: for them
`squares` is NaN, and every formula propagates NaN to the result.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree, UInt

from unlazy.core import devices
from unlazy.core.arrays import (
    Entries,
    Matrix,
    Points,
    Side,
    check_finite,
    dot,
    float_type,
    floats_on_device,
    is_concrete,
    is_on_host,
    n_points,
)
from unlazy.core.devices import memory_budget
from unlazy.theory.numerics.geometry import (
    NEAR,
    is_near_duplicate,
    is_opposite,
    robust_center,
    rounding_floor,
    row_hashes,
    safe_reciprocal,
    safe_sqrt,
    snap_inner_product,
    split_distances,
)

Block = Callable[[Side, Side], Entries]
"""Evaluates the kernel on all pairs of two prepared sides."""
CACHED_ROWS = 128
"""Rows of a block on the CPU: its inner products stay in the cache until `entry` has used them."""
UNSPLIT_MAX_BYTES = 2**22
"""Bytes that are never worth splitting: the free memory is not looked up."""
TILES_PER_SIDE = 8
"""Tiles per side of K(X, X) of an expensive kernel: 36 of 64 are evaluated."""
GRAM_SIZED_TEMPORARIES = 4
"""Gram-sized arrays in memory during one unblocked evaluation besides its outputs, as measured for the NTK."""


@runtime_checkable
class BlockKernel(Protocol):
    """What Gram matrices need of a kernel; `kernels.base.Kernel` documents the members."""

    @property
    def input_kind(self) -> str: ...
    @property
    def expensive(self) -> bool: ...
    def read(self, X: Points, Z: Points | None = None) -> tuple[Points, Points]: ...
    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None: ...
    def sides(self, X: Points, Z: Points | None = None, keyed: bool = True) -> tuple[Side, Side | None]: ...
    def block(self, left: Side, right: Side) -> Entries: ...
    def accurate_block(self, left: Side, right: Side) -> Entries: ...
    def gram(self, X: Points, Z: Points | None = None) -> Entries: ...
    def diag(self, X: Points) -> Entries: ...
    def values_per_pair(self, X: Points, accurate: bool = False) -> int: ...


@runtime_checkable
class EntryFormula(Protocol):
    """What entries need of a formula of inner products; `kernels.base.InnerProductKernel` documents the members."""

    @property
    def stationary(self) -> bool: ...
    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]: ...
    def entry_distance(self, distance: Array, half_chord: Array, xx: Array, zz: Array) -> Entries: ...
    def diag_entry(self, xx: Array) -> Entries: ...
    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None: ...


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
    rows: PyTree = None

    @classmethod
    def from_points(cls, points: Float[Array, "n e"], keys: UInt[Array, " n"] | None = None) -> "PreparedPoints":
        """Compute the squares of embedded points."""
        return cls(points, keys, squares(points))


def gram(kernel: BlockKernel, X: Points, Z: Points | None = None, accurate: bool = False) -> Entries:
    """K(X, Z), or K(X, X) with its diagonal set to that of the kernel."""
    X, Z = kernel.read(X, Z)
    kernel.validate(X, Z, accurate=accurate)
    if Z is not None:
        return _gram(kernel, X, Z, accurate, _rows_at_once(kernel, X, n_points(Z), accurate))
    n = n_points(X)
    rows = _rows_at_once(kernel, X, n, accurate)
    if kernel.expensive and n >= 2 * TILES_PER_SIDE and is_concrete(X):
        rows = min(rows or n, n // (2 * TILES_PER_SIDE))
    return finish(_gram(kernel, X, None, accurate, rows), kernel.diag(X), symmetrize=rows is None)


def diagonal(kernel: BlockKernel, X: Points) -> Float[Array, " n"]:
    """k(x, x) of every point from 1 × 1 blocks; raises ValueError if it or a point is not finite."""
    return diagonal_from_function(kernel, functools.partial(_diagonal, kernel), X)


def diagonal_from_function(
    kernel: BlockKernel, diagonal_fn: Callable[[Points], Array], X: Points
) -> Float[Array, " n"]:
    """k(x, x) of every point from a function of the points, validated."""
    X = kernel.read(X)[0]
    return validate_diagonal(diagonal_fn(X), X)


def pair(kernel: BlockKernel, x: Points, z: Points) -> Float[Array, ""]:
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
def _gram(kernel: BlockKernel, X: Points, Z: Points | None, accurate: bool, rows: int | None) -> Entries:
    left, right = kernel.sides(X, Z)
    return assemble(kernel.accurate_block if accurate else kernel.block, left, right, rows)


@jax.jit
def _diagonal(kernel: BlockKernel, X: Points) -> Array:
    """k(x, x) of every point from 1 × 1 blocks, compiled."""

    def one(side: Side) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], side)
        return kernel.block(alone, alone)[0, 0]

    return jax.vmap(one)(kernel.sides(X)[0])


def prepare_sides(
    formula: EntryFormula, X: Array, Z: Array | None, keyed: bool
) -> tuple[PreparedPoints, PreparedPoints | None]:
    """Both sides of an entry formula."""
    left, right = embed_sides(formula, X, Z)
    first = PreparedPoints.from_points(left, row_hashes(X) if keyed else None)
    return first, None if Z is None else PreparedPoints.from_points(right, row_hashes(Z) if keyed else None)


def embedded(formula: EntryFormula, X: Array) -> Array:
    """Points after `embed`: JAX arrays, as the points are."""
    return jnp.asarray(formula.embed(X))


def embed_sides(formula: EntryFormula, X: Array, Z: Array | None = None) -> tuple[Array, Array]:
    """Both sides after `embed`; those of a stationary kernel are centered together."""
    left = embedded(formula, X)
    right = left if Z is None else embedded(formula, Z)
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


def correct_near_pairs(
    formula: EntryFormula,
    left: PreparedPoints,
    right: PreparedPoints,
    products: tuple[Array, Array, Array],
    values: Entries,
) -> Entries:
    """Values of a block in which pairs of close points come from `entry_distance`, in float64.

    Their ⟨x,z⟩ has lost the digits in which they differ: at ‖x-z‖ = 1e-7 a Laplace kernel would be off by 1e-8, which
    regression multiplies by 1/ridge. Blocks without such pairs cost one comparison per entry.
    """
    xz, xx, zz = products
    if xz.dtype != jnp.float64:
        return values
    half_sum = 0.5 * (xx + zz)
    near = is_near_duplicate(half_sum - xz, half_sum, NEAR)
    if left.keys is not None and right.keys is not None:  # equal points are exact already
        near &= left.keys[:, None] != right.keys[None, :]

    def corrected() -> Entries:
        precise = formula.entry_distance(*split_distances(left.points, right.points), xx, zz)
        return jax.tree.map(lambda exact, value: jnp.where(near, exact, value), precise, values)

    return jax.lax.cond(jnp.any(near), corrected, lambda: values)


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


def _rows_at_once(kernel: BlockKernel, X: Points, columns: int, accurate: bool) -> int | None:
    """Number of rows to evaluate at a time, or None for all; all under a JAX transformation."""
    n = n_points(X)
    row_bytes = columns * float_type(X).itemsize * kernel.values_per_pair(X, accurate)
    if not is_concrete(X) or n * row_bytes <= UNSPLIT_MAX_BYTES:
        return None
    allowed = max(1, memory_budget() // row_bytes)
    wanted = min(allowed, CACHED_ROWS if n * columns > 2**20 and devices.is_host() else n)
    return None if wanted >= n else wanted


def squared_distances(left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x-z‖² from differences, one coordinate at a time: accurate to rounding at any distance."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]


def assemble(block: Block, left: Side, right: Side | None, rows: int | None) -> Entries:
    """All entries, at once or `rows` at a time; those of the left side with itself if there is no right side."""
    if right is not None:
        return block(left, right) if rows is None else by_rows(block, left, right, rows)
    return block(left, left) if rows is None else by_tiles(block, left, min(2 * rows, n_points(left)))


def finish(K: Entries, on_diagonal: Entries, symmetrize: bool) -> Entries:
    """Set the diagonal of K(X, X), and make it exactly symmetric unless tiles have done so.

    This is a separate program: in one program with the formula, XLA would evaluate the formula again for the other
    triangle, and round differently there. It works in place, unless K is being differentiated.
    """
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((K, on_diagonal)))
    return (_finish if traced else _finish_in_place)(K, on_diagonal, symmetrize)


def _finished(K: Entries, on_diagonal: Entries, symmetrize: bool) -> Entries:
    """Set the diagonal, and symmetrize the upper triangle if `symmetrize`."""
    K = jax.tree.map(_symmetrized, K) if symmetrize else K
    i = jnp.arange(jax.tree.leaves(K)[0].shape[0])
    return jax.tree.map(lambda k, v: k.at[i, i].set(v), K, on_diagonal)


_finish = jax.jit(_finished, static_argnums=2)
_finish_in_place = jax.jit(_finished, static_argnums=2, donate_argnums=0)


def _symmetrized(K: Array) -> Array:
    """Copy the upper triangle to the lower one: rounding is not always symmetric.

    A sum, since jaxlib 0.10.2 crashes on where(upper, K, K.T) of about a thousand rows.
    """
    return jnp.triu(K) + jnp.triu(K, 1).T


def by_rows(block: Block, left: Side, right: Side, rows: int) -> Entries:
    """All entries, `rows` at a time, written in place; the last block overlaps the previous one."""
    n = n_points(left)

    def fill(i: Array, K: Entries) -> Entries:
        start = jnp.minimum(i * rows, n - rows)
        new = block(part(left, start, rows), right)
        return jax.tree.map(lambda k, p: jax.lax.dynamic_update_slice_in_dim(k, p, start, 0), K, new)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, _empty(block, left, right))


def by_tiles(block: Block, points: Side, size: int) -> Entries:
    """K(X, X) by square tiles on and above the diagonal, each written twice.

    That is half the work, and symmetric whatever the rounding.
    """
    pairs = symmetric_tiles(n_points(points), size)
    corners = jnp.asarray(pairs)

    def fill(p: Array, K: Entries) -> Entries:
        s, t = corners[p, 0], corners[p, 1]
        # without the barriers, XLA would evaluate the formula again for each use, column by column
        tiles = jax.lax.optimization_barrier(block(part(points, s, size), part(points, t, size)))
        tiles = jax.tree.map(lambda T: jax.lax.cond(s == t, _symmetrized, lambda T: T, T), tiles)
        tiles = jax.lax.optimization_barrier(tiles)
        K = jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T, (s, t)), K, tiles)
        return jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T.T, (t, s)), K, tiles)

    return jax.lax.fori_loop(0, len(pairs), fill, _empty(block, points, points))


def tile_offsets(n: int, size: int) -> list[int]:
    """Start indices of tiles; the last one overlaps the previous one, so that all have one shape and one program."""
    return [min(i * size, n - size) for i in range(math.ceil(n / size))]


def symmetric_tiles(n: int, size: int) -> list[tuple[int, int]]:
    """Start indices of tiles above the diagonal, then of those on it.

    The last tiles overlap others; later writes overwrite earlier ones.
    """
    offsets = tile_offsets(n, size)
    return [(s, t) for i, s in enumerate(offsets) for t in offsets[i + 1 :]] + [(s, s) for s in offsets]


def part(side: Side, start: int | Array, rows: int) -> Side:
    """`rows` points of a side from `start` on."""
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, rows), side)


def _empty(block: Block, left: Side, right: Side) -> Entries:
    """Zeros of the shape of a block."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(block, left, right))


HEADROOM = 16.0
"""Squared norms stay below the largest float by this factor: centering may double a norm, and ‖x-z‖² adds four."""


def squares(X: Float[Array, "n e"]) -> Float[Array, " n"]:
    """⟨x,x⟩ of every row; NaN if it is not finite, or so large that ‖x-z‖² may overflow."""
    xx = jnp.sum(X * X, 1)
    return jnp.where(xx <= float(jnp.finfo(xx.dtype).max) / HEADROOM, xx, jnp.nan)


def validate_formula_inputs(kernel: EntryFormula, points: tuple, names: tuple[str, ...], accurate: bool) -> None:
    """Raise ValueError if k(x, x) or a squared norm of a point is not finite.

    It takes one reduction, and does nothing under a JAX transformation.
    """
    deferred_formula_validation(kernel, points, names, accurate)()


def deferred_formula_validation(
    kernel: EntryFormula, points: tuple, names: tuple[str, ...], accurate: bool
) -> Callable[[], None]:
    """Start `validate_formula_inputs`, and return a function that waits for the result and raises or warns.

    A GPU can work in between.
    """
    given = tuple(X for X in points if X is not None)
    if not is_concrete(kernel, given):
        return lambda: None
    summary = _host_summary(kernel, given) if _on_host(given) else _summary(floats_on_device(kernel), given)

    def complete() -> None:
        if is_concrete(summary):  # not so for constants inside a traced program
            _check_summary(kernel, given, names, summary)
            kernel.warn(np.asarray(summary[0])[:2], accurate)

    return complete


def validate_inputs(kernel: BlockKernel, points: tuple, names: tuple[str, ...]) -> None:
    """Raise ValueError if points of a kernel without an entry formula are invalid, by its diagonal."""
    given = tuple(X for X in points if X is not None)
    if not is_concrete(kernel, given):
        return
    for X, name in zip(given, names):
        validate_diagonal(kernel.diag(X), X, name)


def formula_diagonal(kernel: EntryFormula, X: Float[Array, "n d"], name: str = "X") -> Entries:
    """k(x, x) of every row by the entry formula; raises ValueError if it or a squared norm is not finite."""
    # k(x, x) is one constant: skip compiling for this n
    if kernel.stationary and is_concrete(kernel, X) and _on_host((X,)):
        summary = _host_summary(kernel, (X,))
        if is_concrete(summary):
            _check_summary(kernel, (X,), (name,), summary)
            kernel.warn(np.asarray(summary[0])[:2], accurate=True)
            return jax.tree.map(lambda ends: jax.device_put(np.full(X.shape[0], np.asarray(ends)[0])), summary[1])
    values, range_and_size, largest = _formula_diagonal(kernel, X)
    if is_concrete(values):
        _raise_if_invalid(kernel, np.asarray(range_and_size), np.asarray(largest), (X,), (name,))
        kernel.warn(np.asarray(range_and_size)[:2], accurate=True)  # the diagonal takes no differences of points
    return values


def validate_diagonal(values: Float[Array, " n"], X: Points, name: str = "X") -> Float[Array, " n"]:
    """Check k(x, x) of a kernel without an entry formula, and return it.

    Raises ValueError if a point or k(x, x) is not finite; at traced points that are not finite the value becomes NaN.
    """
    floats = [leaf for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not is_concrete(values, X):
        for leaf in floats:
            values = jnp.where(jnp.isfinite(jnp.sum(leaf.reshape(leaf.shape[0], -1), 1)), values, jnp.nan)
        return values
    for leaf in floats:
        check_finite(name, np.asarray(leaf))
    if not np.isfinite(np.asarray(values)).all():
        raise range_error(np.asarray((floats or jax.tree.leaves(X))[0]), name, "k(x, x) overflows")
    return values


def validate_finite(points: tuple, names: tuple[str, ...]) -> None:
    """Raise ValueError if concrete points are not finite."""
    for X, name in zip((X for X in points if X is not None), names):
        for leaf in jax.tree.leaves(X) if is_concrete(X) else ():
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                check_finite(name, np.asarray(leaf))


def validate_magnitude(X: Points, name: str = "X") -> None:
    """Raise ValueError if concrete points are not finite, or if their squares overflow."""
    for leaf in jax.tree.leaves(X):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            array = np.asarray(leaf)
            check_finite(name, array)
            if not np.max(np.abs(array)) <= np.sqrt(np.finfo(array.dtype).max / HEADROOM / max(1, array[0].size)):
                raise range_error(array, name, "squared norms overflow")


def _check_summary(kernel: EntryFormula, points: tuple[Matrix, ...], names: tuple[str, ...], summary: tuple) -> None:
    """Raise ValueError for invalid points, by their summary.

    k(x, x) depends on |x| alone and increases with it, so that the smallest and the largest norm suffice.
    """
    largest = np.max([np.abs(values).max() for values in jax.tree.leaves(summary[1])])
    _raise_if_invalid(kernel, np.asarray(summary[0]), largest, points, names)


def _on_host(points: tuple[Matrix, ...]) -> bool:
    """Whether NumPy can read these arrays in place, and JAX keeps their dtype."""
    return all(is_on_host(X) and jax.dtypes.canonicalize_dtype(X.dtype) == X.dtype for X in points)


def _host_summary(kernel: EntryFormula, points: tuple[Matrix, ...]) -> tuple:
    """`_summary` by NumPy, without a temporary of the size of the points."""
    mapped = [kernel.embed(X) for X in points]
    if not is_concrete(mapped):
        return tuple(mapped)
    ends = []
    with np.errstate(all="ignore"):  # overflow is what the check is for
        for E in map(np.asarray, mapped):
            xx, limit = np.einsum("ij,ij->i", E, E), float(np.finfo(E.dtype).max) / HEADROOM
            small, large = xx.min(), xx.max()
            ends.append((small, large if large <= limit else np.nan, max(E.max(), -E.min())))
    low, high, size = np.asarray(ends, E.dtype).T
    found = np.stack([low.min(), high.max(), size.max()])
    return found, _diag_entry(kernel, found[:2])


@jax.jit
def _summary(kernel: EntryFormula, points: tuple[Array, ...]) -> tuple[Array, Entries]:
    """Smallest and largest squared norm and largest coordinate of embedded points, and k(x, x) at the two norms.

    One maximum of three values per row, so that a GPU launches few programs.
    """
    mapped = [embedded(kernel, X) for X in points]
    xx, size = (jnp.concatenate([f(E) for E in mapped]) for f in (squares, lambda E: jnp.max(jnp.abs(E), 1)))
    low, *high = jnp.max(jnp.stack([-xx, xx, size]), 1)
    found = jnp.stack([-low, *high])
    return found, kernel.diag_entry(found[:2])


@jax.jit
def _diag_entry(kernel: EntryFormula, xx: Array) -> Entries:
    return kernel.diag_entry(xx)


@jax.jit
def _formula_diagonal(kernel: EntryFormula, X: Array) -> tuple[Entries, Array, Array]:
    E = embedded(kernel, X)
    xx = squares(E)
    values = kernel.diag_entry(xx)
    return values, _norm_range(E), _largest(values)


def _norm_range(E: Array) -> Array:
    xx = squares(E)
    return jnp.stack([jnp.min(xx), jnp.max(xx), jnp.max(jnp.abs(E))])


def _largest(values: Entries) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in jax.tree.leaves(values)]))


def _raise_if_invalid(
    kernel: EntryFormula,
    summary: np.ndarray,
    largest: ArrayLike,
    points: tuple[Matrix, ...],
    names: tuple[str, ...],
) -> None:
    """Raise the ValueError that applies, if any. NaN in any row is NaN in `summary`."""
    _, square, coordinate = summary
    limits = np.finfo(summary.dtype)
    # squares below tiny/ε have lost digits, and so have all differences of points
    too_small = coordinate > 0 and square < limits.tiny / limits.eps
    if np.isfinite(square) and np.isfinite(largest) and not too_small:
        return
    for X, name in zip(points, names):
        check_finite(name, np.asarray(X))
        kernel.embed(X)  # `embed` may raise a more specific error
    sizes = [float(jnp.max(jnp.abs(X))) for X in points]
    X, name = points[int(np.argmax(sizes))], names[int(np.argmax(sizes))]
    if too_small:
        raise range_error(np.asarray(X), name, "squared norms underflow")
    raise range_error(np.asarray(X), name, "squared norms overflow" if not np.isfinite(square) else "k(x, x) overflows")


def range_error(X: np.ndarray, name: str, what: str) -> ValueError:
    """The error for points that are too large or too small."""
    size = "small" if "underflow" in what else "large"
    return ValueError(
        f"{what} {X.dtype} for inputs as {size} as {float(np.max(np.abs(X))):.3g} in {name}; rescale the inputs (for "
        "example to unit standard deviation)" + ("" if X.dtype == np.float64 else " or use float64")
    )
