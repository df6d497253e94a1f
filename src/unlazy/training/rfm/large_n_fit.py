"""Fits under a metric to any number of rows [D11, K2]: one factorization in float64 where it holds all of them, the
solvers of `solve` beyond; gradients by blocks (products.agop), never stored.

    f(x) = b + Σ_i α_i k(Lx/h, c_i),   [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0],   c_i = Lx_i/h.

Weights go inside the kernel: (√W K √W + ρI)β = √W y, α = √W β. Where all rows are centers one more column, y = 1, gives
the free intercept; where only some are, labels less their mean are fitted, which many rows make the same.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.memory import memory_budget
from unlazy.core.precision import precision, rounding
from unlazy.core.results import Evidence, Words
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.kernels.weighted import Weighted
from unlazy.products.agop import agop
from unlazy.products.metric_gram import Map, view
from unlazy.solvers.methods.base import Method
from unlazy.solvers.ridge.intercept import mean
from unlazy.solvers.selection import TIGHT
from unlazy.solvers.solve import solve
from unlazy.theory.dynamics.leave_one_out import with_intercept
from unlazy.theory.numerics.bandwidth import some_rows
from unlazy.training.rfm.split_fits import exact, filled

EXACT, EXACT_DEVICE = 8000, 60_000
"""Rows up to which a fit is one factorization, if it fits the memory budget: some seconds, on a card two."""
COPIES, COPIES_DEVICE = 1.25, 3.5
"""Matrices of all pairs alive at once then; on the host K and its strips."""
SAMPLE = 500
"""Rows whose distances give the usual bandwidth."""


class Means(NamedTuple):
    """What a fit may use."""

    method: str | Method | None = None
    """Of `solve`; None: one factorization as long as it holds all rows, then what `solve` chooses."""
    tolerance: float = 1e-3
    memory: int | str | None = None
    gradients: int = 5000
    """Rows over which gradients are averaged, evenly spread."""
    key: PRNGKeyArray | None = None

    @property
    def exact(self) -> int:
        """Rows up to which a fit is one factorization."""
        if self.method is not None:
            return 0
        most, copies = (EXACT, COPIES) if devices.is_host() else (EXACT_DEVICE, COPIES_DEVICE)
        return int(min(most, np.sqrt(memory_budget(self.memory) / (8 * copies))))


class Found(NamedTuple):
    """A fit, and how it was found."""

    alpha: Float[np.ndarray, "m c"]
    intercept: Float[np.ndarray, " c"]
    centers: Float[np.ndarray, "m d"] | None
    """None: all rows."""
    dtype: np.dtype
    """The precision it was found in."""
    evidence: Evidence


class AnySize:
    """Rows under one metric."""

    def __init__(
        self, kernel: Kernel, X: Float[np.ndarray, "n d"], L: Map, weights: Float[np.ndarray, " n"] | None, means: Means
    ):
        self.kernel, self.X, self.map, self.weights, self.means = kernel, X, L, weights, means
        self.usual = view(kernel, X[some_rows(len(X), SAMPLE)], L).usual
        """A first bandwidth."""

    def at(self, h: float, dtype: Any = np.float64) -> Kernel:
        """The kernel of x itself."""
        return mapped(self.kernel, (filled(self.map, self.X.shape[1]) / h).astype(dtype))

    def fit(self, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"]) -> Found:
        """The fit at this bandwidth and ridge."""
        n, most = len(self.X), self.means.exact
        if n > most:
            return self._solved(h, relative_ridge, Y)
        alpha, b, ridge = exact(self.kernel, self.X, self.map, h, relative_ridge, Y, self.weights)
        words = Words(method="factorization", why=f"n = {n} is at most {most}: one factorization in float64 is exact")
        evidence = Evidence(n * rounding(np.float64), self.means.tolerance, ridge, bytes=8 * n * n, words=words)
        return Found(alpha, b, None, np.dtype("float64"), evidence)

    def _solved(self, h: float, relative_ridge: float, Y: Float[np.ndarray, "n c"]) -> Found:
        means, w = self.means, self.weights
        tight = "float64" if means.tolerance < TIGHT else None
        # a map of float32's numbers serves both precisions, of which `solve` takes one
        with precision(tight or "float32"):
            kernel = self.at(h, tight or "float32")
            ridge = relative_ridge * float(jnp.mean(kernel.diag(self.X)))
        center = mean(Y, w)
        columns = np.concatenate([Y - center, np.ones((len(Y), 1))], 1)
        X: np.ndarray = self.X
        if w is not None:
            scale = np.sqrt(w)[:, None]
            kernel, X, columns = Weighted(kernel), np.hstack([X, scale]), columns * scale
        solution = solve(
            kernel, X, columns, ridge, method=means.method, tolerance=means.tolerance, precision=tight,
            memory=means.memory, progress=False, key=means.key,
        )  # fmt: skip
        centers, alpha = np.asarray(solution.centers, np.float64), np.asarray(solution.coefficients, np.float64)
        if w is not None:
            alpha = alpha * centers[:, -1:]
        if len(alpha) < len(Y):  # some rows are centers: their sums say nothing of the intercept
            kept = centers if w is None else centers[:, :-1]
            return Found(alpha[:, :-1], center, kept, solution.coefficients.dtype, solution.evidence)
        alpha, shift = with_intercept(alpha[:, :-1], alpha[:, -1])
        return Found(alpha, center + shift, None, solution.coefficients.dtype, solution.evidence)

    def agop(self, h: float, found: Found, diagonal: bool) -> np.ndarray:
        """The average gradient outer product of a fit, rows by weight, or its diagonal."""
        part = some_rows(len(self.X), self.means.gradients)
        w = None if self.weights is None else self.weights[part]
        centers = self.X if found.centers is None else found.centers
        with precision(found.dtype.name):
            rows, Z, alpha = (jnp.asarray(a, found.dtype) for a in (self.X[part], centers, found.alpha))
            M = agop(self.at(h, found.dtype), rows, Z, alpha, self.means.memory, w)
            total = np.asarray(M, np.float64)
        return np.diag(total).copy() if diagonal else total
