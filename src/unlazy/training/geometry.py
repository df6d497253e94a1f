"""Rows seen by a kernel through a metric: K at every bandwidth, and the average gradient outer product of a fit [D11].

The map L (M = LᵀL) and the bandwidth h change inputs only, x → Lx/h, so one table of inner products (or of ℓ1
distances) a metric serves every bandwidth. Everything is NumPy: for a thousand rows LAPACK on the host is the fast way.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core.linear import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.metric import Metric
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import RadialKernel
from unlazy.products import host

Map = Float[np.ndarray, " d"] | Float[np.ndarray, "r d"]
SAMPLE = 500
"""Rows whose distances give the usual bandwidth."""
GRADIENTS = 600
"""Rows over which gradients are averaged."""


def scaled(kernel: Kernel, L: Map, h: float) -> Kernel:
    """The kernel at Lx/h, as a kernel."""
    if isinstance(kernel, ProductLaplace):
        with np.errstate(divide="ignore"):
            return ProductLaplace(jnp.asarray(kernel.bandwidth * h / L))
    assert isinstance(kernel, InnerProductKernel)
    return Metric(kernel, jnp.asarray(L / h))


def geometry(kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map) -> "Geometry":
    """X under the map L, seen by this kernel."""
    if isinstance(kernel, ProductLaplace):
        return Absolute(kernel, X, L)
    if isinstance(kernel, RadialKernel):
        return Radial(kernel, X, L)
    if isinstance(kernel, InnerProductKernel):
        return Inner(kernel, X, L)
    raise ValueError(
        f"{type(kernel).__name__} has no entry formula and so no metric to learn: use a kernel of inner products "
        "(Gaussian, Laplace, Matern, NNGP, NTK) or ProductLaplace"
    )


def cross(
    kernel: Kernel, Z: Float[np.ndarray, "m d"], X: Float[np.ndarray, "n d"], L: Map, h: float
) -> Float[np.ndarray, "m n"]:
    """K(Z, X) at Lx/h."""
    if isinstance(kernel, ProductLaplace):
        from scipy.spatial.distance import cdist

        used, scale = np.flatnonzero(L), L / (h * np.asarray(kernel.bandwidth))
        return np.exp(-cdist((Z * scale)[:, used], (X * scale)[:, used], "cityblock")).astype(X.dtype, copy=False)
    assert isinstance(kernel, InnerProductKernel)
    to = _linear(kernel, L, X.shape[1], X.dtype) / h
    F = dot(X, to)
    centre = F.mean(0) if kernel.stationary else 0.0
    E, F = dot(Z, to) - centre, F - centre
    if isinstance(kernel, RadialKernel):
        return host.radial_entries(kernel, host.squared_distances(E, F))
    return host.entries(kernel, *host.inner_products(E, F))


def _linear(kernel: InnerProductKernel, L: Map, d: int, dtype: np.dtype) -> Float[np.ndarray, "d e"]:
    """x → embed(Lx) as a matrix: embeddings are linear, what they do to the unit vectors is what they do."""
    mapped = np.diag(L) if L.ndim == 1 else L
    return dot(mapped.T, host.embedding(kernel, np.eye(len(mapped), dtype=dtype), d))


class Geometry:
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

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        raise NotImplementedError

    def agop(
        self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool
    ) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """(1/m) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ of the fit alpha to the first m rows, over a sample of them, or its
        diagonal."""
        raise NotImplementedError

    def _sample(self, size: int, first: int | None = None) -> np.ndarray:
        m = len(self.X) if first is None else first
        return np.unique(np.linspace(0, m - 1, min(m, size)).astype(int))


class Radial(Geometry):
    """Kernels of the distance ‖Lx - Lz‖."""

    def __init__(self, kernel: RadialKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        F = X * L if L.ndim == 1 else dot(X, L.T)
        self.F = F - F.mean(0)
        self.D = host.squared_distances(self.F)
        self.usual = math.sqrt(_typical(self.D, self._sample(SAMPLE)))

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        return host.radial_entries(self.kernel, self.D[:first, :first] * (1 / h**2))

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        """∇f(x) = 2 Lᵀ Σ_i α_i k'(‖Lx - Lx_i‖²) (Lx - Lx_i)."""
        m = len(alpha)
        part, s, F = self._sample(GRADIENTS, m), 1 / h**2, self.F[:m]
        slope = host.radial_derivatives(self.kernel, self.D[part, :m] * s)
        total = np.zeros((self.F.shape[1],) * 2, self.X.dtype)
        for a in alpha.T:
            G = dot(slope, a)[:, None] * F[part] - dot(slope, a[:, None] * F)
            total += dot(G.T, G)
        total *= 4 * s * s / len(part)
        if self.map.ndim == 1:
            total *= self.map[:, None] * self.map
        else:
            total = dot(self.map.T, total, self.map)
        return np.diag(total).copy() if diagonal else total


class Inner(Geometry):
    """Other kernels of inner products."""

    def __init__(self, kernel: InnerProductKernel, X: np.ndarray, L: Map):
        self.kernel, self.X, self.map = kernel, X, L
        self.to = _linear(kernel, L, X.shape[1], X.dtype)
        F = dot(X, self.to)
        self.F = F - F.mean(0) if kernel.stationary else F
        self.xz, self.xx, _ = host.inner_products(self.F)
        typical = float(np.mean(self.xx))
        self.usual = math.sqrt(typical) if typical > 0 else 1.0

    def _gram(self, h: float, first: int | None) -> np.ndarray:
        s = 1 / h**2
        norms = self.xx[:first] * s
        return host.entries(self.kernel, self.xz[:first, :first] * s, norms, norms)

    def agop(self, h: float, alpha: np.ndarray, diagonal: bool) -> np.ndarray:
        """The chain rule through both inner products that hold x."""
        m = len(alpha)
        part, s, F = self._sample(GRADIENTS, m), 1 / h**2, self.F[:m]
        by_product, by_norm = host.derivatives(self.kernel, self.xz[part, :m] * s, self.xx[part] * s, self.xx[:m] * s)
        total = np.zeros((self.to.shape[1],) * 2, self.X.dtype)
        for a in alpha.T:
            G = dot(by_product, a[:, None] * F) + 2 * dot(by_norm, a)[:, None] * F[part]
            total += dot(G.T, G)
        M = dot(self.to, total, self.to.T) * (s * s / len(part))
        return np.diag(M).copy() if diagonal else M


class Absolute(Geometry):
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


def _typical(D: np.ndarray, part: np.ndarray) -> float:
    """The median of the distances between some rows; something positive where all coincide."""
    i, j = _pairs(len(part))
    found = float(np.median(D[part[i], part[j]])) if len(i) else 0.0
    return found if found > 0 else float(D.max(initial=0)) or 1.0


@functools.lru_cache(maxsize=2)
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(n, 1)
