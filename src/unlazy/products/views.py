"""Rows seen by a kernel through a metric, on the host: K at every bandwidth, and the AGOP of a fit [D11].

The map L (M = LᵀL) and the bandwidth h change inputs only, x → Lx/h, so one table of inner products (or of ℓ1
distances) a metric serves every bandwidth. Everything is NumPy: for a thousand rows LAPACK on the host is the fast way.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from unlazy.core.linear import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.metric import no_metric
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import RadialKernel
from unlazy.products import host
from unlazy.theory import bandwidth
from unlazy.theory.agop import gradient

Map = Float[np.ndarray, " d"] | Float[np.ndarray, "r d"]
SAMPLE = 500
"""Rows whose distances give the usual bandwidth."""
GRADIENTS = 600
"""Rows over which gradients are averaged."""


def view(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map) -> "View":
    """X under the map L, seen by this kernel."""
    return _kind(kernel)(kernel, X, L)


def cross(
    kernel: Kernel, Z: Float[np.ndarray, "m d"], X: Float[np.ndarray, "n d"], L: Map, h: float
) -> Float[np.ndarray, "m n"]:
    """K(Z, X) at Lx/h."""
    return _kind(kernel).cross(kernel, Z, X, L, h)


def _kind(kernel: Kernel) -> "type[View]":
    if kernel.reads is None:
        raise no_metric(kernel)
    kinds = {"distance": Distances, "inner products": InnerProducts, "absolute distance": AbsoluteDistances}
    return kinds[kernel.reads]


class View:
    """Training rows under one metric."""

    X: Float[np.ndarray, "n d"]
    map: Map
    usual: float
    """A first bandwidth."""

    def gram(self, h: float, first: int | None = None) -> Float[np.ndarray, "m m"]:
        """K of the first rows (of all, where None) at bandwidth h; the last K of all rows is kept until `forget`, since
        ridges are searched at one bandwidth."""
        if self._last is not None and self._last[0] == h:
            return self._last[1][:first, :first]
        K = self._gram(h, first)
        if first is None:
            self._last = (h, K)
        return K

    def forget(self) -> None:
        """Drop the kept K."""
        self._last = None

    _last: tuple[float, np.ndarray] | None = None

    def __init__(self, kernel: Any, X: np.ndarray, L: Map):
        raise NotImplementedError

    @staticmethod
    def cross(kernel: Any, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> np.ndarray:
        """K(Z, X) at Lx/h."""
        raise NotImplementedError

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        raise NotImplementedError

    def agop(
        self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool
    ) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """(1/m) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ of the fit alpha to the first m rows, over a sample of them, or its
        diagonal."""
        raise NotImplementedError

    def _sample(self, size: int, first: int | None = None) -> np.ndarray:
        return bandwidth.some_rows(len(self.X) if first is None else first, size)


class Distances(View):
    """Kernels of the distance ‖Lx - Lz‖."""

    def __init__(self, kernel: RadialKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        F = X * L if L.ndim == 1 else dot(X, L.T)
        self.F = F - F.mean(0)
        self.D = host.squared_distances(self.F)
        self.usual = math.sqrt(_typical(self.D, self._sample(SAMPLE)))

    @staticmethod
    def cross(kernel: RadialKernel, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> np.ndarray:
        return host.radial_entries(kernel, host.squared_distances(*_both(kernel, Z, X, L, h)))

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        return host.radial_entries(self.kernel, self.D[:first, :first] * (1 / h**2))

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        part, s = self._sample(GRADIENTS, len(alpha)), 1 / h**2
        slope = host.radial_derivatives(self.kernel, self.D[part, : len(alpha)] * s)
        total = _outer(-2 * slope, slope, alpha, self.F, part)
        total *= s * s / len(part)
        if self.map.ndim == 1:
            total *= self.map[:, None] * self.map
        else:
            total = dot(self.map.T, total, self.map)
        return np.diag(total).copy() if diagonal else total


class InnerProducts(View):
    """Other kernels of inner products."""

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        self.to = _linear(kernel, L, X.shape[1], X.dtype)
        F = dot(X, self.to)
        self.F = F - F.mean(0) if kernel.stationary else F
        self.xz, self.xx, _ = host.inner_products(self.F)
        typical = float(np.mean(self.xx))
        self.usual = math.sqrt(typical) if typical > 0 else 1.0

    @staticmethod
    def cross(kernel: InnerProductKernel, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> np.ndarray:
        return host.entries(kernel, *host.inner_products(*_both(kernel, Z, X, L, h)))

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        s = 1 / h**2
        norms = self.xx[:first] * s
        return host.entries(self.kernel, self.xz[:first, :first] * s, norms, norms)

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        m = len(alpha)
        part, s = self._sample(GRADIENTS, m), 1 / h**2
        derivatives = host.derivatives(self.kernel, self.xz[part, :m] * s, self.xx[part] * s, self.xx[:m] * s)
        M = dot(self.to, _outer(*derivatives, alpha, self.F, part), self.to.T) * (s * s / len(part))
        return np.diag(M).copy() if diagonal else M


class AbsoluteDistances(View):
    """The ℓ1 (product) Laplace kernel with a diagonal metric: at a tie in one column its derivative there is zero."""

    def __init__(self, kernel: ProductLaplace, X: np.ndarray, L: Map):
        from scipy.spatial.distance import cdist

        if L.ndim != 1:
            raise ValueError("the ℓ1 kernel takes a diagonal metric only: metric='diagonal'")
        self.X, self.map, self.L = X, L, L / np.asarray(kernel.bandwidth)
        self.used = np.flatnonzero(self.L)
        self.F = (X * self.L)[:, self.used]
        self.D = cdist(self.F, self.F, "cityblock").astype(X.dtype, copy=False)
        self.usual = _typical(self.D, self._sample(SAMPLE))

    @staticmethod
    def cross(kernel: ProductLaplace, Z: np.ndarray, X: np.ndarray, L: Map, h: float) -> np.ndarray:
        from scipy.spatial.distance import cdist

        used, scale = np.flatnonzero(L), L / (h * np.asarray(kernel.bandwidth))
        return np.exp(-cdist((Z * scale)[:, used], (X * scale)[:, used], "cityblock")).astype(X.dtype, copy=False)

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        return np.exp(self.D[:first, :first] * (-1 / h))

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        """∂_j f(x) = -(L_j/h) Σ_i α_i k(x, x_i) sign(x_j - x_ij)."""
        m = len(alpha)
        part = self._sample(GRADIENTS, m)
        K = np.exp(self.D[part, :m] * (-1 / h))
        single = K * alpha[:, 0] if alpha.shape[1] == 1 else None
        found, side = np.zeros(self.X.shape[1], self.X.dtype), np.empty_like(K)
        for j in self.used:
            np.sign(np.subtract.outer(self.X[part, j], self.X[:m, j], out=side), out=side)
            if single is not None:
                total = np.mean(np.einsum("ij,ij->i", single, side) ** 2)
            else:
                total = np.mean(np.sum(dot(np.multiply(side, K, out=side), alpha) ** 2, 1))
            found[j] = total * (self.L[j] / h) ** 2
        return found


def _linear(kernel: InnerProductKernel, L: Map, d: int, dtype: np.dtype) -> Float[np.ndarray, "d e"]:
    """x → embed(Lx) as a matrix: embeddings are linear, what they do to the unit vectors is what they do."""
    mapped = np.diag(L) if L.ndim == 1 else L
    return dot(mapped.T, host.embedding(kernel, np.eye(len(mapped), dtype=dtype), d))


def _both(
    kernel: InnerProductKernel, Z: np.ndarray, X: np.ndarray, L: Map, h: float
) -> tuple[Float[np.ndarray, "m e"], Float[np.ndarray, "n e"]]:
    """Both sides after map, bandwidth and embedding, centred together where only differences matter."""
    to = _linear(kernel, L, X.shape[1], X.dtype) / h
    F = dot(X, to)
    centre = F.mean(0) if kernel.stationary else 0.0
    return dot(Z, to) - centre, F - centre


def _outer(
    by_product: np.ndarray, by_norm: np.ndarray, alpha: np.ndarray, F: np.ndarray, part: np.ndarray
) -> Float[np.ndarray, "e e"]:
    """Σ_x Σ_c ∇f_c ∇f_cᵀ over the rows of the part, an output at a time."""
    total = np.zeros((F.shape[1],) * 2, F.dtype)
    for a in alpha.T:
        G = gradient(by_product, by_norm, a, F[part], F[: len(alpha)])
        total += dot(G.T, G)
    return total


def _typical(D: np.ndarray, part: np.ndarray) -> float:
    """The median of the distances between some rows; something positive where all coincide."""
    i, j = bandwidth.pairs(len(part))
    return bandwidth.median_distance(D[part[i], part[j]], 0.0) or float(D.max(initial=0)) or 1.0
