"""Held-out predictions in which neither metric nor coefficients saw a label.

A metric has seen the labels it was learned from, so leave-one-out over coefficients alone is too hopeful: for every
fold the metric is learned on the other rows, and the fold's rows are predicted with it by coefficients that never saw
them. What an update promises is then what it keeps.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from unlazy.core.threads import together
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.trajectory import Judged, surely_worse
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import View, view
from unlazy.solvers.ridge.factorization import judging_precision
from unlazy.solvers.ridge.intercept import coefficients, fit, unexplained
from unlazy.training.rfm.bandwidth_and_ridge import LARGE, SMALL, Place, descend
from unlazy.training.rfm.iteration import FIRST_RIDGE, Step, by_residuals, isotropic, narrowed, root, updated

Predictions = Float[np.ndarray, "n c"]


class Folds:
    """Rows in folds. To every fold belong all rows: first those whose labels its metric may use, then its own."""

    def __init__(self, data: Training, fold: np.ndarray):
        self.data, self.fold = data, fold
        self.rows = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
        self.others = [np.flatnonzero(fold != k) for k in range(len(self.rows))]
        self.parts = [data.rows(np.concatenate([first, last])) for first, last in zip(self.others, self.rows)]

    def look(self) -> "Folds | None":
        """The rows on which candidates are looked at before they race; None where all are few."""
        return self.fewer()

    def fewer(self) -> "Folds | None":
        """Some of the rows in the same folds, for a first look; None where all are few."""
        n = len(self.data.X)
        some = slice(None, None, -(-n // thresholds.FIRST_LOOK_ROWS))
        return None if n <= 1.5 * thresholds.FIRST_LOOK_ROWS else Folds(self.data.rows(some), self.fold[some])

    def views(self, kernel: Kernel, metrics: list[np.ndarray]) -> list[View]:
        """Every fold's rows under its metric."""
        return together([functools.partial(self._view, kernel, part.X, M) for part, M in zip(self.parts, metrics)])

    @staticmethod
    def _view(kernel: Kernel, X: np.ndarray, M: np.ndarray) -> View:
        return view(kernel, X, root(M))

    def updated(
        self, views: list[View], metrics: list[np.ndarray], step: Step, metric: str, rank: int | None
    ) -> list[np.ndarray]:
        """The next metrics, each without the labels of its fold; all as before where a fit is not positive."""

        def one(seen: View, M: np.ndarray, part: Training, m: int) -> np.ndarray | None:
            if step.turn and (start := narrowed(M, step.turn, metric)) is not M:
                M, seen = start, self._view(step.kernel, part.X, start)
            h = step.relative_bandwidth * seen.usual
            w = None if part.weights is None else part.weights[:m]
            try:
                K = seen.gram(h, m)
                alpha, _ = coefficients(K, part.Y[:m], step.relative_ridge, w)
            except ValueError:
                return None
            if step.turn:
                ridge = step.relative_ridge * float(np.mean(np.diagonal(K)))
                return by_residuals(seen, h, alpha, ridge, metric, M, part.X[:m], w)
            return updated(seen, h, alpha, metric, M, rank, step.power)

        sizes = [len(others) for others in self.others]
        found = together([functools.partial(one, *each) for each in zip(views, metrics, self.parts, sizes)])
        return list(metrics) if any(M is None for M in found) else found  # type: ignore[return-value]

    def judged(self, views: list[View], place: Place) -> Judged:
        """The fit at this bandwidth and ridge by its held-out predictions."""

        def one(rows: np.ndarray, part: Training, seen: View) -> Predictions | float:
            K = seen.gram(place[0] * seen.usual, dtype=judging_precision(len(part.X), place[1], part.weights))
            got = fit(K, part.Y, place[1], part.weights, len(rows))
            return math.nan if got is None else got.held_out

        found = np.empty_like(self.data.Y)
        each = list(zip(self.rows, self.parts, views))
        for rows, held_out in zip(self.rows, together([functools.partial(one, *fold) for fold in each])):
            found[rows] = held_out
        error = unexplained(found - self.data.Y, self.data.Y, self.data.weights)
        return Judged(place, error if math.isfinite(error) else math.inf, found)

    def plain(
        self, kernel: Kernel, bandwidth: float | None, ridge: float | None, starts: Sequence[Place] = (),
        steps: tuple[Place, ...] = (LARGE, SMALL),
    ) -> Judged:  # fmt: skip
        """The kernel without a metric, by plain leave-one-out: nothing but coefficients has seen a label. A bandwidth
        or a ridge that is None goes downhill by these steps from the best of the starts."""
        X, found = self.data.X, {}
        seen = self._view(kernel, X, isotropic(X.shape[1], "diagonal", X.dtype))

        def error(h: float, rho: float) -> float:
            found[h, rho] = self._left_out(seen, (h, rho))
            return found[h, rho].error

        starts = starts or ((bandwidth or 1.0, FIRST_RIDGE if ridge is None else ridge),)
        start = min(starts, key=lambda place: error(*place))
        place, _ = descend(
            error, start, ridge=ridge is None, bandwidth=bandwidth is None, steps=steps, at_start=found[start].error
        )
        return found[place]

    def _left_out(self, seen: View, place: Place) -> Judged:
        """All rows by fits without them, in a metric that has seen no label."""
        data = self.data
        K = seen.gram(place[0] * seen.usual, dtype=judging_precision(len(data.X), place[1], data.weights))
        got = fit(K, data.Y, place[1], data.weights)
        if got is None:
            return Judged(place, math.inf, np.full_like(data.Y, np.nan))
        return Judged(place, got.error, got.held_out)

    def surely_worse(self, new: Judged, old: Judged, by: float = 1.0) -> bool:
        """Whether held-out predictions can tell that the new one is worse, by more than so many standard errors."""
        return surely_worse(new, old, self.data, by)

    def isotropic(self, metric: str) -> list[np.ndarray]:
        """Every fold's metric before anything was learned."""
        X = self.data.X
        return [isotropic(X.shape[1], metric, X.dtype)] * len(self.rows)
