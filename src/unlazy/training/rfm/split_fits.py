"""Fits to the first m rows under a metric, with predictions for the others [D11].

    f(x) = b + Σ_{i ≤ m} α_i k(Lx/h, Lx_i/h),   [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0].

On the host, one table of distances serves every bandwidth and LAPACK solves. On an accelerator each fit is one program
that stores nothing: K, its factor in float64 (as fast as float32 on such GPUs), the predictions.
"""

import abc
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.arrays import Matrix, dot, precision
from unlazy.kernels.base import Kernel
from unlazy.kernels.radial import RadialKernel
from unlazy.products.agop import gradient
from unlazy.products.engines.numpy_engine import EntryTable
from unlazy.products.metric_gram import Map, cross_table, lower, metric_gram
from unlazy.solvers.ridge import evaluation_dtype, ridge_coefficients, ridge_coefficients_in_place
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.rfm import device_programs
from unlazy.training.rfm.device_programs import Gradients, MappedKernel, mapped_kernel, pad_map, pad_rows
from unlazy.training.rfm.iteration import ROTATION_ROWS

LATEST = 3
"""Number of fits that are kept: as many as are compared after an update, of which one gives the next metric."""
SAMPLE = 500
"""Number of rows whose distances give the default bandwidth on an accelerator."""
GRADIENTS = 2000
"""Number of rows over which gradients are averaged on an accelerator."""
HOST_ROWS = 1000
"""Number of rows up to which the host makes the fits although there is an accelerator."""


class SplitFit(NamedTuple):
    """Coefficients, intercept, predictions of the validation rows, and the ridge that was added to K."""

    alpha: Float[np.ndarray, "m c"]
    intercept: Float[np.ndarray, " c"]
    predictions: Float[np.ndarray, "r c"]
    ridge: float


class SplitFits(abc.ABC):
    """Rows under one metric, of which the first m are fitted, and the latest fits, which the next metric reuses.

    The labels of a split must always be the same.
    """

    _latest: dict[tuple[float, float], SplitFit | None]

    def fit(
        self, h: float, relative_ridge: float, Y: Float[np.ndarray, "m c"], weights: Float[np.ndarray, " m"] | None
    ) -> SplitFit | None:
        """Return the fit at a bandwidth and a ridge; None if K + ρW⁻¹ is not positive definite to rounding."""
        place = (h, relative_ridge)
        if place not in self._latest:
            if len(self._latest) == LATEST:
                del self._latest[next(iter(self._latest))]
            self._latest[place] = self._fit(h, relative_ridge, Y, weights)
        return self._latest[place]

    @abc.abstractmethod
    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None: ...


class HostSplitFits(SplitFits):
    """Split fits on the host."""

    def __init__(self, kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map):
        self._latest = {}
        self.view, self.kernel, self.validation_X = metric_gram(kernel, X[:m], L), kernel, X[m:]
        self.default_bandwidth = self.view.default_bandwidth
        """Default bandwidth under this metric."""

    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None:
        dtype = np.dtype(evaluation_dtype(len(Y), relative_ridge, weights))
        try:
            K = self.view.gram(h, dtype=dtype)
            alpha, b = ridge_coefficients(K, Y, relative_ridge, weights)
        except ValueError:
            return None
        if self._cross is None or self._cross[0] != (h, dtype):  # ridges are searched at one bandwidth
            if self._pairs is None:  # one table serves every bandwidth
                self._pairs = cross_table(self.kernel, self.validation_X, self.view.X, self.view.map)
            self._cross = ((h, dtype), self._pairs.entries(self.kernel, h, dtype))
        predictions = dot(self._cross[1], alpha.astype(dtype)).astype(Y.dtype) + b
        return SplitFit(alpha, b, predictions, relative_ridge * float(np.mean(np.diagonal(K))))

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray:
        """Return the average gradient outer product of a fit, or its diagonal."""
        return self.view.agop(h, alpha, diagonal)

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """Return the derivatives of a fit along Lx at some of its training rows."""
        return self.view.slopes(h, alpha, rows)

    def forget(self) -> None:
        """Drop the cached K; the last fit is small and stays."""
        self._cross = self._pairs = None
        self.view.forget()

    _pairs: EntryTable | None = None
    _cross: tuple[tuple[float, np.dtype], np.ndarray] | None = None


class DeviceSplitFits(SplitFits):
    """Split fits on an accelerator.

    Gradients are computed by programs for `capacity` ≥ m training rows, so that several sizes share them.
    """

    def __init__(self, kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map, capacity: int = 0):
        self._latest = {}
        X, L = np.asarray(X, np.float64), np.asarray(L, np.float64)
        self.kernel, self.X, self.map, self.capacity = kernel, X[:m], L, max(m, capacity)
        self.default_bandwidth = metric_gram(kernel, X[evenly_spaced_rows(m, SAMPLE)], L).default_bandwidth
        with precision("float64"):
            self.training, self.validation, self.centers = jax.device_put(
                (X[:m], X[m:], pad_rows(X[:m], self.capacity))
            )

    def kernel_at(self, h: float) -> MappedKernel:
        """Return the kernel as a function of x at bandwidth h."""
        return mapped_kernel(self.kernel, self.map / h, self.X.shape[1])

    def _fit(self, h: float, relative_ridge: float, Y: np.ndarray, weights: np.ndarray | None) -> SplitFit | None:
        found = device_programs.fit(self.kernel_at(h), self.training, self.validation, Y, relative_ridge, weights)
        return SplitFit(*found) if np.isfinite(found[1]).all() else None

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray:
        """Return the average gradient outer product of a fit, or its diagonal."""
        some = self.X[evenly_spaced_rows(len(self.X), GRADIENTS)]
        found = device_programs.agop(self.kernel_at(h), some, self.centers, pad_rows(alpha, self.capacity))
        return np.diag(found).copy() if diagonal else found

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """Return the derivatives of a fit along Lx at some of its training rows."""
        return slopes(self.kernel, self.X, self.map, h, alpha, self.X[rows])

    def gradients(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Gradients:
        """Return the fit whose gradients along Lx at some of its training rows a program computes."""
        some = pad_rows(self.X[rows], min(self.capacity, ROTATION_ROWS))
        return Gradients(self.kernel_at(h), some, self.centers, pad_rows(alpha, self.capacity), h)

    def forget(self) -> None:
        """Do nothing: no matrix is cached."""


def slopes(
    kernel: Kernel, X: Float[Matrix, "n d"], L: Map, h: float, alpha: Float[np.ndarray, "n c"], Z: Float[Matrix, "p d"],
    dtype: str = "float64",
) -> Float[np.ndarray, "p c r"]:  # fmt: skip
    """Return ∂f_c/∂(Lx)_k at the rows of Z, for f(x) = Σ_i α_i k(Lx/h, Lx_i/h)."""
    if not devices.is_host():
        fit = Gradients(mapped_kernel(kernel, L / h, X.shape[1]), Z, X, alpha, h)
        return device_programs.slopes(fit, dtype)[:, :, -len(L) :]
    # pad to d coordinates if the kernel depends on their number
    full = L if isinstance(kernel, RadialKernel) else pad_map(L, X.shape[1])
    left, right = ((A * full if full.ndim == 1 else dot(A, full.T)) / h for A in (Z, X))
    left, right, a = (np.asarray(A, dtype) for A in (left, right, alpha))
    with precision(dtype):
        found = np.asarray(gradient(kernel, left, right, a), np.float64) / h
    return found[:, :, -len(L) :]


def split_fits(
    kernel: Kernel, X: Float[np.ndarray, "n d"], m: int, L: Map, capacity: int = 0
) -> HostSplitFits | DeviceSplitFits:
    """Return the split fits for the default device; for few rows those of the host, which compile nothing.

    `capacity` is the largest m whose fits share programs on an accelerator.
    """
    if devices.is_host() or m <= HOST_ROWS:
        return HostSplitFits(kernel, X, m, L)
    return DeviceSplitFits(kernel, X, m, L, capacity)


def exact_fit(
    kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"], float]:  # fmt: skip
    """Return α and b of the fit to all rows, and the ridge that was added to K."""
    if devices.is_host():
        K = lower(kernel, X, L, h)
        added = relative_ridge * float(np.mean(np.diagonal(K)))
        return *ridge_coefficients_in_place(K, Y, added, weights), added
    used = mapped_kernel(kernel, L / h, X.shape[1])
    alpha, b, ridge = device_programs.coefficients(used, X, Y, relative_ridge, weights)
    if not np.isfinite(b).all():
        raise ValueError(f"K + {ridge:.2g}·I is not positive definite to rounding: use a larger ridge")
    return alpha, b, ridge
