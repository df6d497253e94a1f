"""Kernel entries and their derivatives for NumPy arrays, with one compilation per kernel instead of one per shape.

A search over bandwidths and metrics on a thousand rows computes hundreds of small Gram matrices of many shapes. LAPACK
is the fast solver for them, and compiling for each shape would cost more than all solves. NumPy computes a table of the
quantities that the kernel depends on (distances or inner products) for all pairs; the formula of the kernel then runs
on flat pieces of one fixed length, the last one padded.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core.linalg import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluation.validation import host_squares
from unlazy.theory.numerics.centering import robust_center
from unlazy.theory.numerics.near_duplicates import is_near_duplicate, rounding_floor

PIECE = 2**15
"""Entries evaluated per call: few enough to stay in the cache, enough to hide the call overhead."""

STRIP = 64
"""Rows of a symmetric table that are evaluated together, up to the diagonal."""

Square = Float[np.ndarray, "n m"]
Rows = Float[np.ndarray, "n e"]


class EntryTable(abc.ABC):
    """The quantities that a kernel depends on, for all pairs of rows. A bandwidth h only rescales inputs, x → x/h, so
    one table serves all bandwidths."""

    @classmethod
    @abc.abstractmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "EntryTable":
        """Table for every row of F with every row of G (or with every row of F)."""

    @abc.abstractmethod
    def part(self, rows: Any, columns: Any) -> "EntryTable":
        """Subtable; indices as in NumPy."""

    @abc.abstractmethod
    def entries(self, kernel: Any, h: float = 1.0, dtype: Any = None) -> Square:
        """k(x/h, z/h) for all pairs, by default in the precision of the table."""


@dataclass(frozen=True)
class Distances(EntryTable):
    """‖x-z‖², for kernels of the distance."""

    D: Square
    symmetric: bool = False
    """Whether both sides have the same rows."""

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "Distances":
        return cls(squared_distances(F, G), G is None)

    def part(self, rows: Any, columns: Any) -> "Distances":
        same = isinstance(rows, slice) and rows == columns
        return Distances(self.D[rows, columns], self.symmetric and same)

    def entries(self, kernel: InnerProductKernel, h: float = 1.0, dtype: Any = None) -> Square:
        dtype = np.dtype(dtype or self.D.dtype)
        if _by_numpy(kernel):
            return _strips(kernel, self.D, 1 / h**2, dtype)
        evaluate = _triangle if self.symmetric else _flat
        return evaluate(_of_distance, kernel, self.D, 1 / h**2, dtype)

    def slopes(self, kernel: InnerProductKernel, h: float) -> tuple[Square, Square]:
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; for kernels with a kink, zero at identical points."""
        slope = _flat(_by_distance, kernel, self.D, 1 / h**2, self.D.dtype)
        return -2 * slope, slope


@dataclass(frozen=True)
class InnerProducts(EntryTable):
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩, for all other formulas."""

    xz: Square
    xx: Float[np.ndarray, " n"]
    zz: Float[np.ndarray, " m"]

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "InnerProducts":
        return cls(*inner_products(F, G))

    def part(self, rows: Any, columns: Any) -> "InnerProducts":
        return InnerProducts(self.xz[rows, columns], self.xx[rows], self.zz[columns])

    def entries(self, kernel: InnerProductKernel, h: float = 1.0, dtype: Any = None) -> Square:
        return _pieces(_entry, kernel, *self._at(h))[0].astype(dtype or self.xz.dtype, copy=False)

    def slopes(self, kernel: InnerProductKernel, h: float) -> tuple[Square, Square]:
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; at identical points without the derivative of the kink."""
        return _pieces(_derivative, kernel, *self._at(h))

    def _at(self, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s = 1 / h**2
        return (self.xz, self.xx, self.zz) if s == 1 else (self.xz * s, self.xx * s, self.zz * s)


@dataclass(frozen=True)
class L1Distances(EntryTable):
    """‖x-z‖_1, for the product Laplace kernel."""

    D: Square

    @classmethod
    def from_rows(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "L1Distances":
        from scipy.spatial.distance import cdist, pdist, squareform

        F = np.ascontiguousarray(F)  # two to three times faster than strided rows
        D = squareform(pdist(F, "cityblock")) if G is None else cdist(F, np.ascontiguousarray(G), "cityblock")
        return cls(D.astype(F.dtype, copy=False))

    def part(self, rows: Any, columns: Any) -> "L1Distances":
        return L1Distances(self.D[rows, columns])

    def entries(self, kernel: Kernel, h: float = 1.0, dtype: Any = None) -> Square:
        found = np.multiply(self.D, -1 / h, dtype=dtype or self.D.dtype, casting="same_kind")
        return np.exp(found, out=found)


def entry_table(kernel: Kernel) -> type[EntryTable] | None:
    """Table type from which this kernel can be evaluated; None if NumPy cannot evaluate it."""
    if kernel.formula is not None:
        return Distances if kernel.formula.stationary else InnerProducts
    return L1Distances if kernel.depends_on == "absolute distance" else None


def embed_sides(
    kernel: Kernel, X: Float[np.ndarray, "n d"], Z: Float[np.ndarray, "m d"]
) -> tuple[np.ndarray, np.ndarray]:
    """Both sides as inputs of a table: embedded, and centered together if the kernel is stationary."""
    formula = kernel.formula
    if formula is None:
        return scaled_rows(kernel, X), scaled_rows(kernel, Z)
    left, right = np.split(embed_rows(formula, np.concatenate([X, Z])), [len(X)])
    if not formula.stationary:
        return left, right
    center = robust_center(right)
    return left - center, right - center


def scaled_rows(kernel: Any, X: Float[np.ndarray, "n d"], scale: Any = 1.0) -> Rows:
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


def inner_products(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> tuple[Any, Any, Any]:
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; pairs closer than rounding are treated as identical, and the diagonal is exact."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    xz = dot(F, H.T)
    middle = 0.5 * (xx[:, None] + zz)
    close = is_near_duplicate(middle - xz, middle, rounding_floor(F.shape[1], F.dtype))
    if G is None:
        np.fill_diagonal(close, True)
    np.copyto(xz, middle, where=close)
    return xz, xx, zz


def squared_distances(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> Square:
    """‖x-z‖² of all pairs; zero if it is indistinguishable from zero at working precision."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    D = dot(-2 * F, H.T)
    D += xx[:, None]
    D += zz
    floor = rounding_floor(F.shape[1], F.dtype)
    largest = 2 * (xx.max(initial=0) + zz.max(initial=0))
    # candidates, usually few; np.nonzero of a matrix counts row by row and takes longer than computing D
    i, j = np.unravel_index(np.flatnonzero(is_near_duplicate(D, largest, floor)), D.shape)
    D[i, j] = np.where(is_near_duplicate(D[i, j], 2 * (xx[i] + zz[j]), floor), 0, D[i, j])
    if G is None:
        np.fill_diagonal(D, 0)
    return D


@functools.partial(jax.jit, static_argnames="inputs")
def _embed(kernel: InnerProductKernel, X: Any, inputs: int | None) -> Any:
    return kernel.embed(X, inputs)


@jax.jit
def _entry(kernel: InnerProductKernel, xz: Any, xx: Any, zz: Any) -> Any:
    return (kernel.entry(xz, xx, zz),)


@jax.jit
def _derivative(kernel: InnerProductKernel, xz: Any, xx: Any, zz: Any) -> Any:
    one, zero = jnp.ones_like(xz), jnp.zeros_like(xz)
    along = functools.partial(jax.jvp, kernel.entry, (xz, xx, zz))
    return along((one, zero, zero))[1], along((zero, one, zero))[1]


@jax.jit
def _of_distance(kernel: InnerProductKernel, D: Any) -> Any:
    return _moved(kernel, D)


@jax.jit
def _by_distance(kernel: InnerProductKernel, D: Any) -> Any:
    return jax.jvp(functools.partial(_moved, kernel), (D,), (jnp.ones_like(D),))[1]


def _moved(kernel: InnerProductKernel, D: Any) -> Any:
    """k(x - z, 0), which equals k(x, z) for a stationary kernel; 0 counts as orthogonal to every vector."""
    return kernel.entry_distance(D, jnp.ones_like(D), D, jnp.zeros_like(D))


def _by_numpy(kernel: InnerProductKernel) -> bool:
    """Whether NumPy can evaluate this formula, at a third of the cost of calling a compiled program per piece."""
    return getattr(kernel, "on_host", False) and not any(isinstance(a, jax.Array) for a in jax.tree.leaves(kernel))


def _strips(kernel: Any, D: Square, scale: float, dtype: np.dtype) -> Square:
    """k of the squared distances scale · D with NumPy. A symmetric table is evaluated in full, since mirroring a
    triangle costs as much as evaluating it."""
    out, rows = np.empty(D.shape, dtype), max(1, PIECE // max(1, D.shape[1]))
    for i in range(0, len(D), rows):
        part = np.multiply(D[i : i + rows], scale, out=out[i : i + rows], casting="same_kind")
        part[...] = type(kernel).of_distance(kernel, part)  # Equinox would build a pytree for a bound method
    return out


def _flat(function: Callable, kernel: InnerProductKernel, D: np.ndarray, scale: float, dtype: Any) -> np.ndarray:
    """Elementwise function(scale · D)."""
    out, source = np.empty(D.size, dtype), np.ascontiguousarray(D).reshape(-1)
    for i in range(0, D.size, PIECE):
        piece = source[i : i + PIECE]
        piece = piece if scale == 1 else piece * scale
        out[i : i + PIECE] = _piece(function, kernel, piece.astype(dtype, copy=False))
    return out.reshape(D.shape)


def _triangle(function: Callable, kernel: InnerProductKernel, D: Square, scale: float, dtype: Any) -> Square:
    """The same for a symmetric table, each pair once: row strips up to the diagonal, and their transposes."""
    n = len(D)
    strips = [slice(i, min(i + STRIP, n)) for i in range(0, n, STRIP)]
    found = _flat(function, kernel, np.concatenate([D[s, : s.stop].ravel() for s in strips]), scale, dtype)
    out, at = np.empty(D.shape, dtype), 0
    for s in strips:
        shape = (s.stop - s.start, s.stop)
        part = found[at : at + shape[0] * shape[1]].reshape(shape)
        out[s, : s.stop] = part
        out[: s.start, s] = part[:, : s.start].T
        at += part.size
    return out


def _piece(function: Callable, kernel: InnerProductKernel, D: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """Evaluate at most PIECE entries, padded to that number."""
    if D.size == PIECE:
        return np.asarray(function(kernel, D))
    padded = np.zeros(PIECE, D.dtype)
    padded[: D.size] = D
    return np.asarray(function(kernel, padded))[: D.size]


def _pieces(function: Callable, kernel: InnerProductKernel, xz: np.ndarray, xx: np.ndarray, zz: np.ndarray) -> Any:
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
