"""Fits to all rows of what a search has chosen: one, or several whose mean predicts.

Of few rows leave-one-out often cannot tell candidates apart: the difference of their squared errors, row by row, is
within two standard errors. Picking one of them is then a draw of lots, and their mean is better than most.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search.search import Selected
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import cross, view
from unlazy.solvers.ridge.intercept import coefficients, fit, unexplained
from unlazy.training.rfm.iteration import follow, isotropic, root


class Member(NamedTuple):
    """One fit f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h)."""

    kernel: Kernel
    metric: np.ndarray
    """M = LᵀL, or its diagonal."""
    map: np.ndarray
    bandwidth: float
    updates: int
    relative_ridge: float
    ridge: float
    dual_coef: Float[np.ndarray, "n c"]
    intercept: Float[np.ndarray, " c"]
    weight: float = 1.0
    """In the mean of all members; weights sum to one."""
    slopes: Float[np.ndarray, " d"] | None = None
    """Mean squared gradient of this very fit along every column: the diagonal of its AGOP."""


Learn = Callable[[Selected, Training], Member]
"""A fit to all rows."""


def learned(found: Selected, data: Training, rank: int | None, start: np.ndarray | None = None) -> Member:
    """The chosen trajectory and the last fit, on all rows."""
    kernel, metric = found.candidate
    M = isotropic(data.X.shape[1], metric) if start is None else start
    M = follow(found.steps, data.X, data.Y, metric, rank=rank, weights=data.weights, start=M)
    seen = view(kernel, data.X, root(M))
    h = found.final[0] * seen.usual
    K = seen.gram(h)
    ridge = found.final[1] * float(np.mean(np.diagonal(K)))
    alpha, b = coefficients(K, data.Y, found.final[1], data.weights)
    slopes = seen.agop(float(h), alpha, True)
    return Member(kernel, M, seen.map, float(h), found.updates, found.final[1], ridge, alpha, b, slopes=slopes)


def left_out(found: Selected, data: Training, learn: Learn) -> Float[np.ndarray, "n c"]:
    """Every row by the fit without it, in a metric that has seen its label."""
    fitted = learn(found, data)
    got = fit(cross(fitted.kernel, data.X, data.X, fitted.map, fitted.bandwidth), data.Y, found.final[1], data.weights)
    return data.Y.copy() if got is None else got.held_out


def mean_error(held_out: Float[np.ndarray, "n c"], data: Training) -> float:
    """Share of the variance that held-out predictions leave."""
    return float(unexplained(held_out - data.Y, data.Y, data.weights))
