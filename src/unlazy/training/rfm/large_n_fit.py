"""Kernel fits under a metric for any number of rows [D11, K2].

One factorization in float64 if it fits in memory, otherwise the solvers of `solve`; gradients are computed in blocks
(products.agop) and never stored.

    f(x) = b + Σ_i α_i k(Lx/h, c_i),   [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0],   c_i = Lx_i/h.

Weights are moved into the kernel: (√W K √W + ρI)β = √W y, α = √W β. If all rows are centers, one more column, y = 1,
gives the free intercept; if only some are, labels minus their mean are fitted, which is equivalent for many rows.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.arrays import precision, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.kernels.row_weights import Weighted
from unlazy.products.agop import agop
from unlazy.products.metric_gram import Map, metric_gram
from unlazy.solvers.method_selection import FLOAT32_MIN_TOLERANCE
from unlazy.solvers.ridge import weighted_mean
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.dynamics.leave_one_out import with_intercept
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.options import RFMOptions
from unlazy.training.rfm import device_programs
from unlazy.training.rfm.device_programs import pad_map
from unlazy.training.rfm.split_fits import exact_fit

EXACT, EXACT_DEVICE = 8000, 60_000
"""Largest number of rows fitted by one factorization, if memory allows: some seconds, two on a GPU."""
COPIES = 1.25
"""Number of n × n matrices alive at once during the factorization on the host: K and its strips."""
SAMPLE = 500
"""Number of rows whose distances give the default bandwidth."""


class KernelFit(NamedTuple):
    """A fit and its evidence."""

    alpha: Float[np.ndarray, "m c"]
    intercept: Float[np.ndarray, " c"]
    centers: Float[np.ndarray, "m d"] | None
    """None: all rows."""
    dtype: np.dtype
    """Precision of the fit."""
    evidence: Evidence


class KernelFitter:
    """Fits of a kernel under one metric."""

    def __init__(
        self,
        kernel: Kernel,
        X: Float[np.ndarray, "n d"],
        L: Map,
        weights: Float[np.ndarray, " n"] | None,
        options: RFMOptions,
        key: PRNGKeyArray | None,
    ):
        self.kernel, self.X, self.map, self.weights, self.options, self.key = kernel, X, L, weights, options, key
        self.default_bandwidth = metric_gram(kernel, X[evenly_spaced_rows(len(X), SAMPLE)], L).default_bandwidth
        """Default bandwidth under this metric."""

    def kernel_at(self, h: float, dtype: DTypeLike = np.float64) -> Kernel:
        """Return the kernel as a function of x at bandwidth h."""
        return apply_metric(self.kernel, (pad_map(self.map, self.X.shape[1]) / h).astype(dtype))

    @property
    def exact_limit(self) -> int:
        """Largest number of rows fitted by one factorization."""
        if self.options.method is not None:
            return 0
        most, copies = (EXACT, COPIES) if devices.is_host() else (EXACT_DEVICE, device_programs.COPIES)
        return int(min(most, np.sqrt(memory_budget(self.options.memory) / (8 * copies))))

    def fit(self, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"]) -> KernelFit:
        """Fit the labels at a bandwidth and a ridge."""
        n, most = len(self.X), self.exact_limit
        if n > most:
            return self._solve(h, relative_ridge, Y)
        alpha, b, ridge = exact_fit(self.kernel, self.X, self.map, h, relative_ridge, Y, self.weights)
        words = FitDescription(
            method="factorization", why=f"n = {n} is at most {most}: one factorization in float64 is exact"
        )
        evidence = Evidence(
            n * unit_roundoff(np.float64), self.options.tolerance, ridge, bytes=8 * n * n, description=words
        )
        return KernelFit(alpha, b, None, np.dtype("float64"), evidence)

    def _solve(self, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"]) -> KernelFit:
        """Fit by an iterative method of `solve`."""
        options, w = self.options, self.weights
        tight = "float64" if options.tolerance < FLOAT32_MIN_TOLERANCE else None
        # a float32 map serves both precisions that `solve` may choose
        with precision(tight or "float32"):
            kernel = self.kernel_at(h, tight or "float32")
            ridge = relative_ridge * float(jnp.mean(kernel.diag(self.X)))
        center = weighted_mean(Y, w)
        columns = np.concatenate([Y - center, np.ones((len(Y), 1))], 1)
        X: np.ndarray = self.X
        if w is not None:
            scale = np.sqrt(w)[:, None]
            kernel, X, columns = Weighted(kernel), np.hstack([X, scale]), columns * scale
        solution = solve(
            kernel,
            X,
            columns,
            ridge,
            method=options.method,
            tolerance=options.tolerance,
            options=SolveOptions(precision=tight, memory=options.memory),
            progress=False,
            key=self.key,
        )
        centers, alpha = np.asarray(solution.centers, np.float64), np.asarray(solution.coefficients, np.float64)
        if w is not None:
            alpha = alpha * centers[:, -1:]
        if len(alpha) < len(Y):  # only some rows are centers: they do not determine the intercept
            kept = centers if w is None else centers[:, :-1]
            return KernelFit(alpha[:, :-1], center, kept, solution.coefficients.dtype, solution.evidence)
        alpha, shift = with_intercept(alpha[:, :-1], alpha[:, -1])
        return KernelFit(alpha, center + shift, None, solution.coefficients.dtype, solution.evidence)

    def agop(self, h: float, found: KernelFit, diagonal: bool) -> np.ndarray:
        """Return the weighted average gradient outer product of a fit, or its diagonal."""
        part = evenly_spaced_rows(len(self.X), self.options.gradients)
        w = None if self.weights is None else self.weights[part]
        centers = self.X if found.centers is None else found.centers
        with precision(found.dtype.name):
            rows, Z, alpha = (jnp.asarray(a, found.dtype) for a in (self.X[part], centers, found.alpha))
            M = agop(self.kernel_at(h, found.dtype), rows, Z, alpha, self.options.memory, w)
            total = np.asarray(M, np.float64)
        return np.diag(total).copy() if diagonal else total
