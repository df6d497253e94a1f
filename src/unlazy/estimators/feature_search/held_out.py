"""One split instead of folds, for many rows: the first rows are learned from, the last ones judge.

Neither metric nor coefficients see a label of the rows that judge, at any size. The interface is that of `Folds`.
"""

import math
import threading
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import Judged, surely_worse
from unlazy.kernels.base import Kernel
from unlazy.solvers.ridge.intercept import unexplained
from unlazy.training.rfm.bandwidth_and_ridge import LARGE, SMALL, Place, descend
from unlazy.training.rfm.iteration import FIRST_RIDGE, Step, by_residuals, isotropic, narrowed, root, updated
from unlazy.training.rfm.split_fits import OnDevice, OnHost, split_fits

Seen = OnHost | OnDevice


class HeldOut:
    """Rows of which the first m are learned from and the others judge."""

    def __init__(self, learned: Training, judging: Training):
        self.learned, self.judging = learned, judging
        self.X = np.concatenate([learned.X, judging.X])
        self.others = [np.arange(len(learned.X))]
        """Rows whose labels the one metric may use."""
        self._mine = threading.local()

    def look(self) -> "HeldOut | None":
        """The rows on which candidates are looked at before they race; None on an accelerator, where all cost little
        more."""
        return self.fewer() if devices.is_host() else None

    def fewer(self) -> "HeldOut":
        """Some of the rows that are learned from, for a first look; all of those that judge."""
        some = slice(None, None, -(-len(self.learned.X) // thresholds.FIRST_LOOK_ROWS))
        return HeldOut(self.learned.rows(some), self.judging)

    def halved(self) -> "HeldOut":
        """Every other row of those that are learned from; all of those that judge."""
        return HeldOut(self.learned.rows(slice(None, None, 2)), self.judging)

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[Seen]:
        """The rows under the metric. What those before have kept is dropped: one K at a time in each thread."""
        latest: Seen | None = getattr(self._mine, "views", None)
        if latest is not None:
            latest.forget()
        self._mine.views = split_fits(kernel, self.X, len(self.learned.X), root(metrics[0]))
        return [self._mine.views]

    def updated(
        self, views: list[Seen], metrics: list[np.ndarray], step: Step, metric: str, rank: int | None
    ) -> list[np.ndarray]:
        """The next metric; the one before where the fit is not positive."""
        seen, (M,), data = views[0], metrics, self.learned
        if step.turn and (start := narrowed(M, step.turn, metric)) is not M:
            M, (seen,) = start, self.views(step.kernel, [start])
        h = step.relative_bandwidth * seen.usual
        found = seen.fit(h, step.relative_ridge, data.Y, data.weights)
        if found is None:
            return list(metrics)
        seen.forget()  # gradients come from distances: K is not asked for again
        if step.turn:
            return [by_residuals(seen, h, found.alpha, found.ridge, metric, M, data.X, data.weights)]
        return [updated(seen, h, found.alpha, metric, M, rank, step.power)]

    def judged(self, views: list[Seen], place: Place) -> Judged:
        """The fit at this bandwidth and ridge by its predictions of the rows that judge."""
        seen = views[0]
        found = seen.fit(place[0] * seen.usual, place[1], self.learned.Y, self.learned.weights)
        if found is None:
            return Judged(place, math.inf, np.full_like(self.judging.Y, np.nan))
        return Judged(place, self._error(found.judged), found.judged)

    def plain(
        self, kernel: Kernel, bandwidth: float | None, ridge: float | None, starts: Sequence[Place] = (),
        steps: tuple[Place, ...] = (),
    ) -> Judged:  # fmt: skip
        """The kernel without a metric, at the bandwidth and ridge of its smallest error: downhill by these steps from
        the best of the starts; where none are given by large factors on some of the rows first, which costs little and
        ends nearby."""
        move = {"ridge": ridge is None, "bandwidth": bandwidth is None}
        if not starts:
            few, steps = self.fewer(), (SMALL,)
            usual = (bandwidth or 1.0, FIRST_RIDGE if ridge is None else ridge)
            error = few.error_at(few.views(kernel, self.isotropic("diagonal")))
            starts = (descend(error, usual, steps=(LARGE,), **move)[0],)
        views = self.views(kernel, self.isotropic("diagonal"))
        error = self.error_at(views)
        start = min(starts, key=lambda place: error(*place)) if len(starts) > 1 else starts[0]
        return self.judged(views, descend(error, start, steps=steps, **move)[0])

    def error_at(self, views: list[Seen]) -> Callable[[float, float], float]:
        """The error as a function of bandwidth and ridge."""
        return lambda h, rho: self.judged(views, (h, rho)).error

    def isotropic(self, metric: str) -> list[np.ndarray]:
        """The metric before anything was learned."""
        return [isotropic(self.X.shape[1], metric, self.X.dtype)]

    def surely_worse(self, new: Judged, old: Judged, by: float = 1.0) -> bool:
        """Whether the judges can tell that the new one is worse: by more than so many standard errors of the difference
        of squared errors, row by row."""
        return surely_worse(new, old, self.judging, by)

    def _error(self, predicted: Float[np.ndarray, "r c"]) -> float:
        error = unexplained(predicted - self.judging.Y, self.judging.Y, self.judging.weights)
        return error if math.isfinite(error) else math.inf
