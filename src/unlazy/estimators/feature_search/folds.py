"""Held-out predictions by cross-validation, in which neither metric nor coefficients depend on the held-out labels.

A metric depends on the labels it was learned from, so leave-one-out over coefficients alone is optimistic. For each
fold the metric is learned on the other rows, and the rows of the fold are predicted with it by coefficients that never
saw them.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from unlazy.core.threads import run_parallel
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import ScoredCandidate, significantly_worse
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import MetricGram, metric_gram
from unlazy.solvers.ridge.factorization import evaluation_dtype
from unlazy.solvers.ridge.intercept import fit_ridge, ridge_coefficients, unexplained_variance
from unlazy.training.rfm.bandwidth_and_ridge import COARSE_STEP, FINE_STEP, BandwidthAndRidge, coordinate_search
from unlazy.training.rfm.iteration import (
    FIRST_RIDGE,
    RfmStep,
    isotropic_metric,
    metric_from_gradients,
    metric_from_residuals,
    metric_root,
    truncate_metric,
)

Predictions = Float[np.ndarray, "n c"]


class Folds:
    """Rows in folds. The part of a fold has all rows: first those whose labels its metric may use, then its own."""

    def __init__(self, data: Training, fold: np.ndarray):
        self.data, self.fold = data, fold
        self.rows = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
        self.training_rows = [np.flatnonzero(fold != k) for k in range(len(self.rows))]
        self.parts = [data.rows(np.concatenate([first, last])) for first, last in zip(self.training_rows, self.rows)]

    def pilot(self) -> "Folds | None":
        """Sample of rows on which candidates are tried before the search; None if there are few rows."""
        return self.subsample()

    def subsample(self) -> "Folds | None":
        """Sample of rows in the same folds; None if there are few rows."""
        n = len(self.data.X)
        some = slice(None, None, -(-n // thresholds.PILOT_ROWS))
        return None if n <= 1.5 * thresholds.PILOT_ROWS else Folds(self.data.rows(some), self.fold[some])

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[MetricGram]:
        """Rows of each fold under its metric."""
        return run_parallel([functools.partial(self._view, kernel, part.X, M) for part, M in zip(self.parts, metrics)])

    @staticmethod
    def _view(kernel: Kernel, X: np.ndarray, M: np.ndarray) -> MetricGram:
        return metric_gram(kernel, X, metric_root(M))

    def update_metrics(
        self, views: list[MetricGram], metrics: list[np.ndarray], step: RfmStep, metric: str, rank: int | None
    ) -> list[np.ndarray]:
        """Update each metric without the labels of its fold; return all unchanged if a fit is not positive definite."""

        def one(seen: MetricGram, M: np.ndarray, part: Training, m: int) -> np.ndarray | None:
            if step.turn and (start := truncate_metric(M, step.turn, metric)) is not M:
                M, seen = start, self._view(step.kernel, part.X, start)
            h = step.relative_bandwidth * seen.default_bandwidth
            w = None if part.weights is None else part.weights[:m]
            try:
                K = seen.gram(h, m)
                alpha, _ = ridge_coefficients(K, part.Y[:m], step.relative_ridge, w)
            except ValueError:
                return None
            if step.turn:
                ridge = step.relative_ridge * float(np.mean(np.diagonal(K)))
                return metric_from_residuals(seen, h, alpha, ridge, metric, M, part.X[:m], w)
            return metric_from_gradients(seen, h, alpha, metric, M, rank, step.power)

        sizes = [len(others) for others in self.training_rows]
        found = run_parallel([functools.partial(one, *each) for each in zip(views, metrics, self.parts, sizes)])
        return list(metrics) if any(M is None for M in found) else found  # type: ignore[return-value]

    def score(self, views: list[MetricGram], place: BandwidthAndRidge) -> ScoredCandidate:
        """Score the fit at this bandwidth and ridge by its held-out predictions."""

        def one(rows: np.ndarray, part: Training, seen: MetricGram) -> Predictions | float:
            K = seen.gram(
                place[0] * seen.default_bandwidth, dtype=evaluation_dtype(len(part.X), place[1], part.weights)
            )
            got = fit_ridge(K, part.Y, place[1], part.weights, len(rows))
            return math.nan if got is None else got.held_out

        found = np.empty_like(self.data.Y)
        each = list(zip(self.rows, self.parts, views))
        for rows, held_out in zip(self.rows, run_parallel([functools.partial(one, *fold) for fold in each])):
            found[rows] = held_out
        error = unexplained_variance(found - self.data.Y, self.data.Y, self.data.weights)
        return ScoredCandidate(place, error if math.isfinite(error) else math.inf, found)

    def score_plain_kernel(
        self, kernel: Kernel, bandwidth: float | None, ridge: float | None, starts: Sequence[BandwidthAndRidge] = (),
        steps: tuple[BandwidthAndRidge, ...] = (COARSE_STEP, FINE_STEP),
    ) -> ScoredCandidate:  # fmt: skip
        """Score the kernel without a metric by leave-one-out: only the coefficients depend on labels.

        A bandwidth or ridge that is None is tuned by these steps from the best of the starts.
        """
        X, found = self.data.X, {}
        seen = self._view(kernel, X, isotropic_metric(X.shape[1], "diagonal", X.dtype))

        def error(h: float, rho: float) -> float:
            found[h, rho] = self._leave_one_out(seen, (h, rho))
            return found[h, rho].error

        starts = starts or ((bandwidth or 1.0, FIRST_RIDGE if ridge is None else ridge),)
        start = min(starts, key=lambda place: error(*place))
        place, _ = coordinate_search(
            error, start, ridge=ridge is None, bandwidth=bandwidth is None, steps=steps, at_start=found[start].error
        )
        return found[place]

    def _leave_one_out(self, seen: MetricGram, place: BandwidthAndRidge) -> ScoredCandidate:
        """Score leave-one-out predictions under a metric that does not depend on labels."""
        data = self.data
        K = seen.gram(place[0] * seen.default_bandwidth, dtype=evaluation_dtype(len(data.X), place[1], data.weights))
        got = fit_ridge(K, data.Y, place[1], data.weights)
        if got is None:
            return ScoredCandidate(place, math.inf, np.full_like(data.Y, np.nan))
        return ScoredCandidate(place, got.error, got.held_out)

    def significantly_worse(self, new: ScoredCandidate, old: ScoredCandidate, by: float = 1.0) -> bool:
        """Return whether the new fit is worse by more than `by` standard errors on held-out rows."""
        return significantly_worse(new, old, self.data, by)

    def isotropic_metrics(self, metric: str) -> list[np.ndarray]:
        """Initial metric of each fold."""
        X = self.data.X
        return [isotropic_metric(X.shape[1], metric, X.dtype)] * len(self.rows)
