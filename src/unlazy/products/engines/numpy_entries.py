"""Entries of a kernel and their derivatives for NumPy arrays: one compilation per kernel, whatever the shapes.

A search over bandwidths and metrics on a thousand rows makes hundreds of small Grams of many shapes; there LAPACK on
the host is the fast solver, and compiling each shape would cost more than all of them. What a kernel reads of all pairs
is a table, made by NumPy; its formula runs on flat pieces of one length, the last ones padded.
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
from unlazy.theory.numerics.centering import middle
from unlazy.theory.numerics.near_duplicates import coincident, rounding_floor

PIECE = 2**15
"""Entries evaluated at once: small enough to stay in the cache, large enough to hide the call."""

STRIP = 64
"""Rows of a symmetric table that are evaluated together, up to the diagonal."""

Square = Float[np.ndarray, "n m"]
Rows = Float[np.ndarray, "n e"]


class Table(abc.ABC):
    """What a kernel reads of every pair of two sides. A bandwidth h changes inputs only, x → x/h, so one table serves
    all of them."""

    @classmethod
    @abc.abstractmethod
    def of(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "Table":
        """Of every row of F with every row of G, or of F with itself."""

    @abc.abstractmethod
    def part(self, rows: Any, columns: Any) -> "Table":
        """The same of some pairs; indices as NumPy takes them."""

    @abc.abstractmethod
    def entries(self, kernel: Any, h: float = 1.0, dtype: Any = None) -> Square:
        """k of every pair at x/h, in the table's precision or another."""


@dataclass(frozen=True)
class Distances(Table):
    """‖x-z‖², for formulas of the distance."""

    D: Square
    symmetric: bool = False
    """Whether both sides are the same rows."""

    @classmethod
    def of(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "Distances":
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
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; at coincident points zero for kernels with a kink there."""
        slope = _flat(_by_distance, kernel, self.D, 1 / h**2, self.D.dtype)
        return -2 * slope, slope


@dataclass(frozen=True)
class InnerProducts(Table):
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩, for every other formula."""

    xz: Square
    xx: Float[np.ndarray, " n"]
    zz: Float[np.ndarray, " m"]

    @classmethod
    def of(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "InnerProducts":
        return cls(*inner_products(F, G))

    def part(self, rows: Any, columns: Any) -> "InnerProducts":
        return InnerProducts(self.xz[rows, columns], self.xx[rows], self.zz[columns])

    def entries(self, kernel: InnerProductKernel, h: float = 1.0, dtype: Any = None) -> Square:
        return _pieces(_entry, kernel, *self._at(h))[0].astype(dtype or self.xz.dtype, copy=False)

    def slopes(self, kernel: InnerProductKernel, h: float) -> tuple[Square, Square]:
        """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ at x/h; at coincident points the kink's derivative is left out."""
        return _pieces(_derivative, kernel, *self._at(h))

    def _at(self, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s = 1 / h**2
        return (self.xz, self.xx, self.zz) if s == 1 else (self.xz * s, self.xx * s, self.zz * s)


@dataclass(frozen=True)
class AbsoluteDistances(Table):
    """‖x-z‖_1, for the product Laplace kernel."""

    D: Square

    @classmethod
    def of(cls, F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> "AbsoluteDistances":
        from scipy.spatial.distance import cdist, pdist, squareform

        F = np.ascontiguousarray(F)  # rows that are not cost two to three times as much
        D = squareform(pdist(F, "cityblock")) if G is None else cdist(F, np.ascontiguousarray(G), "cityblock")
        return cls(D.astype(F.dtype, copy=False))

    def part(self, rows: Any, columns: Any) -> "AbsoluteDistances":
        return AbsoluteDistances(self.D[rows, columns])

    def entries(self, kernel: Kernel, h: float = 1.0, dtype: Any = None) -> Square:
        found = np.multiply(self.D, -1 / h, dtype=dtype or self.D.dtype, casting="same_kind")
        return np.exp(found, out=found)


def table_of(kernel: Kernel) -> type[Table] | None:
    """What all entries of this kernel can be read from; None: not on the host."""
    if kernel.formula is not None:
        return Distances if kernel.formula.stationary else InnerProducts
    return AbsoluteDistances if kernel.reads == "absolute distance" else None


def sides(kernel: Kernel, X: Float[np.ndarray, "n d"], Z: Float[np.ndarray, "m d"]) -> tuple[np.ndarray, np.ndarray]:
    """Both sides as a table takes them: embedded, centered together where only differences matter."""
    formula = kernel.formula
    if formula is None:
        return lengths(kernel, X), lengths(kernel, Z)
    left, right = np.split(embedded(formula, np.concatenate([X, Z])), [len(X)])
    if not formula.stationary:
        return left, right
    center = middle(right)
    return left - center, right - center


def lengths(kernel: Any, X: Float[np.ndarray, "n d"], scale: Any = 1.0) -> Rows:
    """scale · x in units of the product Laplace kernel's bandwidths, without columns that it does not see."""
    unit = np.broadcast_to(scale / np.asarray(kernel.bandwidth, X.dtype), X.shape[1:])
    used = np.flatnonzero(unit)
    return X[:, used] * unit[used]


def embedded(kernel: InnerProductKernel, X: Float[np.ndarray, "n d"], inputs: int | None = None) -> Rows:
    """Rows after `embed`; where that is linear (a metric could be learned) by NumPy, with nothing to compile."""
    if not kernel.metrics:
        return np.asarray(_embed(kernel, X, inputs), X.dtype)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(kernel)):
        kernel = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, kernel)
    return np.asarray(type(kernel).embed(kernel, X, inputs), X.dtype)  # Equinox would make a tree of the method


def inner_products(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> tuple[Any, Any, Any]:
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; pairs closer than rounding are made coincident, x with itself exactly."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    xz = dot(F, H.T)
    middle = 0.5 * (xx[:, None] + zz)
    close = coincident(middle - xz, middle, rounding_floor(F.shape[1], F.dtype))
    if G is None:
        np.fill_diagonal(close, True)
    np.copyto(xz, middle, where=close)
    return xz, xx, zz


def squared_distances(F: Rows, G: Float[np.ndarray, "m e"] | None = None) -> Square:
    """‖x-z‖² of all pairs, zero where rounding cannot tell it from zero."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    D = dot(-2 * F, H.T)
    D += xx[:, None]
    D += zz
    floor = rounding_floor(F.shape[1], F.dtype)
    largest = 2 * (xx.max(initial=0) + zz.max(initial=0))
    # few: the others need no closer look; np.nonzero of a matrix counts row by row, which takes longer than D itself
    i, j = np.unravel_index(np.flatnonzero(coincident(D, largest, floor)), D.shape)
    D[i, j] = np.where(coincident(D[i, j], 2 * (xx[i] + zz[j]), floor), 0, D[i, j])
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
    """k(x - z, 0), which is k(x, z) where only the difference counts; 0 is at right angles to everything."""
    return kernel.entry_distance(D, jnp.ones_like(D), D, jnp.zeros_like(D))


def _by_numpy(kernel: InnerProductKernel) -> bool:
    """Whether NumPy evaluates this formula: a third of what a program costs, which is called for every piece."""
    return getattr(kernel, "on_host", False) and not any(isinstance(a, jax.Array) for a in jax.tree.leaves(kernel))


def _strips(kernel: Any, D: Square, scale: float, dtype: np.dtype) -> Square:
    """k of the squared distances scale · D by NumPy. Of a symmetric table all pairs too: to mirror half of it costs as
    much as to evaluate it."""
    out, rows = np.empty(D.shape, dtype), max(1, PIECE // max(1, D.shape[1]))
    for i in range(0, len(D), rows):
        part = np.multiply(D[i : i + rows], scale, out=out[i : i + rows], casting="same_kind")
        part[...] = type(kernel).of_distance(kernel, part)  # Equinox would make a tree of the method
    return out


def _flat(function: Callable, kernel: InnerProductKernel, D: np.ndarray, scale: float, dtype: Any) -> np.ndarray:
    """function(scale · D), entry by entry."""
    out, source = np.empty(D.size, dtype), np.ascontiguousarray(D).reshape(-1)
    for i in range(0, D.size, PIECE):
        piece = source[i : i + PIECE]
        piece = piece if scale == 1 else piece * scale
        out[i : i + PIECE] = _piece(function, kernel, piece.astype(dtype, copy=False))
    return out.reshape(D.shape)


def _triangle(function: Callable, kernel: InnerProductKernel, D: Square, scale: float, dtype: Any) -> Square:
    """The same of a symmetric table, each pair once: strips up to the diagonal, end to end, and their mirror image."""
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
    """At most PIECE entries, padded to as many."""
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
