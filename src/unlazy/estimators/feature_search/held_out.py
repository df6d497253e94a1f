"""Scores of candidates by predictions of held-out rows, on whose labels neither metric nor coefficients depend.

A metric depends on the labels it was learned from, so leave-one-out over coefficients alone is optimistic. `Folds`
learns for each fold the metric on the other rows, and predicts the rows of the fold with it by coefficients that never
saw them: those of leave-one-out over all rows, or those of the other rows, an eighth of the work for two folds, by
which metrics are compared first if there are many rows. `SingleSplit` does the same for many rows with one split: the
first rows train, the last ones validate.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.threads import run_parallel
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.trajectory import ScoredCandidate
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import MetricGram, metric_gram
from unlazy.solvers.ridge import (
    COARSE_STEP,
    FINE_STEP,
    BandwidthAndRidge,
    coordinate_search,
    evaluation_dtype,
    fit_ridge,
    ridge_coefficients,
    unexplained_variance,
)
from unlazy.training.rfm.iteration import (
    FIRST_RIDGE,
    RfmStep,
    isotropic_metric,
    metric_from_gradients,
    metric_from_residuals,
    metric_root,
    truncate_metric,
)
from unlazy.training.rfm.split_fits import DeviceSplitFits, HostSplitFits, split_fits

Predictions = Float[np.ndarray, "n c"]
SplitView = HostSplitFits | DeviceSplitFits
"""Rows of a single split under one metric."""
FoldView = MetricGram | HostSplitFits
"""Rows of a fold under its metric."""


def significantly_worse(new: ScoredCandidate, old: ScoredCandidate, validation: TrainingData, by: float = 1.0) -> bool:
    """Return whether the new fit is worse by more than `by` standard errors, or not finite."""
    return not standardized_difference(new.held_out, old.held_out, validation) <= by


def standardized_difference(
    new: Float[np.ndarray, "r c"], old: Float[np.ndarray, "r c"], validation: TrainingData
) -> float:
    """Number of standard errors by which the new predictions are worse.

    The standard error is that of the mean difference of squared errors over rows.
    """
    more = np.sum((new - validation.Y) ** 2 - (old - validation.Y) ** 2, 1)
    w = np.ones(len(more)) if validation.weights is None else validation.weights
    mean = float(w @ more / w.sum())
    error = float(np.sqrt(w**2 @ (more - mean) ** 2) / w.sum())
    if not (math.isfinite(mean) and math.isfinite(error)):
        return math.inf
    return mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0


class Folds:
    """Rows in folds. The part of a fold has all rows: first those whose labels its metric may use, then its own.

    The coefficients that predict a fold come from all rows by leave-one-out, or from the other folds alone.
    """

    def __init__(self, data: TrainingData, fold: np.ndarray, leave_one_out: bool = True):
        self.data, self.fold, self.leave_one_out = data, fold, leave_one_out
        self.rows = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
        self.training_rows = [np.flatnonzero(fold != k) for k in range(len(self.rows))]
        self.parts = [data.rows(np.concatenate([first, last])) for first, last in zip(self.training_rows, self.rows)]

    def pilot(self) -> "Folds | None":
        """Sample of rows on which candidates are tried before the search; None if there are few rows."""
        return self.subsample()

    def subsample(self) -> "Folds | None":
        """Sample of rows in the same folds; None if there are few rows."""
        n = len(self.data.X)
        some = slice(None, None, -(-n // constants.PILOT_ROWS))
        return None if n <= 1.5 * constants.PILOT_ROWS else Folds(self.data.rows(some), self.fold[some])

    @functools.cached_property
    def final(self) -> "Folds":
        """The same folds by leave-one-out, as the final bandwidth and ridge are chosen."""
        return self if self.leave_one_out else Folds(self.data, self.fold)

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[FoldView]:
        """Rows of each fold under its metric."""
        each = zip(self.parts, metrics, self.training_rows)
        return run_parallel([functools.partial(self._view, kernel, part.X, M, len(rest)) for part, M, rest in each])

    def _view(self, kernel: Kernel, X: np.ndarray, M: np.ndarray, m: int) -> FoldView:
        L = metric_root(M)
        return metric_gram(kernel, X, L) if self.leave_one_out else HostSplitFits(kernel, X, m, L)

    def update_metrics(
        self, views: list[FoldView], metrics: list[np.ndarray], step: RfmStep, metric: str, rank: int | None
    ) -> list[np.ndarray]:
        """Update each metric without the labels of its fold; return all unchanged if a fit is not positive definite."""

        def one(seen: FoldView, M: np.ndarray, part: TrainingData, m: int) -> np.ndarray | None:
            if step.turn and (start := truncate_metric(M, step.turn, metric)) is not M:
                M, seen = start, self._view(step.kernel, part.X, start, m)
            h = step.relative_bandwidth * seen.default_bandwidth
            found = _fit_first(seen, h, step.relative_ridge, part.rows(slice(m)))
            if found is None:
                return None
            alpha, ridge = found
            if step.turn:
                w = None if part.weights is None else part.weights[:m]
                return metric_from_residuals(seen, h, alpha, ridge, metric, M, part.X[:m], w)
            return metric_from_gradients(seen, h, alpha, metric, M, rank, step.power)

        sizes = [len(others) for others in self.training_rows]
        found = run_parallel([functools.partial(one, *each) for each in zip(views, metrics, self.parts, sizes)])
        return list(metrics) if any(M is None for M in found) else found  # type: ignore[return-value]

    def score(self, views: list[FoldView], place: BandwidthAndRidge) -> ScoredCandidate:
        """Score the fit at this bandwidth and ridge by its held-out predictions."""

        def one(rows: np.ndarray, part: TrainingData, seen: FoldView) -> Predictions | float:
            h = place[0] * seen.default_bandwidth
            if isinstance(seen, HostSplitFits):
                others = part.rows(slice(len(part.X) - len(rows)))
                fit = seen.fit(h, place[1], others.Y, others.weights)
                return math.nan if fit is None else fit.predictions
            K = seen.gram(h, dtype=evaluation_dtype(len(part.X), place[1], part.weights))
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
        """Score the kernel without a metric; by leave-one-out one fit serves all folds.

        A bandwidth or ridge that is None is tuned by these steps from the best of the starts.
        """
        found: dict[BandwidthAndRidge, ScoredCandidate] = {}
        if self.leave_one_out:
            (M, *_), X = self.isotropic_metrics("diagonal"), self.data.X
            score = functools.partial(self._leave_one_out, metric_gram(kernel, X, metric_root(M)))
        else:
            score = functools.partial(self.score, self.views(kernel, self.isotropic_metrics("diagonal")))

        def error(h: float, rho: float) -> float:
            found[h, rho] = score((h, rho))
            return found[h, rho].error

        starts = starts or ((bandwidth or 1.0, FIRST_RIDGE if ridge is None else ridge),)
        start = min(starts, key=lambda place: error(*place))
        worth = constants.FINAL_TUNING_GAIN if self.leave_one_out else constants.TUNING_GAIN  # else it is tuned again
        place, _ = coordinate_search(
            error, start, ridge=ridge is None, bandwidth=bandwidth is None, steps=steps, worth=worth,
            at_start=found[start].error,
        )  # fmt: skip
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


def _fit_first(
    seen: FoldView, h: float, relative_ridge: float, others: TrainingData
) -> tuple[Float[np.ndarray, "m c"], float] | None:
    """Coefficients of the fit to the first rows, and its ridge; None if it is not positive definite."""
    if isinstance(seen, HostSplitFits):
        fit = seen.fit(h, relative_ridge, others.Y, others.weights)
        return None if fit is None else (fit.alpha, fit.ridge)
    try:
        K = seen.gram(h, len(others.Y))
        alpha, _ = ridge_coefficients(K, others.Y, relative_ridge, others.weights)
    except ValueError:
        return None
    return alpha, relative_ridge * float(np.mean(np.diagonal(K)))


class SingleSplit:
    """Rows of which the first m train and the others validate.

    On an accelerator splits of at most `capacity` training rows share programs.
    """

    def __init__(self, training: TrainingData, validation: TrainingData, capacity: int = 0):
        self.training, self.validation, self.capacity = training, validation, capacity
        self.X = np.concatenate([training.X, validation.X])
        self.training_rows = [np.arange(len(training.X))]
        """Rows whose labels the one metric may use."""
        self._thread_local = threading.local()

    def pilot(self) -> "SingleSplit | None":
        """Sample of rows on which candidates are tried first; None on an accelerator, where all rows are cheap."""
        return self.subsample() if devices.is_host() else None

    @property
    def final(self) -> "SingleSplit":
        """The same split: final bandwidths and ridges are chosen as all others are."""
        return self

    def subsample(self, rows: slice | None = None) -> "SingleSplit":
        """Some training rows with all validation rows; by default as many as a pilot sample has."""
        some = slice(None, None, -(-len(self.training.X) // constants.PILOT_ROWS)) if rows is None else rows
        return SingleSplit(self.training.rows(some), self.validation, self.capacity)

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[SplitView]:
        """Rows under the metric. Earlier views of this thread drop their caches, so that each thread holds one K."""
        latest: SplitView | None = getattr(self._thread_local, "views", None)
        if latest is not None:
            latest.forget()
        self._thread_local.views = split_fits(
            kernel, self.X, len(self.training.X), metric_root(metrics[0]), self.capacity
        )
        return [self._thread_local.views]

    def update_metrics(
        self, views: list[SplitView], metrics: list[np.ndarray], step: RfmStep, metric: str, rank: int | None
    ) -> list[np.ndarray]:
        """Update the metric; return it unchanged if the fit is not positive definite."""
        seen, (M,), data = views[0], metrics, self.training
        if step.turn and (start := truncate_metric(M, step.turn, metric)) is not M:
            M, (seen,) = start, self.views(step.kernel, [start])
        h = step.relative_bandwidth * seen.default_bandwidth
        found = seen.fit(h, step.relative_ridge, data.Y, data.weights)
        if found is None:
            return list(metrics)
        seen.forget()  # gradients only need distances, so K can be freed
        if step.turn:
            return [metric_from_residuals(seen, h, found.alpha, found.ridge, metric, M, data.X, data.weights)]
        return [metric_from_gradients(seen, h, found.alpha, metric, M, rank, step.power)]

    def score(self, views: list[SplitView], place: BandwidthAndRidge) -> ScoredCandidate:
        """Score the fit at this bandwidth and ridge on the validation rows."""
        seen = views[0]
        found = seen.fit(place[0] * seen.default_bandwidth, place[1], self.training.Y, self.training.weights)
        if found is None:
            return ScoredCandidate(place, math.inf, np.full_like(self.validation.Y, np.nan))
        return ScoredCandidate(place, self._error(found.predictions), found.predictions)

    def score_plain_kernel(
        self, kernel: Kernel, bandwidth: float | None, ridge: float | None, starts: Sequence[BandwidthAndRidge] = (),
        steps: tuple[BandwidthAndRidge, ...] = (),
    ) -> ScoredCandidate:  # fmt: skip
        """Score the kernel without a metric, at its best bandwidth and ridge.

        They are tuned by these steps from the best of the starts; without starts first by coarse steps on a subsample,
        which is cheap and ends nearby.
        """
        move = {"ridge": ridge is None, "bandwidth": bandwidth is None}
        if not starts:
            few, steps = self.subsample(), (FINE_STEP,)
            usual = (bandwidth or 1.0, FIRST_RIDGE if ridge is None else ridge)
            error = few.error_at(few.views(kernel, self.isotropic_metrics("diagonal")))
            starts = (coordinate_search(error, usual, steps=(COARSE_STEP,), **move)[0],)
        views = self.views(kernel, self.isotropic_metrics("diagonal"))
        error = self.error_at(views)
        start = min(starts, key=lambda place: error(*place)) if len(starts) > 1 else starts[0]
        return self.score(views, coordinate_search(error, start, steps=steps, **move)[0])

    def error_at(self, views: list[SplitView]) -> Callable[[float, float], float]:
        """Return the error as a function of bandwidth and ridge."""
        return lambda h, rho: self.score(views, (h, rho)).error

    def isotropic_metrics(self, metric: str) -> list[np.ndarray]:
        """Initial metric."""
        return [isotropic_metric(self.X.shape[1], metric, self.X.dtype)]

    def significantly_worse(self, new: ScoredCandidate, old: ScoredCandidate, by: float = 1.0) -> bool:
        """Return whether the new fit is worse by more than `by` standard errors on the validation rows."""
        return significantly_worse(new, old, self.validation, by)

    def _error(self, predicted: Float[np.ndarray, "r c"]) -> float:
        """Share of the variance of the validation rows that is not explained."""
        error = unexplained_variance(predicted - self.validation.Y, self.validation.Y, self.validation.weights)
        return error if math.isfinite(error) else math.inf
