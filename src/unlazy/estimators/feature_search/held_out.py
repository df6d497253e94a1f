"""A single split instead of folds, for many rows: the first rows train, the last ones validate.

Neither metric nor coefficients depend on the labels of validation rows, at any size. The interface is that of `Folds`.
"""

import math
import threading
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import ScoredCandidate, significantly_worse
from unlazy.kernels.base import Kernel
from unlazy.solvers.ridge.intercept import unexplained_variance
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
from unlazy.training.rfm.split_fits import DeviceSplitFits, HostSplitFits, split_fits

SplitView = HostSplitFits | DeviceSplitFits
"""Rows under one metric."""


class SingleSplit:
    """Rows of which the first m train and the others validate."""

    def __init__(self, training: Training, validation: Training):
        self.training, self.validation = training, validation
        self.X = np.concatenate([training.X, validation.X])
        self.training_rows = [np.arange(len(training.X))]
        """Rows whose labels the one metric may use."""
        self._thread_local = threading.local()

    def pilot(self) -> "SingleSplit | None":
        """Sample of rows on which candidates are tried first; None on an accelerator, where all rows are cheap."""
        return self.subsample() if devices.is_host() else None

    def subsample(self) -> "SingleSplit":
        """A sample of the training rows with all validation rows."""
        some = slice(None, None, -(-len(self.training.X) // thresholds.PILOT_ROWS))
        return SingleSplit(self.training.rows(some), self.validation)

    def half_split(self) -> "SingleSplit":
        """Every other training row with all validation rows."""
        return SingleSplit(self.training.rows(slice(None, None, 2)), self.validation)

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[SplitView]:
        """Rows under the metric. Earlier views of this thread drop their caches, so that each thread holds one K."""
        latest: SplitView | None = getattr(self._thread_local, "views", None)
        if latest is not None:
            latest.forget()
        self._thread_local.views = split_fits(kernel, self.X, len(self.training.X), metric_root(metrics[0]))
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
