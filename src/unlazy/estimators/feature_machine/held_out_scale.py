"""How much smaller errors are after a fit to all rows than after one to the sample whose held-out residuals are known.

The search holds out rows of a sample (`base.SEARCH` of them), but the final fit has more rows. In the final metric both
leave-one-out errors have a closed form. Each is too small, since the metric has seen the labels, but their ratio is
that of the numbers of rows.
"""

from typing import TYPE_CHECKING

import numpy as np

from unlazy.core.threads import half_threaded_blas
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.products.metric_gram import cross
from unlazy.solvers.ridge import fit_ridge

if TYPE_CHECKING:
    from unlazy.estimators.feature_machine.base import FeatureMachine

SMALLEST = 0.1
"""Smallest ratio: more would mean that the metric, rather than the rows, explains the labels."""


def error_of_more_rows(machine: "FeatureMachine", part: TrainingData) -> np.ndarray | float:
    """Ratio of mean absolute leave-one-out errors at the rows `part`, for each output; one if it is not known."""
    X = machine.X_fit_
    if len(X) > constants.SINGLE_SPLIT_ROWS:  # the held-out rows of a split are predicted from most other rows
        return 1.0
    if machine.solver_ != "cholesky" or len(X) <= part.n or part.weights is not None or not machine.ridge_ > 0:
        return 1.0
    place = {row.tobytes(): i for i, row in enumerate(X)}
    rows = np.array([place.get(row.tobytes(), -1) for row in part.X.astype(X.dtype)])
    if rows.min() < 0:
        return 1.0
    order = np.concatenate([np.setdiff1d(np.arange(len(X)), rows), rows])  # the sample last
    X, alpha = X[order].astype(np.float64), machine.dual_coef_[order].astype(np.float64)
    K = np.asarray(cross(machine._base_, X, X, machine.map_, machine.bandwidth_), np.float64)
    Y = K @ alpha + machine.ridge_ * alpha + machine.intercept_  # the labels, as the fit solves this equation
    last, errors = slice(len(X) - part.n, None), []
    with half_threaded_blas():
        for some in (slice(None), last):
            fit = fit_ridge(K[some, some], Y[some], machine.relative_ridge_, last=part.n)
            if fit is None:
                return 1.0
            errors.append(np.abs(fit.held_out - Y[last]).mean(0))
    all_rows, sample = errors
    ratio = np.divide(all_rows, sample, out=np.ones_like(sample), where=sample > 0)
    return np.clip(ratio, SMALLEST, 1.0)
