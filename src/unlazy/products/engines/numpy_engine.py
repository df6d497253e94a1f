"""Kernel entries, their derivatives, and K @ V with NumPy: one compilation per kernel instead of one per shape.

A search over bandwidths and metrics on a thousand rows computes hundreds of small Gram matrices of many shapes. LAPACK
is the fast solver for them, and compiling for each shape would cost more than all solves. NumPy computes a table of the
quantities that the kernel depends on (distances or inner products) for all pairs; the formula of the kernel then runs
on flat pieces of one fixed length, the last one padded.
"""

import abc
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, Points, check_finite, dot, is_concrete
from unlazy.core.devices import memory_budget
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.gram_blocks import HEADROOM, range_error
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.products.engines.base import KernelOperator
from unlazy.theory.numerics.geometry import NEAR, is_near_duplicate, is_opposite, robust_center, rounding_floor

PIECE = 2**15
"""Entries evaluated per call: few enough to stay in the cache, enough to hide the call overhead."""

DIFFERENCES = 2**20
"""Numbers of a piece of differences of points."""

COLUMNS = 2**13
"""Maximum number of columns of a block of a product."""

ENTRIES = 2**22
"""Entries of a block of a product. NumPy makes several passes over it anyway, so it may exceed the cache; more only
costs memory."""

TEMPORARIES = 6
"""Arrays of a block's size alive at once."""

Square = Float[np.ndarray, "n m"]
Rows = Float[np.ndarray, "n e"]
Index = slice | np.ndarray
"""Rows or columns of a table."""
Kind = TypeVar("Kind", bound=Kernel)


class EntryTable(abc.ABC, Generic[Kind]):
    """The quantities that a kernel depends on, for all pairs of rows. A bandwidth h only rescales inputs, x → x/h, so
    one table serves all bandwidths."""

    @classmethod
    @abc.abstractmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "EntryTable":
        """Table for every row of F with every row of G (or with every row of F)."""

    @abc.abstractmethod
    def part(self, rows: Index, columns: Index) -> "EntryTable":
        """Subtable; indices as in NumPy."""

    @abc.abstractmethod
    def entries(self, kernel: Kind, h: float = 1.0, dtype: DTypeLike | None = None) -> Square:
        """k(x/h, z/h) for all pairs, by default in the precision of the table."""


@dataclass(frozen=True)
class Distances(EntryTable[InnerProductKernel]):
    """‖x-z‖², for kernels of the distance."""

    D: Square

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "Distances":
        return cls(squared_distances(F, G))

    def part(self, rows: Index, columns: Index) -> "Distances":
        return Distances(self.D[rows, columns])

    def entries(self, kernel: InnerProductKernel, h: float = 1.0, dtype: DTypeLike | None = None) -> Square:
        dtype = np.dtype(dtype or self.D.dtype)
        kind: Any = type(kernel)
        if _by_numpy(kernel):
            return _strips(kernel, kind.of_distance, self.D, 1 / h**2, dtype)
        return _flat(_of_distance, kernel, self.D, scale=1 / h**2, dtype=dtype)

    def slopes(self, kernel: InnerProductKernel, h: float) -> tuple[Square, Square]:
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; for kernels with a kink, zero at identical points."""
        formula = getattr(type(kernel), "distance_slope", None)
        if formula is not None and _by_numpy(kernel):
            slope = _strips(kernel, formula, self.D, 1 / h**2, self.D.dtype)
        else:
            slope = _flat(_by_distance, kernel, self.D, scale=1 / h**2)
        return -2 * slope, slope


@dataclass(frozen=True)
class InnerProducts(EntryTable[InnerProductKernel]):
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩, for all other formulas."""

    xz: Square
    xx: Float[np.ndarray, " n"]
    zz: Float[np.ndarray, " m"]

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "InnerProducts":
        return cls(*inner_products(F, G))

    def part(self, rows: Index, columns: Index) -> "InnerProducts":
        return InnerProducts(self.xz[rows, columns], self.xx[rows], self.zz[columns])

    def entries(self, kernel: InnerProductKernel, h: float = 1.0, dtype: DTypeLike | None = None) -> Square:
        return _pieces(_entry, kernel, *self._at(h))[0].astype(dtype or self.xz.dtype, copy=False)

    def slopes(self, kernel: InnerProductKernel, h: float) -> tuple[Square, Square]:
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; at identical points without the derivative of the kink."""
        by_product, by_norm = _pieces(_derivative, kernel, *self._at(h))
        return by_product, by_norm

    def _at(self, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s = 1 / h**2
        return (self.xz, self.xx, self.zz) if s == 1 else (self.xz * s, self.xx * s, self.zz * s)


@dataclass(frozen=True)
class L1Distances(EntryTable[Kernel]):
    """‖x-z‖_1, for the product Laplace kernel."""

    D: Square

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "L1Distances":
        from scipy.spatial.distance import cdist, pdist, squareform

        F = np.ascontiguousarray(F)  # two to three times faster than strided rows
        D = squareform(pdist(F, "cityblock")) if G is None else cdist(F, np.ascontiguousarray(G), "cityblock")
        return cls(D.astype(F.dtype, copy=False))

    def part(self, rows: Index, columns: Index) -> "L1Distances":
        return L1Distances(self.D[rows, columns])

    def entries(self, kernel: Kernel, h: float = 1.0, dtype: DTypeLike | None = None) -> Square:
        found = np.multiply(self.D, -1 / h, dtype=dtype or self.D.dtype, casting="same_kind")
        return np.exp(found, out=found)


def entry_table(kernel: Kernel) -> type[EntryTable] | None:
    """Table type from which this kernel can be evaluated; None if NumPy cannot evaluate it."""
    if kernel.formula is not None:
        return Distances if kernel.formula.stationary else InnerProducts
    return L1Distances if isinstance(kernel, ProductLaplace) else None


def embed_sides(
    kernel: Kernel, X: Float[np.ndarray, "n d"], Z: Float[np.ndarray, "m d"]
) -> tuple[np.ndarray, np.ndarray]:
    """Both sides as inputs of a table: embedded, and centered together if the kernel is stationary."""
    formula = kernel.formula
    if formula is None:
        assert isinstance(kernel, ProductLaplace)
        return scaled_rows(kernel, X), scaled_rows(kernel, Z)
    left, right = np.split(embed_rows(formula, np.concatenate([X, Z])), [len(X)])
    if not formula.stationary:
        return left, right
    center = robust_center(right)
    return left - center, right - center


def scaled_rows(
    kernel: ProductLaplace, X: Float[np.ndarray, "n d"], scale: float | Float[np.ndarray, " d"] = 1.0
) -> Rows:
    """scale · x divided by the bandwidths of the product Laplace kernel, without columns of zero weight."""
    unit = np.broadcast_to(scale / np.asarray(kernel.bandwidth, X.dtype), X.shape[1:])
    used = np.flatnonzero(unit)
    return X[:, used] * unit[used]


def embed_rows(kernel: InnerProductKernel, X: Float[np.ndarray, "n d"], inputs: int | None = None) -> Rows:
    """Rows after `embed`, computed by NumPy without compilation if the embedding is linear."""
    if not kernel.metrics:
        return np.asarray(_embed(kernel, X, inputs), X.dtype)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(kernel)):
        kernel = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, kernel)
    return np.asarray(type(kernel).embed(kernel, X, inputs), X.dtype)  # Equinox would build a pytree for a bound method


def inner_products(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> tuple[Square, np.ndarray, np.ndarray]:
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; pairs closer than rounding are treated as identical, and the diagonal is exact."""
    H = F if G is None else G
    xx, zz = _squares(F), _squares(H)
    xz = dot(F, H.T)
    middle = 0.5 * (xx[:, None] + zz)
    close = is_near_duplicate(middle - xz, middle, rounding_floor(F.shape[1], F.dtype))
    if G is None:
        np.fill_diagonal(close, True)
    np.copyto(xz, middle, where=close)
    return xz, xx, zz


def squared_distances(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> Square:
    """‖x-z‖² of all pairs. Of close points it comes from differences in float64; in float32 it is zero if it is
    indistinguishable from zero."""
    H = F if G is None else G
    xx, zz = _squares(F), _squares(H)
    D = dot(-2 * F, H.T)
    D += xx[:, None]
    D += zz
    if F.dtype == np.float64:
        for i, j in _near_pairs(D, xx, zz):
            D[i, j] = _differences(F, H, i, j)
        return D
    floor = rounding_floor(F.shape[1], F.dtype)
    largest = 2 * (xx.max(initial=0) + zz.max(initial=0))
    # candidates, usually few; np.nonzero of a matrix counts row by row and takes longer than computing D
    i, j = np.unravel_index(np.flatnonzero(is_near_duplicate(D, largest, floor)), D.shape)
    D[i, j] = np.where(is_near_duplicate(D[i, j], 2 * (xx[i] + zz[j]), floor), 0, D[i, j])
    if G is None:
        np.fill_diagonal(D, 0)
    return D


def near_entries(
    kernel: InnerProductKernel, table: InnerProducts, F: Rows, G: Float[np.ndarray, "m e"], K: Square
) -> None:
    """Replace the entries of close points in K by those from differences of float64 rows."""
    units = _unit_rows(F, table.xx), _unit_rows(G, table.zz)
    for i, j in _near_pairs(table.xx[:, None] + table.zz - 2 * table.xz, table.xx, table.zz):
        parts = _differences(F, G, i, j), 0.5 * _differences(*units, i, j), table.xx[i], table.zz[j]
        K[i, j] = _flat(_entry_distance, kernel, *parts)


def difference_entries(kernel: Kernel, F: Rows, G: Float[np.ndarray, "m e"]) -> Square:
    """k(x, z) of all pairs of float64 rows from differences of inputs: slower, and accurate at any distance."""
    from scipy.spatial.distance import cdist

    table, formula = entry_table(kernel), kernel.formula
    assert table is not None
    if formula is None:
        return table.from_rows(F, G).entries(kernel)
    D = cdist(F, G, "sqeuclidean")
    if formula.stationary:
        return Distances(D).entries(formula.bare)
    xx, zz = _squares(F), _squares(G)
    u = 0.5 * cdist(_unit_rows(F, xx), _unit_rows(G, zz), "sqeuclidean")
    u = np.where(is_opposite(u, 2 * rounding_floor(0, u.dtype)), 2, u)
    u = np.where((xx == 0)[:, None] | (zz == 0), 1, u)  # 0 is orthogonal to every point
    return _flat(_entry_distance, formula.bare, D, u, *np.broadcast_arrays(xx[:, None], zz))


def _squares(F: Rows) -> Float[np.ndarray, " n"]:
    """⟨x,x⟩ of embedded NumPy rows; raises ValueError instead of NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        xx = np.einsum("ij,ij->i", F, F)
    if not xx.max(initial=0) <= float(np.finfo(F.dtype).max) / HEADROOM:
        check_finite("X", F)
        raise range_error(F, "X", "squared norms overflow")
    return xx


def _near_pairs(D: Square, xx: np.ndarray, zz: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices of pairs whose squared distance, a difference of inner products, has lost digits."""
    rows = max(1, PIECE // max(1, D.shape[1]))
    for start in range(0, len(D), rows):
        part = D[start : start + rows]
        close = is_near_duplicate(part, xx[start : start + rows, None] + zz, NEAR)
        if close.any():
            i, j = np.unravel_index(np.flatnonzero(close), close.shape)  # faster than np.nonzero of a matrix
            yield i + start, j


def _differences(F: Rows, G: Float[np.ndarray, "m e"], i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, " p"]:
    """‖x-z‖² of some pairs, from differences."""
    out, pairs = np.empty(len(i)), max(1, DIFFERENCES // max(1, F.shape[1]))
    for start in range(0, len(i), pairs):
        part = slice(start, start + pairs)
        gap = F[i[part]] - G[j[part]]
        out[part] = np.einsum("pd,pd->p", gap, gap)
    return out


def _unit_rows(F: Rows, xx: np.ndarray) -> Rows:
    """Rows divided by their norm; 0 stays 0."""
    return F / np.sqrt(np.where(xx > 0, xx, 1))[:, None]


@jax.jit
def _entry_distance(kernel: InnerProductKernel, D: Array, u: Array, xx: Array, zz: Array) -> Array:
    return kernel.entry_distance(D, u, xx, zz)


@functools.partial(jax.jit, static_argnames="inputs")
def _embed(kernel: InnerProductKernel, X: Array, inputs: int | None) -> Matrix:
    return kernel.embed(X, inputs)


@jax.jit
def _entry(kernel: InnerProductKernel, xz: Array, xx: Array, zz: Array) -> tuple[Array]:
    return (kernel.entry(xz, xx, zz),)


@jax.jit
def _derivative(kernel: InnerProductKernel, xz: Array, xx: Array, zz: Array) -> tuple[Array, Array]:
    one, zero = jnp.ones_like(xz), jnp.zeros_like(xz)
    along = functools.partial(jax.jvp, kernel.entry, (xz, xx, zz))
    return along((one, zero, zero))[1], along((zero, one, zero))[1]


@jax.jit
def _of_distance(kernel: InnerProductKernel, D: Array) -> Array:
    return _moved(kernel, D)


@jax.jit
def _by_distance(kernel: InnerProductKernel, D: Array) -> Array:
    return jax.jvp(functools.partial(_moved, kernel), (D,), (jnp.ones_like(D),))[1]


def _moved(kernel: InnerProductKernel, D: Array) -> Array:
    """k(x - z, 0), which equals k(x, z) for a stationary kernel; 0 counts as orthogonal to every vector."""
    return kernel.entry_distance(D, jnp.ones_like(D), D, jnp.zeros_like(D))


def _by_numpy(kernel: InnerProductKernel) -> bool:
    """Whether NumPy can evaluate this formula, at a third of the cost of calling a compiled program per piece."""
    return getattr(kernel, "on_host", False) and not any(isinstance(a, jax.Array) for a in jax.tree.leaves(kernel))


def _strips(kernel: Any, formula: Callable, D: Square, scale: float, dtype: np.dtype) -> Square:
    """Method of a kernel at the squared distances scale · D with NumPy. A symmetric table is evaluated in full, since
    mirroring a triangle costs as much as evaluating it."""
    out, rows = np.empty(D.shape, dtype), max(1, PIECE // max(1, D.shape[1]))
    for i in range(0, len(D), rows):
        part = np.multiply(D[i : i + rows], scale, out=out[i : i + rows], casting="same_kind")
        part[...] = formula(kernel, part)  # Equinox would build a pytree for a bound method
    return out


def _flat(
    function: Callable, kernel: InnerProductKernel, *arrays: np.ndarray, scale: float = 1.0,
    dtype: np.dtype | None = None,
) -> np.ndarray:  # fmt: skip
    """Elementwise function of scaled arrays of one shape, in pieces of one length, the last one padded."""
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    out = np.empty(flat[0].size, dtype or flat[0].dtype)
    for i in range(0, out.size, PIECE):
        parts = [
            (a[i : i + PIECE] if scale == 1 else a[i : i + PIECE] * scale).astype(out.dtype, copy=False) for a in flat
        ]
        count = len(parts[0])
        if count < PIECE:
            parts = [np.pad(part, (0, PIECE - count), constant_values=1) for part in parts]
        out[i : i + count] = np.asarray(function(kernel, *parts))[:count]
    return out.reshape(arrays[0].shape)


def _pieces(
    function: Callable, kernel: InnerProductKernel, xz: np.ndarray, xx: np.ndarray, zz: np.ndarray
) -> tuple[np.ndarray, ...]:
    n, m = xz.shape
    outputs: list[np.ndarray] = []
    rows = max(1, PIECE // m)
    for i in range(0, n, rows):
        part = slice(i, min(i + rows, n))
        for j in range(0, m, PIECE):
            block = slice(j, min(j + PIECE, m))
            shape = (part.stop - part.start, block.stop - block.start)
            count = shape[0] * shape[1]
            piece = np.ones((3, PIECE), xz.dtype)  # padding at x = z = 1, where every formula is finite
            for whole, side in zip(piece, (xz[part, block], xx[part, None], zz[None, block])):
                whole[:count].reshape(shape)[...] = side
            found = function(kernel, *piece)
            outputs = outputs or [np.empty((n, m), xz.dtype) for _ in found]
            for out, values in zip(outputs, found):
                out[part, block] = np.asarray(values)[:count].reshape(shape)
    return tuple(outputs)


class NumpyOperator(KernelOperator):
    """K evaluated with NumPy, block by block, in every product."""

    engine = "numpy"
    kernel: Kernel
    left: Float[np.ndarray, "n e"]
    right: Float[np.ndarray, "m e"]
    entries: int = eqx.field(static=True, default=ENTRIES)
    on_host = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[0]

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.left.dtype)

    def block(self, rows: slice, columns: slice) -> Float[np.ndarray, "r c"]:
        """A block of entries of K."""
        return _entries(self.kernel)(self.left[rows], self.right[columns])

    def _matmul(self, V: Matrix) -> Array:
        return _matmul_blocks(self, self.left, self.right, V)

    def _rmatmul(self, U: Matrix) -> Array:
        return _matmul_blocks(self, self.right, self.left, U)


def numpy_operator(kernel: Kernel, X: Points, Z: Points | None, memory: int | str | None = None) -> NumpyOperator:
    """Embed both sides with NumPy and validate the points."""
    if entry_table(kernel) is None:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula that NumPy could evaluate; omit `engine` to choose one "
            "automatically"
        )
    points = np.asarray(X), np.asarray(X if Z is None else Z)
    F, G = sides = embed_sides(kernel, *points)
    _validate(kernel, points, sides)
    allowed = ENTRIES if memory is None else memory_budget(memory) // (TEMPORARIES * F.itemsize)
    return NumpyOperator(kernel, F, G, max(1, min(ENTRIES, allowed)))


def _matmul_blocks(K: NumpyOperator, left: np.ndarray, right: np.ndarray, V: Matrix) -> Array:
    entries = _entries(K.kernel)
    if not is_concrete(V):  # K itself is known and becomes a constant of the program being traced
        with jax.ensure_compile_time_eval():
            constant = entries(left, right)
        return dot(constant, V)
    values = np.asarray(V)
    width = min(len(right), COLUMNS)
    rows = max(1, K.entries // width)
    parts = []
    for i in range(0, len(left), rows):
        part = [
            dot(entries(left[i : i + rows], right[j : j + width]), values[j : j + width])
            for j in range(0, len(right), width)
        ]
        parts.append(sum(part[1:], part[0]))
    return jax.device_put(np.concatenate(parts))  # jnp.asarray would compile a copy for each shape


def _entries(kernel: Kernel) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Function that evaluates K for two embedded sides."""
    table = entry_table(kernel)
    assert table is not None
    formula: Any = kernel if kernel.formula is None else kernel.formula.bare

    def evaluate(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        pairs = table.from_rows(left, right)
        K = pairs.entries(formula)
        if isinstance(pairs, InnerProducts) and left.dtype == np.float64:
            near_entries(formula, pairs, left, right, K)
        return K

    return evaluate


def _validate(kernel: Kernel, points: tuple[np.ndarray, np.ndarray], sides: tuple[np.ndarray, np.ndarray]) -> None:
    """Call `Kernel.validate`, which compiles for every shape, only when needed. For points of moderate size whose
    k(x, x) depends on the norm, the points of smallest and largest norm are enough."""
    if all(_moderate(A) for A in (*points, *sides)):
        if kernel.formula is None or kernel.formula.stationary:
            return
        norms = [np.einsum("ij,ij->i", side, side) for side in sides]
        ends = [P[i] for P, of in zip(points, norms) for i in (of.argmin(), of.argmax())]
        try:
            return kernel.validate(jax.device_put(np.stack(ends)))
        except ValueError:
            pass  # raised again below for all points
    kernel.validate(*map(jax.device_put, points))


def _moderate(A: np.ndarray) -> bool:
    """Whether the square of the largest value neither overflows nor underflows, with a wide margin."""
    limits = np.finfo(A.dtype)
    largest = max(A.max(initial=0), -A.min(initial=0))
    return bool(limits.tiny**0.25 <= largest <= limits.max**0.25) or not A.any()
