"""Fits of what the search selected: the metric is learned by the chosen steps, then the coefficients are computed."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.search import Selected
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import cross, metric_gram
from unlazy.solvers.ridge import fit_ridge, ridge_coefficients, unexplained_variance
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.rfm.iteration import apply_steps, isotropic_metric, metric_root


class EnsembleMember(NamedTuple):
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
    """Weight in the mean of all members; weights sum to one."""
    slopes: Float[np.ndarray, " d"] | None = None
    """Mean squared gradient of this fit along each column: the diagonal of its AGOP."""


FitFunction = Callable[[Selected, TrainingData], EnsembleMember]
"""Fits a selection to all rows."""


def fit_member(
    found: Selected, data: TrainingData, rank: int | None, start: np.ndarray | None = None
) -> EnsembleMember:
    """Learn the metric of the chosen trajectory on all rows and fit it.

    If little is left unexplained, a sample of the rows suffices for all but the last steps of the metric.
    """
    kernel, metric = found.candidate
    M = isotropic_metric(data.X.shape[1], metric) if start is None else start
    easy = found.error <= constants.EARLY_STEP_ERROR
    some = data.rows(evenly_spaced_rows(len(data.X), constants.EARLY_STEP_ROWS)) if easy else data
    for part, steps in ((some, found.steps[: -constants.LAST_STEPS]), (data, found.steps[-constants.LAST_STEPS :])):
        M = apply_steps(steps, part.X, part.Y, metric, rank=rank, weights=part.weights, start=M)
    seen = metric_gram(kernel, data.X, metric_root(M))
    h = found.final[0] * seen.default_bandwidth
    K = seen.gram(h)
    ridge = found.final[1] * float(np.mean(np.diagonal(K)))
    alpha, b = ridge_coefficients(K, data.Y, found.final[1], data.weights)
    slopes = seen.agop(float(h), alpha, True)
    return EnsembleMember(kernel, M, seen.map, float(h), found.updates, found.final[1], ridge, alpha, b, slopes=slopes)


def leave_one_out_predictions(found: Selected, data: TrainingData, learn: FitFunction) -> Float[np.ndarray, "n c"]:
    """Leave-one-out predictions of all rows, under a metric that depends on all labels."""
    fitted = learn(found, data)
    got = fit_ridge(
        cross(fitted.kernel, data.X, data.X, fitted.map, fitted.bandwidth), data.Y, found.final[1], data.weights
    )
    return data.Y.copy() if got is None else got.held_out


def unexplained_share(held_out: Float[np.ndarray, "n c"], data: TrainingData) -> float:
    """Share of the variance that held-out predictions do not explain."""
    return float(unexplained_variance(held_out - data.Y, data.Y, data.weights))
