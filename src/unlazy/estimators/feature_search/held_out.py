"""Scores of candidates by predictions of held-out rows, on whose labels neither metric nor coefficients depend.

A metric depends on the labels it was learned from, so leave-one-out over coefficients alone is optimistic. `Folds`
learns for each fold the metric on the other rows, and predicts the rows of the fold with it by coefficients that never
saw them. `SingleSplit` does the same for many rows with one split: the first rows train, the last ones validate.
`MetricTrajectory` is one kernel and its metrics, update by update.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.threads import run_parallel
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.stage_checkpoints import checkpointable
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
    metric_power,
    metric_root,
    normalize_metric,
    prune_metric,
    truncate_metric,
)
from unlazy.training.rfm.split_fits import DeviceSplitFits, HostSplitFits, split_fits

Predictions = Float[np.ndarray, "n c"]
SplitView = HostSplitFits | DeviceSplitFits
"""Rows of a single split under one metric."""


@checkpointable
class KernelCandidate(NamedTuple):
    """A kernel of bandwidth one and the kind of metric it learns."""

    kernel: Kernel
    metric: str


@checkpointable
class ScoredCandidate(NamedTuple):
    """A fit, scored by predictions of rows that it never saw."""

    place: BandwidthAndRidge
    """Bandwidth and ridge, both relative."""
    error: float
    held_out: Float[np.ndarray, "n c"]


class MetricTrajectory:
    """Metrics of a candidate after 0, 1, 2, … updates, one for each fold, and their scores."""

    def __init__(self, candidate: KernelCandidate, plain: ScoredCandidate, metrics: list[np.ndarray]):
        self.candidate = candidate
        self.steps: list[RfmStep] = []
        """The fits whose gradients gave the metrics, including those of an earlier kernel."""
        self.scored, self.metrics = [plain], [metrics]
        self.inherited_updates = 0
        """Number of updates made with an earlier kernel."""
        self.power = 1.0
        """Power of the AGOP in the updates."""
        self.turn = 0.0
        """Share of the metric whose directions are rotated by residuals; 0 for updates by gradients."""
        self.views: tuple[int, list[Any]] | None = None
        """Number of updates, and the rows of the folds under their metrics after them; the latest ones are cached."""

    @property
    def errors(self) -> list[float]:
        """Errors after 0, 1, 2, … updates."""
        return [scored.error for scored in self.scored]

    @property
    def best(self) -> int:
        """Number of updates with the smallest error."""
        return int(np.argmin(self.errors))

    @property
    def best_error(self) -> float:
        """Smallest error."""
        return min(self.errors)

    @property
    def projected_error(self) -> float:
        """Error after one more update that helps as much as the last one."""
        before, now = min(self.errors[:-1]), self.errors[-1]
        return min(self.best_error, now * (now / before) if before > 0 else 0.0)

    def next_step(self) -> RfmStep:
        """The fit whose gradients give the next metric."""
        h, rho = self.scored[-1].place
        return RfmStep(self.candidate.kernel, h, min(rho, constants.MAX_LEARNING_RIDGE), self.power, turn=self.turn)

    def needs_patience(self, best: float) -> bool:
        """Return whether it explains nothing yet, and no other candidate explains much."""
        return self.errors[0] > constants.EXPLAINS_NOTHING and best > constants.EXPLAINS_MUCH

    def is_promising(self, best: float) -> bool:
        """Return whether the last update helped, and another one like it would come near the best."""
        errors = self.errors
        before, now = min(errors[:-1]), errors[-1]
        slow = constants.SLOW_PATIENCE if self.power != 1 else 0
        if len(errors) <= (constants.PATIENCE if self.needs_patience(best) else slow):
            return True
        return now < constants.WORTH_ANOTHER_UPDATE * before and self.projected_error < constants.WITHIN_REACH * best

    def rotate_directions(self, share: float) -> "MetricTrajectory":
        """Trajectory that continues from the best metrics by rotating their directions."""
        t = self.best
        other = MetricTrajectory(self.candidate, self.scored[t], self.metrics[t])
        other.steps, other.inherited_updates, other.power = (
            self.steps[: self.inherited_updates + t],
            self.inherited_updates + t,
            self.power,
        )
        other.turn = share
        return other

    def continue_with(
        self, kernel: Kernel, power: float = 1.0, floor: float = 0.0, update: int | None = None
    ) -> "MetricTrajectory":
        """Trajectory of a kernel that continues from the best metrics, or from those of another update.

        The metrics are raised to a power and pruned; the result is not scored yet.
        """
        t, kind = self.best if update is None else update, self.candidate.metric
        metrics = [M if power == 1 else normalize_metric(metric_power(M, power), kind) for M in self.metrics[t]]
        start = self.scored[t]._replace(error=math.inf)
        other = MetricTrajectory(KernelCandidate(kernel, kind), start, [prune_metric(M, floor) for M in metrics])
        other.steps, other.inherited_updates, other.power = (
            self.steps[: self.inherited_updates + t],
            self.inherited_updates + t,
            power,
        )
        if other.steps:
            other.steps[-1] = other.steps[-1]._replace(power=power * other.steps[-1].power, floor=floor)
        return other


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
    """Rows in folds. The part of a fold has all rows: first those whose labels its metric may use, then its own."""

    def __init__(self, data: TrainingData, fold: np.ndarray):
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
        some = slice(None, None, -(-n // constants.PILOT_ROWS))
        return None if n <= 1.5 * constants.PILOT_ROWS else Folds(self.data.rows(some), self.fold[some])

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

        def one(seen: MetricGram, M: np.ndarray, part: TrainingData, m: int) -> np.ndarray | None:
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

        def one(rows: np.ndarray, part: TrainingData, seen: MetricGram) -> Predictions | float:
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
