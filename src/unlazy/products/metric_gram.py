"""Rows seen by a kernel through a metric, on the host: K at every bandwidth, and the AGOP of a fit [D11].

The map L (M = LᵀL) and the bandwidth h change inputs only, x → Lx/h, so one table of pairs
(products.engines.numpy_entries) a metric serves every bandwidth. Everything is NumPy: for a thousand rows LAPACK on the
host is the fast way.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from unlazy.core.linalg import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.metric import no_metric
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.products.engines import numpy_entries
from unlazy.theory.feature_learning.agop import gradients
from unlazy.theory.numerics.bandwidth import median_distance, pairs, some_rows, typical_norm
from unlazy.theory.numerics.centering import middle

Map = Float[np.ndarray, " d"] | Float[np.ndarray, "r d"]
SAMPLE = 500
"""Rows whose distances give the usual bandwidth."""
COLUMNS = 512
"""Columns of a product that makes gradients of several outputs at once."""
STRIP = 256
"""Rows of K that are evaluated together where no table is kept."""
GRADIENTS = 600
"""Rows over which gradients are averaged."""
SIGNS, FEW_GRADIENTS = 75_000_000, 100
"""Where every column asks for a sign of every pair of rows (ℓ1), so many of them and no more rows than that allows, but
these: a mean of squares over a hundred rows is known to √(2/100), a seventh, which is less than fits differ by."""
TIED = 0.05
"""Share of the pairs that are tied in a column up to which ties are looked for one by one."""
CACHED = 65_536
"""Numbers of a block that is gone through several times."""


def view(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map) -> "View":
    """X under the map L, seen by this kernel."""
    return _kind(kernel)(kernel, X, L)


def cross_table(
    kernel: Kernel, Z: Float[np.ndarray, "m d"], X: Float[np.ndarray, "n d"], L: Map
) -> numpy_entries.Table:
    """What the kernel reads of every pair of Z and X at Lx, for all bandwidths: `entries(kernel, h)` is K(Z, X)."""
    kind = _kind(kernel)
    return kind.table_kind.of(*kind.both(kernel, Z, X, L, 1.0))


def cross(
    kernel: Kernel, Z: Float[np.ndarray, "m d"], X: Float[np.ndarray, "n d"], L: Map, h: float, dtype: Any = None
) -> Float[np.ndarray, "m n"]:
    """K(Z, X) at Lx/h, in the precision of X or another."""
    kind = _kind(kernel)
    return kind.table_kind.of(*kind.both(kernel, Z, X, L, h)).entries(kernel, dtype=dtype)


def lower(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map, h: float) -> Float[np.ndarray, "n n"]:
    """K at Lx/h up to its diagonal, what lies above it not set: half of the work, and no table beside it."""
    kind, n = _kind(kernel), len(X)
    F, _ = kind.both(kernel, X, X, L, h)
    K = np.empty((n, n), X.dtype)
    for i in range(0, n, STRIP):
        stop = min(i + STRIP, n)
        K[i:stop, :stop] = kind.table_kind.of(F[i:stop], F[:stop]).entries(kernel)
    return K


def _kind(kernel: Kernel) -> "type[View]":
    if kernel.reads is None:
        raise no_metric(kernel)
    kinds = {"distance": OfDistances, "inner products": OfInnerProducts, "absolute distance": OfAbsoluteDistances}
    return kinds[kernel.reads]


class View:
    """Training rows under one metric."""

    table_kind: type[numpy_entries.Table]
    table: Any
    X: Float[np.ndarray, "n d"]
    map: Map
    usual: float
    """A first bandwidth."""

    def __init__(self, kernel: Any, X: np.ndarray, L: Map):
        raise NotImplementedError

    @staticmethod
    def both(kernel: Any, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> tuple[np.ndarray, np.ndarray]:
        """Z and X at Lx/h as the table takes them."""
        raise NotImplementedError

    def gram(self, h: float, first: int | None = None, dtype: Any = None) -> Float[np.ndarray, "m m"]:
        """K of the first rows (of all, where None) at bandwidth h, in the rows' precision or another; the last K of all
        rows is kept until `forget`, since ridges are searched at one bandwidth."""
        dtype = np.dtype(dtype or self.X.dtype)
        if self._last is not None and self._last[0] == h and self._last[1].dtype == dtype:
            return self._last[1][:first, :first]
        K = self.table.part(slice(first), slice(first)).entries(self.kernel, h, dtype)
        if first is None:
            self._last = (h, K)
        return K

    def forget(self) -> None:
        """Drop the kept K."""
        self._last = None

    _last: tuple[float, np.ndarray] | None = None
    kernel: Any

    def agop(
        self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool
    ) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """(1/m) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ of the fit alpha to the first m rows, over a sample of them, or its
        diagonal."""
        raise NotImplementedError

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """∂f_c/∂(Lx)_k at some of the first m rows, of the fit alpha to them."""
        raise NotImplementedError


class _OfFormula(View):
    """Kernels with an entry formula: F = X · to, embedded rows."""

    F: Float[np.ndarray, "n e"]
    to: Float[np.ndarray, " e"] | Float[np.ndarray, "d e"]
    used: np.ndarray | None = None
    """Columns that a diagonal metric sees, where it does not see all."""

    @staticmethod
    def both(
        kernel: InnerProductKernel, Z: np.ndarray, X: np.ndarray, L: Map, h: float
    ) -> tuple[Float[np.ndarray, "m e"], Float[np.ndarray, "n e"]]:
        """Centered together where only differences matter."""
        F, G = (numpy_entries.embedded(kernel, _seen(A, L), X.shape[1]) / h for A in (X, Z))
        center = middle(F) if kernel.stationary else 0.0
        return G - center, F - center

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        part = some_rows(len(alpha), GRADIENTS)
        if diagonal:  # no matrix of all pairs of columns
            back = (G * self.to if self.to.ndim == 1 else dot(G, self.to.T) for G in self._gradients(h, alpha, part))
            return self._placed(sum(np.einsum("ij,ij->j", G, G) for G in back) / h**4 / len(part))
        total = np.zeros((self.F.shape[1],) * 2, self.F.dtype)
        for G in self._gradients(h, alpha, part):
            total += dot(G.T, G)
        total *= 1 / h**4 / len(part)
        return dot(self.to, total, self.to.T) if self.to.ndim == 2 else self._placed(total * self.to[:, None] * self.to)

    def _placed(self, found: np.ndarray) -> np.ndarray:
        """What was found of the columns that are seen, zeros elsewhere."""
        if self.used is None:
            return found
        whole = np.zeros((len(self.map),) * found.ndim, found.dtype)
        whole[np.ix_(*(self.used,) * found.ndim)] = found
        return whole

    def _gradients(self, h: float, alpha: np.ndarray, rows: np.ndarray) -> Iterator[Float[np.ndarray, "p e"]]:
        """h²∇f with respect to embedded rows, an output at a time."""
        m = len(alpha)
        by_product, by_norm = self.table.part(rows, slice(m)).slopes(self.kernel, h)
        some = max(1, COLUMNS // self.F.shape[1])
        for i in range(0, alpha.shape[1], some):
            found = gradients(by_product, by_norm, alpha[:, i : i + some], self.F[rows], self.F[:m])
            yield from np.moveaxis(found, 1, 0)

    def slopes(self, h: float, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        back = self._embedding().T / h**2
        found = np.empty((len(rows), alpha.shape[1], len(self.map)), self.X.dtype)
        for i in range(0, len(rows), GRADIENTS):  # a few rows at a time: two numbers are held for every pair
            for c, G in enumerate(self._gradients(h, alpha, rows[i : i + GRADIENTS])):
                found[i : i + GRADIENTS, c] = dot(G, back)
        return found

    def _embedding(self) -> Float[np.ndarray, "r e"]:
        """Lx → embedded rows."""
        unit = np.eye(len(self.map), dtype=self.X.dtype)
        return numpy_entries.embedded(self.kernel, unit, self.X.shape[1])[
            :, slice(None) if self.used is None else self.used
        ]


class OfDistances(_OfFormula):
    """Kernels of the distance ‖Lx - Lz‖."""

    table_kind = numpy_entries.Distances

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        if L.ndim == 1 and not L.all():
            self.used = np.flatnonzero(L)
            X, L = X[:, self.used], L[self.used]
        self.to = L.T
        F = _seen(X, L)
        self.F = F - F.mean(0)
        self.table = numpy_entries.Distances.of(self.F)
        self.usual = math.sqrt(_typical(self.table.D, some_rows(len(X), SAMPLE)))


class OfInnerProducts(_OfFormula):
    """Other kernels of inner products."""

    table_kind = numpy_entries.InnerProducts

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        self.to = _linear(kernel, L, X.shape[1], X.dtype)
        F = numpy_entries.embedded(kernel, _seen(X, L), X.shape[1])
        self.F = F - F.mean(0) if kernel.stationary else F
        self.table = numpy_entries.InnerProducts.of(self.F)
        self.usual = typical_norm(self.table.xx)


class OfAbsoluteDistances(View):
    """The ℓ1 (product) Laplace kernel with a diagonal metric: at a tie in one column its derivative there is zero."""

    table_kind = numpy_entries.AbsoluteDistances

    def __init__(self, kernel: ProductLaplace, X: np.ndarray, L: Map):
        if L.ndim != 1:
            raise ValueError("the ℓ1 kernel takes a diagonal metric only: metric='diagonal'")
        self.kernel, self.X, self.map = kernel, X, L
        self.table = numpy_entries.AbsoluteDistances.of(numpy_entries.lengths(kernel, X, L))
        self.usual = _typical(self.table.D, some_rows(len(X), SAMPLE))

    @staticmethod
    def both(kernel: Any, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> tuple[np.ndarray, np.ndarray]:
        return numpy_entries.lengths(kernel, Z, L / h), numpy_entries.lengths(kernel, X, L / h)

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        """∂_j f(x) = -(L_j/h) Σ_i α_i k(x, x_i) sign(x_j - x_ij)."""
        m, rate = len(alpha), self.map / (h * np.asarray(self.kernel.bandwidth))
        pairs_of_a_row = m * max(1, int(np.count_nonzero(rate)))
        part = some_rows(m, min(GRADIENTS, max(FEW_GRADIENTS, SIGNS // pairs_of_a_row)))
        K = self.table.part(part, slice(m)).entries(self.kernel, h)
        single = K * alpha[:, 0] if alpha.shape[1] == 1 else None
        found, side = np.zeros(self.X.shape[1], self.X.dtype), np.empty_like(K)
        for j in np.flatnonzero(rate):
            if single is not None:
                total = np.mean(self._signed(j, part, m, single) ** 2)
            else:
                self._sides(j, part, m, side)
                total = np.mean(np.sum(dot(np.multiply(side, K, out=side), alpha) ** 2, 1))
            found[j] = total * rate[j] ** 2
        return found

    def _signed(self, j: Any, rows: np.ndarray, m: int, weights: np.ndarray) -> np.ndarray:
        """Σ_i w_i sign(x_j - x_ij) of every row x, in blocks that the cache holds. The sign is one bit that is copied,
        three times as quick as a product with it; where pairs are tied it says one, which is taken off again."""
        column = self.X[:m, j] + 0.0  # no -0, whose difference from 0 has another sign
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        first, last = (np.searchsorted(ordered, column[rows], side) for side in ("left", "right"))
        many = bool(np.sum(last - first) > TIED * len(rows) * m)
        block, sign = max(1, CACHED // max(m, 1)), 1 << (8 * weights.itemsize - 1)
        side, found = np.empty((min(block, len(rows)), m), weights.dtype), np.empty(len(rows), weights.dtype)
        for a in range(0, len(rows), block):
            part, here = rows[a : a + block], weights[a : a + block]
            out = side[: len(part)]
            np.subtract.outer(column[part], column, out=out)
            if many:
                np.einsum("ij,ij->i", here, np.sign(out, out=out), out=found[a : a + block])
            else:
                bits = out.view(f"u{out.itemsize}")
                np.bitwise_xor(np.bitwise_and(bits, sign, out=bits), here.view(bits.dtype), out=bits)
                np.sum(out, 1, out=found[a : a + block])
        if not many:
            counts = last - first
            row = np.repeat(np.arange(len(rows)), counts)
            tied = order[np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)]
            found -= np.bincount(row, weights[row, tied], len(rows))
        return found

    def _sides(self, j: Any, rows: np.ndarray, m: int, out: np.ndarray) -> None:
        """sign(x_j - x_ij)."""
        np.sign(np.subtract.outer(self.X[rows, j], self.X[:m, j], out=out), out=out)

    def slopes(self, h: float, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        m, rate = len(alpha), 1 / (h * np.broadcast_to(self.kernel.bandwidth, self.map.shape))
        K = self.table.part(rows, slice(m)).entries(self.kernel, h)
        found, side = np.zeros((len(rows), alpha.shape[1], len(self.map)), self.X.dtype), np.empty_like(K)
        for j in np.flatnonzero(self.map):
            self._sides(j, rows, m, side)
            found[:, :, j] = -rate[j] * dot(np.multiply(side, K, out=side), alpha)
        return found


def _linear(kernel: InnerProductKernel, L: Map, d: int, dtype: np.dtype) -> Float[np.ndarray, "d e"]:
    """x → embed(Lx) as a matrix: embeddings are linear, what they do to the unit vectors is what they do."""
    unit = numpy_entries.embedded(kernel, np.eye(len(L), dtype=dtype), d)
    return L[:, None] * unit if L.ndim == 1 else dot(L.T, unit)


def _seen(X: Float[np.ndarray, "n d"], L: Map) -> Float[np.ndarray, "n r"]:
    """Lx of every row; a diagonal L never becomes a matrix."""
    return X * L if L.ndim == 1 else dot(X, L.T)


def _typical(D: np.ndarray, part: np.ndarray) -> float:
    """The median of the distances between some rows; something positive where half of them coincide."""
    i, j = pairs(len(part))
    return median_distance(D[part[i], part[j]], 0.0) or float(D.max(initial=0)) or 1.0
