"""Gram matrices with a Mahalanobis metric in NumPy: K at every bandwidth, and the AGOP of a fit [D11].

The map L (M = LᵀL) and the bandwidth h only transform inputs, x → Lx/h, so one table of pairs
(products.engines.numpy_engine) per metric serves all bandwidths. Everything is NumPy, since LAPACK is the fast solver
for a thousand rows.
"""

import math
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from unlazy.core.arrays import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.metric import metric_not_supported
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import RadialKernel
from unlazy.products.engines.numpy_engine import (
    Distances,
    EntryTable,
    InnerProducts,
    L1Distances,
    embed_rows,
    scaled_rows,
)
from unlazy.theory.numerics.geometry import (
    evenly_spaced_rows,
    median_distance,
    robust_center,
    root_mean_square_norm,
    row_pairs,
)

Kind = TypeVar("Kind", bound=Kernel)
Map = Float[np.ndarray, " d"] | Float[np.ndarray, "r d"]
SAMPLE = 500
"""Rows whose distances determine the default bandwidth."""
COLUMNS = 512
"""Columns of a matrix product that computes gradients of several outputs at once."""
STRIP = 256
"""Rows of K that are evaluated together when no table is kept."""
GRADIENTS = 600
"""Rows over which gradients are averaged."""
SIGNS, FEW_GRADIENTS = 75_000_000, 100
"""Maximum number of signs (one per column and pair of rows) for the AGOP of ℓ1 kernels, and the minimum number of rows
that it averages: a mean of squares over 100 rows has relative error √(2/100), less than the variation between fits."""
TIED = 0.05
"""Fraction of tied pairs in a column up to which ties are corrected one by one."""
CACHED = 65_536
"""Values of a block that is traversed several times, so that it stays in the cache."""


def metric_gram(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map) -> "MetricGram":
    """Gram matrices of the kernel for the rows X under the map L, at all bandwidths."""
    return _gram_type(kernel)(kernel, X, L)


def cross_table(kernel: Kernel, Z: Float[np.ndarray, "m d"], X: Float[np.ndarray, "n d"], L: Map) -> EntryTable:
    """Table of all pairs of Z and X under the map L, for all bandwidths: `entries(kernel, h)` is K(Z, X)."""
    kind = _gram_type(kernel)
    return kind.table_type.from_rows(*kind.map_sides(kernel, Z, X, L, 1.0))


def cross(
    kernel: Kernel,
    Z: Float[np.ndarray, "m d"],
    X: Float[np.ndarray, "n d"],
    L: Map,
    h: float,
    dtype: DTypeLike | None = None,
) -> Float[np.ndarray, "m n"]:
    """K(Z, X) at Lx/h, by default in the precision of X."""
    kind = _gram_type(kernel)
    return kind.table_type.from_rows(*kind.map_sides(kernel, Z, X, L, h)).entries(kernel, dtype=dtype)


def lower(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map, h: float) -> Float[np.ndarray, "n n"]:
    """Lower triangle of K at Lx/h; the upper triangle is uninitialized. Half of the work, and no table in memory."""
    kind, n = _gram_type(kernel), len(X)
    F, _ = kind.map_sides(kernel, X, X, L, h)
    K = np.empty((n, n), X.dtype)
    for i in range(0, n, STRIP):
        stop = min(i + STRIP, n)
        K[i:stop, :stop] = kind.table_type.from_rows(F[i:stop], F[:stop]).entries(kernel)
    return K


def _gram_type(kernel: Kernel) -> "type[MetricGram]":
    if isinstance(kernel, ProductLaplace):
        return L1DistanceGram
    if isinstance(kernel, RadialKernel):
        return DistanceGram
    if isinstance(kernel, InnerProductKernel):
        return InnerProductGram
    raise metric_not_supported(kernel)


class MetricGram(Generic[Kind]):
    """Gram matrices and gradients for training rows under one metric, at all bandwidths."""

    table_type: type[EntryTable]
    table: Any
    X: Float[np.ndarray, "n d"]
    map: Map
    default_bandwidth: float
    """Typical distance (or norm) of the rows, a default bandwidth."""

    def __init__(self, kernel: Kind, X: np.ndarray, L: Map):
        raise NotImplementedError

    @staticmethod
    def map_sides(kernel: Kind, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> tuple[np.ndarray, np.ndarray]:
        """Z and X at Lx/h as inputs of the table."""
        raise NotImplementedError

    def gram(self, h: float, first: int | None = None, dtype: DTypeLike | None = None) -> Float[np.ndarray, "m m"]:
        """K of the first rows (by default all) at bandwidth h, by default in the precision of X. The last K of all rows
        is cached until `forget`, since several ridges are tried at one bandwidth."""
        dtype = np.dtype(dtype or self.X.dtype)
        if self._last is not None and self._last[0] == h and self._last[1].dtype == dtype:
            return self._last[1][:first, :first]
        K = self.table.part(slice(first), slice(first)).entries(self.kernel, h, dtype)
        if first is None:
            self._last = (h, K)
        return K

    def forget(self) -> None:
        """Clear the cached K."""
        self._last = None

    _last: tuple[float, np.ndarray] | None = None
    kernel: Kind

    def agop(
        self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool
    ) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """AGOP (1/m) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ, or its diagonal, of the predictor with coefficients alpha at the first m
        rows, averaged over a sample of these rows."""
        raise NotImplementedError

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """∂f_c/∂(Lx)_k at the given rows, of the predictor with coefficients alpha at the first m rows."""
        raise NotImplementedError


def gradients(
    by_product: np.ndarray, by_norm: np.ndarray, alpha: np.ndarray, points: np.ndarray, centers: np.ndarray
) -> Float[np.ndarray, "m c e"]:
    """∇f of several outputs with respect to embedded points, from the derivatives of the entries.

    As theory.feature_learning.agop.gradient, by one wide product, which is cheaper than c narrow ones.
    """
    columns = (alpha[:, :, None] * centers[:, None]).reshape(len(centers), -1)
    along = dot(by_product, columns).reshape(len(points), *alpha.shape[1:], -1)
    return along + 2 * dot(by_norm, alpha)[:, :, None] * points[:, None]


class _FormulaGram(MetricGram[InnerProductKernel]):
    """Kernels with an entry formula; F = X · to are the embedded rows."""

    F: Float[np.ndarray, "n e"]
    to: Float[np.ndarray, " e"] | Float[np.ndarray, "d e"]
    used: np.ndarray | None = None
    """Columns with nonzero weight in a diagonal metric; None if all columns have nonzero weight."""

    @staticmethod
    def map_sides(
        kernel: InnerProductKernel, Z: np.ndarray, X: np.ndarray, L: Map, h: float
    ) -> tuple[Float[np.ndarray, "m e"], Float[np.ndarray, "n e"]]:
        """Z and X at Lx/h, embedded, and centered together if the kernel is stationary."""
        F, G = (embed_rows(kernel, _apply_map(A, L), X.shape[1]) / h for A in (X, Z))
        center = robust_center(F) if kernel.stationary else 0.0
        return G - center, F - center

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        part = evenly_spaced_rows(len(alpha), GRADIENTS)
        if diagonal:  # avoids a d × d matrix
            back = (G * self.to if self.to.ndim == 1 else dot(G, self.to.T) for G in self._gradients(h, alpha, part))
            return self._placed(sum(np.einsum("ij,ij->j", G, G) for G in back) / h**4 / len(part))
        total = np.zeros((self.F.shape[1],) * 2, self.F.dtype)
        for G in self._gradients(h, alpha, part):
            total += dot(G.T, G)
        total *= 1 / h**4 / len(part)
        return dot(self.to, total, self.to.T) if self.to.ndim == 2 else self._placed(total * self.to[:, None] * self.to)

    def _placed(self, found: np.ndarray) -> np.ndarray:
        """Extend a result for the used columns to all columns with zeros."""
        if self.used is None:
            return found
        whole = np.zeros((len(self.map),) * found.ndim, found.dtype)
        whole[np.ix_(*(self.used,) * found.ndim)] = found
        return whole

    def _gradients(self, h: float, alpha: np.ndarray, rows: np.ndarray) -> Iterator[Float[np.ndarray, "p e"]]:
        """h²∇f with respect to embedded rows, one output at a time."""
        m = len(alpha)
        by_product, by_norm = self.table.part(rows, slice(m)).slopes(self.kernel, h)
        some = max(1, COLUMNS // self.F.shape[1])
        for i in range(0, alpha.shape[1], some):
            found = gradients(by_product, by_norm, alpha[:, i : i + some], self.F[rows], self.F[:m])
            yield from np.moveaxis(found, 1, 0)

    def slopes(self, h: float, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        back = self._embedding().T / h**2
        found = np.empty((len(rows), alpha.shape[1], len(self.map)), self.X.dtype)
        for i in range(0, len(rows), GRADIENTS):  # few rows at a time: two values are stored per pair
            for c, G in enumerate(self._gradients(h, alpha, rows[i : i + GRADIENTS])):
                found[i : i + GRADIENTS, c] = dot(G, back)
        return found

    def _embedding(self) -> Float[np.ndarray, "r e"]:
        """Matrix of the linear map from Lx to embedded rows."""
        unit = np.eye(len(self.map), dtype=self.X.dtype)
        return embed_rows(self.kernel, unit, self.X.shape[1])[:, slice(None) if self.used is None else self.used]


class DistanceGram(_FormulaGram):
    """Kernels of the distance ‖Lx - Lz‖."""

    table_type = Distances

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        if L.ndim == 1 and not L.all():
            self.used = np.flatnonzero(L)
            X, L = X[:, self.used], L[self.used]
        self.to = L.T
        F = _apply_map(X, L)
        self.F = F - F.mean(0)
        self.table = Distances.from_rows(self.F)
        self.default_bandwidth = math.sqrt(_typical(self.table.D, evenly_spaced_rows(len(X), SAMPLE)))


class InnerProductGram(_FormulaGram):
    """Other kernels of inner products."""

    table_type = InnerProducts

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        self.to = _linear(kernel, L, X.shape[1], X.dtype)
        F = embed_rows(kernel, _apply_map(X, L), X.shape[1])
        self.F = F - F.mean(0) if kernel.stationary else F
        self.table = InnerProducts.from_rows(self.F)
        self.default_bandwidth = root_mean_square_norm(self.table.xx)


class L1DistanceGram(MetricGram[ProductLaplace]):
    """The ℓ1 (product) Laplace kernel with a diagonal metric; its derivative at ties in a column is zero."""

    table_type = L1Distances

    def __init__(self, kernel: ProductLaplace, X: np.ndarray, L: Map):
        if L.ndim != 1:
            raise ValueError("the ℓ1 kernel supports only a diagonal metric: use metric='diagonal'")
        self.kernel, self.X, self.map = kernel, X, L
        self.table = L1Distances.from_rows(scaled_rows(kernel, X, L))
        self.default_bandwidth = _typical(self.table.D, evenly_spaced_rows(len(X), SAMPLE))

    @staticmethod
    def map_sides(
        kernel: ProductLaplace, Z: np.ndarray, X: np.ndarray, L: Map, h: float
    ) -> tuple[np.ndarray, np.ndarray]:
        return scaled_rows(kernel, Z, L / h), scaled_rows(kernel, X, L / h)

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        """∂_j f(x) = -(L_j/h) Σ_i α_i k(x, x_i) sign(x_j - x_ij)."""
        m, rate = len(alpha), self.map / (h * np.asarray(self.kernel.bandwidth))
        pairs_of_a_row = m * max(1, int(np.count_nonzero(rate)))
        part = evenly_spaced_rows(m, min(GRADIENTS, max(FEW_GRADIENTS, SIGNS // pairs_of_a_row)))
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
        """Σ_i w_i sign(x_j - x_ij) for every row x, in blocks that fit the cache. The sign bit is copied, which is 3
        times faster than multiplying; ties count as +1 at first and are subtracted afterwards."""
        column = self.X[:m, j] + 0.0  # avoids -0, whose difference from 0 has the opposite sign
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
    """Matrix of the linear map x → embed(Lx), computed from the unit vectors."""
    unit = embed_rows(kernel, np.eye(len(L), dtype=dtype), d)
    return L[:, None] * unit if L.ndim == 1 else dot(L.T, unit)


def _apply_map(X: Float[np.ndarray, "n d"], L: Map) -> Float[np.ndarray, "n r"]:
    """Lx for every row; a diagonal L is never expanded to a matrix."""
    return X * L if L.ndim == 1 else dot(X, L.T)


def _typical(D: np.ndarray, part: np.ndarray) -> float:
    """Median distance between a sample of rows; positive even if half of the distances are zero."""
    i, j = row_pairs(len(part))
    return median_distance(D[part[i], part[j]], 0.0) or float(D.max(initial=0)) or 1.0
