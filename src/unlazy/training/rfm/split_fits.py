"""Fits to some rows under a metric, judged on others: α and b on the first m rows, predictions of the rest [D11].

    f(x) = b + Σ_{i ≤ m} α_i k(Lx/h, Lx_i/h),   [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0].

On the host one table of distances serves every bandwidth, and LAPACK solves. On an accelerator each fit is one program
that keeps nothing: K, its factor in float64 (which such cards do as fast as float32), the predictions.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from unlazy.core import devices
from unlazy.core.linalg import dot
from unlazy.core.precision import precision
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.products.agop import agop, gradient
from unlazy.products.engines.numpy_entries import Table
from unlazy.products.metric_gram import Map, cross_table, lower, view
from unlazy.solvers.ridge.factorization import judging_precision
from unlazy.solvers.ridge.inplace_ridge import coefficients_in_place
from unlazy.solvers.ridge.intercept import coefficients
from unlazy.theory.dynamics.leave_one_out import with_intercept

SAMPLE = 500
"""Rows whose distances give the usual bandwidth on an accelerator."""
GRADIENTS = 2000
"""Rows over which gradients are averaged there."""


def spread(n: int, most: int) -> Int[np.ndarray, " m"]:
    """At most so many of n rows, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


class SplitFit(NamedTuple):
    """Coefficients, intercept, the predictions of the rows that judge, and what was added to K."""

    alpha: Float[np.ndarray, "m c"]
    intercept: Float[np.ndarray, " c"]
    judged: Float[np.ndarray, "r c"]
    ridge: float


class SplitFits(abc.ABC):
    """Rows under one metric, the first m of which are fitted, and the latest fit: what was judged makes the next metric
    too. The labels of a split are always the same."""

    _latest: tuple[tuple[float, float], SplitFit | None] | None = None

    def fit(
        self, h: float, relative_ridge: float, Y: Float[np.ndarray, "m c"], weights: Float[np.ndarray, " m"] | None
    ) -> SplitFit | None:
        """The fit at this bandwidth and ridge; None where K + ρW⁻¹ is not positive to rounding."""
        place = (h, relative_ridge)
        if self._latest is None or self._latest[0] != place:
            self._latest = (place, self._fit(h, relative_ridge, Y, weights))
        return self._latest[1]

    @abc.abstractmethod
    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None: ...


class OnHost(SplitFits):
    """Rows on the host."""

    def __init__(self, kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map):
        self.view, self.kernel, self.judging = view(kernel, X[:m], L), kernel, X[m:]
        self.usual = self.view.usual
        """A first bandwidth."""

    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None:
        dtype = np.dtype(judging_precision(len(Y), relative_ridge, weights))
        try:
            K = self.view.gram(h, dtype=dtype)
            alpha, b = coefficients(K, Y, relative_ridge, weights)
        except ValueError:
            return None
        if self._cross is None or self._cross[0] != (h, dtype):  # ridges are searched at one bandwidth
            if self._pairs is None:  # one table serves every bandwidth
                self._pairs = cross_table(self.kernel, self.judging, self.view.X, self.view.map)
            self._cross = ((h, dtype), self._pairs.entries(self.kernel, h, dtype))
        judged = dot(self._cross[1], alpha.astype(dtype)).astype(Y.dtype) + b
        return SplitFit(alpha, b, judged, relative_ridge * float(np.mean(np.diagonal(K))))

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray:
        """The average gradient outer product of a fit, or its diagonal."""
        return self.view.agop(h, alpha, diagonal)

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """Derivatives of a fit along Lx at some of the rows it was made from."""
        return self.view.slopes(h, alpha, rows)

    def forget(self) -> None:
        """Drop the kept K; the last fit is small and stays."""
        self._cross = self._pairs = None
        self.view.forget()

    _pairs: Table | None = None
    _cross: tuple[tuple[float, np.dtype], np.ndarray] | None = None


class OnDevice(SplitFits):
    """Rows on an accelerator."""

    def __init__(self, kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map):
        self.kernel, self.m, self.given, self.map = kernel, m, L, filled(L, X.shape[1])
        self.usual = view(kernel, X[spread(m, SAMPLE)], L).usual
        with precision("float64"):
            self.X = jnp.asarray(X, jnp.float64)

    def at(self, h: float) -> Kernel:
        """The kernel of x itself."""
        return mapped(self.kernel, self.map / h)

    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None:
        with precision("float64"):
            w = jnp.ones(1) if weights is None else jnp.asarray(weights)
            found = _fit(self.at(h), self.X[: self.m], self.X[self.m :], jnp.asarray(Y), relative_ridge, w)
            alpha, b, judged, ridge = (np.asarray(a) for a in found)
        return SplitFit(alpha, b, judged, float(ridge)) if np.isfinite(b).all() else None

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray:
        """The average gradient outer product of a fit, or its diagonal."""
        part = spread(self.m, GRADIENTS)
        with precision("float64"):
            X = self.X[: self.m]
            found = np.asarray(agop(self.at(h), X[part], X, jnp.asarray(alpha)))
        return np.diag(found).copy() if diagonal else found

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """Derivatives of a fit along Lx at some of the rows it was made from."""
        return slopes(self.kernel, self.X[: self.m], self.given, h, alpha, self.X[rows])

    def forget(self) -> None:
        """Nothing is kept."""


def slopes(
    kernel: Kernel, X: Float[Any, "n d"], L: Map, h: float, alpha: Float[np.ndarray, "n c"], Z: Float[Any, "p d"],
    dtype: str = "float64",
) -> Float[np.ndarray, "p c r"]:  # fmt: skip
    """∂f_c/∂(Lx)_k at the rows of Z, of f(x) = Σ_i α_i k(Lx/h, Lx_i/h)."""
    # as many coordinates as there are inputs, where a kernel may count them, or programs are shared
    full = L if devices.is_host() and kernel.reads == "distance" else filled(L, X.shape[1])
    with precision("float64"):
        left, right = ((A * full if full.ndim == 1 else dot(A, full.T)) / h for A in (jnp.asarray(Z), jnp.asarray(X)))
        left, right, a = (np.asarray(A, dtype) for A in (left, right, alpha))
    with precision(dtype):
        found = np.asarray(gradient(kernel, left, right, a), np.float64) / h
    return found[:, :, : len(L)]


def split_fits(kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map) -> OnHost | OnDevice:
    """Rows under a metric on what computes here."""
    return (OnHost if devices.is_host() else OnDevice)(kernel, X, m, L)


def exact(
    kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"], float]:  # fmt: skip
    """α and b of the fit to all rows, and the ridge that was added to K."""
    if devices.is_host():
        K = lower(kernel, X, L, h)
        added = relative_ridge * float(np.mean(np.diagonal(K)))
        return *coefficients_in_place(K, Y, added, weights), added
    with precision("float64"):
        w = jnp.ones(1) if weights is None else jnp.asarray(weights)
        used = mapped(kernel, filled(L, X.shape[1]) / h)
        found = _coefficients(used, jnp.asarray(X, jnp.float64), jnp.asarray(Y), relative_ridge, w)
        alpha, b, ridge = (np.asarray(a) for a in found)
    if not np.isfinite(b).all():
        raise ValueError(f"K + {ridge:.2g}·I is not positive to rounding: take a larger ridge")
    return alpha, b, float(ridge)


@jax.jit
def _fit(kernel: Kernel, X: Array, Z: Array, Y: Array, relative_ridge: Any, weights: Array) -> tuple[Array, ...]:
    alpha, b, ridge = _coefficients(kernel, X, Y, relative_ridge, weights)
    return alpha, b, dot(kernel.gram(Z, X), alpha) + b, ridge


@jax.jit
def _coefficients(kernel: Kernel, X: Array, Y: Array, relative_ridge: Any, weights: Array) -> tuple[Array, ...]:
    K = kernel.gram(X)
    ridge = relative_ridge * jnp.mean(jnp.diagonal(K))
    at = jnp.arange(len(X))
    factor = jnp.linalg.cholesky(K.at[at, at].add(ridge / weights))
    center = dot(weights, Y) / weights.sum() if weights.size > 1 else Y.mean(0)
    solved = cho_solve((factor, True), jnp.concatenate([Y - center, jnp.ones((len(Y), 1))], 1))
    alpha, shift = with_intercept(solved[:, :-1], solved[:, -1])
    return alpha, center + shift, ridge


def filled(L: np.ndarray, d: int) -> np.ndarray:
    """A matrix with as many rows as there are coordinates, so that all metrics of a table share one compilation: rows
    of zeros change no inner product."""
    return L if L.ndim == 1 else np.concatenate([L, np.zeros((max(0, d - len(L)), d), L.dtype)])
