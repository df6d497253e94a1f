"""The search, from plain kernels to the final hyperparameters.

1. Each plain kernel gets the bandwidth and ridge with the smallest leave-one-out error.
2. Round by round, each promising candidate makes one more update of its metric.
3. From the best metric, slow updates continue with its kernel and with the others: a rough kernel may be the first to
   find a metric that a smooth kernel then uses best.
4. Bandwidth and ridge of the final fit are searched once more.

All comparisons use predictions of rows whose labels neither metric nor coefficients have seen (`held_out`). With few
rows these often cannot separate candidates: the difference of their squared errors is within two standard errors.
Selecting one of them is then arbitrary, and the mean of their fits to all rows is better than most of them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.core.threads import run_parallel
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.held_out import Folds, SingleSplit, standardized_difference
from unlazy.estimators.feature_search.trajectory import KernelCandidate, MetricTrajectory, ScoredCandidate
from unlazy.kernels.base import Kernel
from unlazy.solvers.ridge import (
    FINE_STEP,
    LARGEST_RIDGE,
    SMALLEST_RIDGE,
    BandwidthAndRidge,
    coordinate_search,
    unexplained_variance,
)
from unlazy.training.rfm.iteration import (
    FIRST_RIDGE,
    RfmStep,
    normalize_metric,
)

InitialMetric = Callable[[np.ndarray], np.ndarray]
"""Computes an initial metric from the rows at this index."""
ProgressCallback = Callable[[str], None]
"""Reports progress with a short note."""


class Selected(NamedTuple):
    """What to fit, and the held-out predictions of each row by fits and metrics that never saw its label."""

    candidate: KernelCandidate
    updates: int
    steps: tuple[RfmStep, ...]
    """The fits whose gradients give the metric."""
    final: BandwidthAndRidge
    """Bandwidth and ridge of the final fit, both relative."""
    held_out: Float[np.ndarray, "n c"]
    error: float
    table: tuple[tuple[int, int, float], ...]
    """(candidate, updates, error) of everything that was tried."""
    ties: tuple["Selected", ...] = ()
    """Other candidates within the noise of few rows; `held_out` and `error` are then those of the weighted mean."""
    weight: float = 1.0
    """Weight in that mean, relative to the best candidate."""


@dataclass(frozen=True)
class SearchOptions:
    """Limits of the search, and what it is not free to choose.

    Parameters
    ----------
    updates : int, default 8
        Maximum number of updates of a metric.
    relative_bandwidth, relative_ridge : float, optional
        Values to use; searched by default.
    rank : int, optional
        Rank of the metrics; full by default.
    last : bool, default False
        Whether to make all updates and choose the rest, instead of choosing their number too.
    average : bool, default False
        Whether to average candidates that at most constants.AVERAGING_ROWS rows cannot separate.
    quick : bool, default False
        Whether to skip slow updates, rotations and the final tuning, which refine the best candidate.
    """

    updates: int = 8
    relative_bandwidth: float | None = None
    relative_ridge: float | None = None
    rank: int | None = None
    last: bool = False
    average: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        if self.updates < 0:
            raise ValueError(f"updates must be zero or more, got {self.updates}")


def select(
    candidates: Sequence[KernelCandidate], data: TrainingData, options: SearchOptions, *, folds: int | None = None,
    begin: InitialMetric | None = None, seed: int = 0, advance: ProgressCallback = lambda note: None,
) -> Selected:  # fmt: skip
    """Select the best candidate after 0 to `options.updates` updates, with its bandwidth and ridge.

    `begin` computes the initial metric from the rows whose labels it may use (for example W¹ᵀW¹ of Algorithm 1) instead
    of the identity.
    """
    n = len(data.X)
    count = min(n, folds or (constants.FOLDS if n < constants.TWO_FOLD_ROWS else 2))
    fold = np.random.default_rng(seed).permutation(n) % count
    options = options if count > 1 else replace(options, updates=0)
    evidence = Folds(data, fold, leave_one_out=n < constants.HALVES_ROWS)
    search = Search(evidence, options, advance)
    runs = search.run(candidates, begin)
    if not evidence.leave_one_out and runs[0].best_error > constants.EXPLAINS_NOTHING:
        # half of the rows may be too few for what all of them show
        search = Search(evidence.final, options, advance)
        runs = search.run(candidates, begin)
    table = tuple((candidates.index(run.candidate), t, e) for run in runs[1:] for t, e in enumerate(run.errors))
    best = runs[0]
    found = search.select_update(best, len(best.scored) - 1 if options.last else best.best, begin is not None, table)
    if not options.average or options.last or n > constants.AVERAGING_ROWS:
        return found
    others = [search.select_update(run, run.best, begin is not None) for run in _distinct(runs, found, data)]
    return _mean(found, others, data)


def _distinct(runs: list[MetricTrajectory], best: Selected, data: TrainingData) -> list[MetricTrajectory]:
    """Trajectories that cannot be separated from the first one, the best; a kernel without updates appears once."""
    seen: dict[Any, MetricTrajectory] = {}
    for run in runs:
        made = run.inherited_updates + run.best
        seen.setdefault((id(run.candidate.kernel), run.candidate.metric) if made else id(run.candidate.kernel), run)
    others = [run for run in seen.values() if run is not runs[0]]
    return [
        run
        for run in others
        if standardized_difference(run.scored[run.best].held_out, best.held_out, data) <= constants.AVERAGING_Z
    ]


def _mean(best: Selected, others: list[Selected], data: TrainingData) -> Selected:
    """Average the best candidate and the others, each with weight exp(-z²/2), z its difference in standard errors.

    That the best is best may be chance: its error is the smallest of several, which is no reason to use it alone.
    """
    if not others:
        return best
    worse = [max(0.0, standardized_difference(found.held_out, best.held_out, data)) for found in others]
    weights = [1.0, *(math.exp(-0.5 * z**2) for z in worse)]
    held_out = np.average([found.held_out for found in (best, *others)], 0, weights)
    error = unexplained_variance(held_out - data.Y, data.Y, data.weights)
    ties = tuple(found._replace(weight=w) for found, w in zip(others, weights[1:]) if w > 0)
    return best._replace(held_out=held_out, error=error, ties=ties)


class Search:
    """The search on given held-out rows."""

    def __init__(
        self, evidence: Folds | SingleSplit, options: SearchOptions, advance: ProgressCallback = lambda note: None
    ):
        self.evidence, self.options, self.advance = evidence, options, advance
        self.bandwidth, self.ridge = options.relative_bandwidth, options.relative_ridge
        self.pilot = evidence.pilot()

    def select_update(self, run: MetricTrajectory, t: int, has_initial_metric: bool, table: tuple = ()) -> Selected:
        """Return a trajectory after t updates, at its final bandwidth and ridge."""
        made, chosen = run.inherited_updates + t, run.scored[t]
        if not self.options.quick:
            chosen = self._refine_finally(run, t) if has_initial_metric else self.finalize(run, t)
        return Selected(
            run.candidate, made, tuple(run.steps[:made]), chosen.place, chosen.held_out, chosen.error, table
        )

    def run(self, candidates: Sequence[KernelCandidate], begin: InitialMetric | None = None) -> list[MetricTrajectory]:
        """Return the best trajectory, followed by those of all candidates that were updated."""
        updates, last = self.options.updates, self.options.last
        runs = self.start_trajectories(candidates, begin, updates > 0 and not last)
        self.run_rounds(runs, updates, all_updates=last)
        best = min(runs, key=lambda run: run.errors[-1]) if last else self._best_by_final_evidence(runs)
        if updates and not last and not self.options.quick:
            best = self.try_rotation(self.try_slow_updates(best, candidates))
        return [best, *runs]

    def _best_by_final_evidence(self, runs: list[MetricTrajectory]) -> MetricTrajectory:
        """Return the best trajectory; choose among the best places of all by the final evidence if it is another."""
        best, evidence = min(runs, key=lambda run: run.best_error), self.evidence.final
        if evidence is self.evidence or self.options.quick:
            return best
        places = sorted(((e, i, t) for i, run in enumerate(runs) for t, e in enumerate(run.errors)))
        distinct: dict[Any, tuple[MetricTrajectory, int]] = {}
        for error, i, t in places:
            if error <= constants.FINAL_FACTOR * best.best_error:
                key = (i, t) if t else id(runs[i].candidate.kernel)
                distinct.setdefault(key, (runs[i], t))
        chosen = list(distinct.values())[: constants.FINAL_CANDIDATES]
        if len(chosen) == 1:
            return best

        def error_of(run: MetricTrajectory, t: int) -> float:
            views: list[Any] = evidence.views(run.candidate.kernel, run.metrics[t])
            return evidence.score(views, run.scored[t].place).error

        errors = run_parallel([functools.partial(error_of, *one) for one in chosen])
        best, best.chosen = chosen[int(np.argmin(errors))]
        return best

    def start_trajectories(
        self, candidates: Sequence[KernelCandidate], begin: InitialMetric | None = None, choose: bool = False
    ) -> list[MetricTrajectory]:
        """Start a trajectory for each candidate: plain kernels, or kernels under the initial metric of `begin`.

        The initial metric of a fold does not use the labels of its rows. If there is a pilot sample, bandwidth and
        ridge start at its choice, and candidates that are far behind on it are dropped if `choose`.
        """
        kernels = _kernels(candidates)
        plain = functools.partial(self.evidence.score_plain_kernel, bandwidth=self.bandwidth, ridge=self.ridge)
        if self.pilot is None:
            found = dict(zip(kernels, run_parallel([functools.partial(plain, kernel) for kernel in kernels.values()])))
        else:
            seen = Search(self.pilot, self.options)
            seen.pilot = None
            first = seen.start_trajectories(candidates)
            known = {id(run.candidate.kernel): run.scored[0] for run in first}
            if choose and begin is None:
                candidates = seen.shortlist(first)
                kernels = _kernels(candidates)
            # the choice of fewer rows may be a corner: also start from the default
            usual = (self.bandwidth or 1.0, FIRST_RIDGE if self.ridge is None else self.ridge)
            tasks = []
            for i, kernel in kernels.items():
                starts = tuple(dict.fromkeys((known[i].place, usual)))
                tasks.append(functools.partial(plain, kernel, starts=starts, steps=(FINE_STEP,)))
            found = dict(zip(kernels, run_parallel(tasks)))
        runs = []
        for c in candidates:
            run = MetricTrajectory(c, found[id(c.kernel)], self.evidence.isotropic_metrics(c.metric))
            if begin is not None:
                run.metrics = [[normalize_metric(begin(rows), c.metric) for rows in self.evidence.training_rows]]
                run.scored = [self._score_update(run, 0)]
            runs.append(run)
        return runs

    def shortlist(self, runs: list[MetricTrajectory]) -> list[KernelCandidate]:
        """Keep candidates that one update brings near the best, or that a second such update would.

        All are kept if none explains anything on so few rows.
        """
        if min(run.best_error for run in runs) > constants.EXPLAINS_NOTHING:
            return [run.candidate for run in runs]
        run_parallel([functools.partial(self.update, run) for run in runs])
        best = min(run.best_error for run in runs)
        return [
            run.candidate
            for run in runs
            if run.needs_patience(best) or run.projected_error <= constants.DROP_FACTOR * best
        ]

    def finalize(self, run: MetricTrajectory, t: int) -> ScoredCandidate:
        """Score a trajectory after t updates at its final bandwidth and ridge.

        Plain kernels already have them, if they were scored by the final evidence.
        """
        if self.evidence.final is self.evidence and not run.inherited_updates + t:
            return run.scored[t]
        return self._refine_finally(run, t)

    def _refine_finally(self, run: MetricTrajectory, t: int) -> ScoredCandidate:
        evidence = self.evidence.final
        if evidence is self.evidence:
            return self.refine(run, t)
        views: list[Any] = evidence.views(run.candidate.kernel, run.metrics[t])
        return evidence.score(views, self._descend(evidence, views, run.scored[t].place, constants.FINAL_TUNING_GAIN))

    def run_rounds(self, runs: list[MetricTrajectory], updates: int, all_updates: bool = False) -> None:
        """Update, round by round, all promising trajectories (all of them if `all_updates`)."""
        going = list(runs)
        for _ in range(updates):
            run_parallel([functools.partial(self.update, run) for run in going])
            for run in going:
                self.advance(type(run.candidate.kernel).__name__)
            best = min(run.best_error for run in runs)
            going = [run for run in going if all_updates or run.is_promising(best)]
            for run in runs:
                if run not in going:
                    run.views = None

    def update(self, run: MetricTrajectory) -> None:
        """Make one more update in each fold, without the labels of its rows, and score it."""
        step, views = run.next_step(), self._views(run, len(run.metrics) - 1)
        run.metrics.append(
            self.evidence.update_metrics(views, run.metrics[-1], step, run.candidate.metric, self.options.rank)
        )
        run.steps.append(step)
        run.scored.append(run.scored[-1])
        t = len(run.scored) - 1
        screened = self._screen_columns(run, t)
        if screened is None or screened.errors[0] > constants.SCREENING_FACTOR * run.errors[-1]:
            run.scored[-1] = self._score_update(run, t)
        if screened is not None and screened.errors[0] <= run.errors[-1]:
            run.steps, run.metrics[-1], run.scored[-1] = screened.steps, screened.metrics[0], screened.scored[0]
            run.views = screened.views and (t, screened.views[1])

    def _screen_columns(self, run: MetricTrajectory, t: int) -> MetricTrajectory | None:
        """First update of a diagonal metric with very many columns, restricted to columns above its noise.

        Later updates then cost a fraction. It is tried in addition to the metric of all columns.
        """
        if (
            run.inherited_updates + t > 1
            or run.metrics[t][0].ndim > 1
            or len(run.metrics[t][0]) < constants.SCREENING_COLUMNS
        ):
            return None
        other = run.continue_with(run.candidate.kernel, floor=constants.NOISE_FLOOR, update=t)
        if all(M.all() for M in other.metrics[0]):
            return None
        other.scored[0] = self._score_update(other, 0, t)
        return other

    def try_slow_updates(self, best: MetricTrajectory, candidates: Sequence[KernelCandidate]) -> MetricTrajectory:
        """Return the best trajectory, or a better one with slow updates, which keep inputs of little influence."""
        if not best.best:
            return self._slow_updates_from_scratch(best, candidates)
        metric = best.candidate.metric
        kernels = [k for k in _kernels(candidates).values() if metric in k.metrics]
        found = best
        for kernel in kernels:
            found = self._better_of(found, best.continue_with(kernel, constants.SLOW_POWER), self.options.updates)
        if found is not best:  # another kernel may use the better metric best
            for kernel in kernels:
                if kernel is not found.candidate.kernel:
                    found = self._better_of(found, found.continue_with(kernel), 0)
            found = self._better_of(found, found.continue_with(found.candidate.kernel, floor=constants.NOISE_FLOOR), 0)
        return found

    def try_rotation(self, best: MetricTrajectory) -> MetricTrajectory:
        """Return the best trajectory, or a better one whose directions are rotated by residuals.

        First the few directions that hold nearly all of the metric are rotated; if that does not help, all of them.
        Diagonal metrics are not changed, since few rows would mislead them.
        """
        learned = best.candidate.metric == "full" and best.inherited_updates + best.best
        for share in (constants.LEADING_SHARE, 1.0) if learned else ():
            other = best.rotate_directions(share)
            self.run_rounds([other], constants.ROTATIONS_PER_SIZE)
            if self._rotation_helps(other, best):
                return other
        return best

    def _rotation_helps(self, turned: MetricTrajectory, best: MetricTrajectory) -> bool:
        """Return whether rotation improves held-out predictions; with few rows the improvement must be significant.

        A rotation learned from all rows is better than that of a fold.
        """
        if self.pilot is not None:
            return turned.best_error < constants.ROTATION_FACTOR * best.best_error
        new, old = turned.scored[turned.best], best.scored[best.best]
        surely = self.evidence.significantly_worse(old, new, constants.ROTATION_Z)
        return surely and turned.best_error < constants.TAKEOVER_FACTOR * best.best_error

    def _slow_updates_from_scratch(
        self, best: MetricTrajectory, candidates: Sequence[KernelCandidate]
    ) -> MetricTrajectory:
        """If no update helped: try slow updates of the same kernel with each kind of metric."""
        for candidate in candidates:
            if candidate.kernel is best.candidate.kernel:
                slow = best.continue_with(candidate.kernel, constants.SLOW_POWER)
                slow.candidate, slow.metrics = candidate, [self.evidence.isotropic_metrics(candidate.metric)]
                slow.scored = [best.scored[0]]
                self.run_rounds([slow], self.options.updates)
                best = slow if slow.best_error < constants.TAKEOVER_FACTOR * best.best_error else best
        return best

    def _better_of(self, best: MetricTrajectory, other: MetricTrajectory, updates: int) -> MetricTrajectory:
        """Return `other` if it beats the best, after as many further updates as help."""
        if other.candidate.kernel is not best.candidate.kernel:  # another kernel, another bandwidth
            ridge = min(other.scored[0].place[1], constants.MAX_LEARNING_RIDGE)
            other.scored[0] = other.scored[0]._replace(place=(1.0, ridge))
            if not self._is_competitive(other, best.best_error):
                return best
        other.scored[0] = self.refine(other, 0, constants.TUNING_GAIN)
        if other.errors[0] < constants.SLOW_START_FACTOR * best.best_error:
            self.run_rounds([other], updates)
        return other if other.best_error < constants.TAKEOVER_FACTOR * best.best_error else best

    def _is_competitive(self, other: MetricTrajectory, best: float) -> bool:
        """Return whether bandwidth and ridge chosen cheaply on a subsample bring it near the best."""
        fewer = self.evidence.subsample()
        if fewer is None:
            return True
        views = fewer.views(other.candidate.kernel, other.metrics[0])
        place = self._descend(fewer, views, other.scored[0].place, constants.TUNING_GAIN)
        other.scored[0] = self.evidence.score(self._views(other, 0), place)
        return other.errors[0] < constants.COMPETITIVE_FACTOR * best

    def refine(self, run: MetricTrajectory, t: int, worth: float = constants.FINAL_TUNING_GAIN) -> ScoredCandidate:
        """Tune bandwidth and ridge for the metrics after t updates by the same held-out predictions."""
        views = self._views(run, t)
        return self.evidence.score(views, self._descend(self.evidence, views, run.scored[t].place, worth))

    def _descend(
        self, evidence: Folds | SingleSplit, views: list[Any], start: BandwidthAndRidge, worth: float
    ) -> BandwidthAndRidge:
        """Coordinate search of bandwidth and ridge."""
        found, _ = coordinate_search(
            lambda h, rho: evidence.score(views, (h, rho)).error, start,
            ridge=self.ridge is None, bandwidth=self.bandwidth is None, steps=((2.0, 10.0**0.5),), worth=worth,
        )  # fmt: skip
        return found

    def _score_update(self, run: MetricTrajectory, t: int, turn: int | None = None) -> ScoredCandidate:
        """Score the metrics after t updates.

        The previous bandwidth and ridge are tried, and alternately a smaller ridge or a larger bandwidth, which suit a
        better metric.
        """
        views, (h, rho) = self._views(run, t), run.scored[t].place
        options, turn = [(h, rho)], t if turn is None else turn
        if turn % 2 and self.ridge is None:
            options += [(h, min(rho, constants.MAX_LEARNING_RIDGE)), (h, rho / 10)]
        elif self.bandwidth is None and turn:
            options.append((2 * h, rho))
        found = [
            self.evidence.score(views, p) for p in dict.fromkeys(options) if SMALLEST_RIDGE <= p[1] <= LARGEST_RIDGE
        ]
        for view in views:
            view.forget()
        best = min(found, key=lambda scored: scored.error)
        return best if best.error < constants.WORTH_ANOTHER_UPDATE * found[0].error else found[0]

    def _views(self, run: MetricTrajectory, t: int) -> list[Any]:
        """Rows of each fold under its metric after t updates; the latest ones are cached."""
        if run.views is None or run.views[0] != t:
            run.views = (t, self.evidence.views(run.candidate.kernel, run.metrics[t]))
        return run.views[1]


def _kernels(candidates: Sequence[KernelCandidate]) -> dict[int, Kernel]:
    """Distinct kernels of the candidates, by id."""
    return {id(c.kernel): c.kernel for c in candidates}
