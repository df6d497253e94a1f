"""The search, from plain kernels to the last fit.

1. Every plain kernel gets the bandwidth and the ridge of its smallest leave-one-out error.
2. Round by round every candidate that promises something makes one more update of its metric.
3. From the best metric slow updates go on, with its kernel and with the others: a rough kernel may be the first to find
   what a smooth one then uses best.
4. Bandwidth and ridge of the last fit are searched once more.

All that is compared are predictions of rows whose labels neither metric nor coefficients have seen (`folds`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.core.threads import together
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.folds import Folds
from unlazy.estimators.feature_search.held_out import HeldOut
from unlazy.estimators.feature_search.trajectory import Candidate, Judged, Trajectory, difference
from unlazy.kernels.base import Kernel
from unlazy.solvers.ridge.intercept import unexplained
from unlazy.training.rfm.bandwidth_and_ridge import LARGEST, SMALL, SMALLEST, Place, descend
from unlazy.training.rfm.iteration import FIRST_RIDGE, Step, normalized

Begin = Callable[[np.ndarray], np.ndarray]
Tick = Callable[[str], None]


class Selected(NamedTuple):
    """What to fit, and the evidence: predictions of every row by fits and metrics that never saw it."""

    candidate: Candidate
    updates: int
    steps: tuple[Step, ...]
    """The fits whose gradients make the metric (`recursive_features.follow`)."""
    final: Place
    """Bandwidth and ridge of the last fit, both relative."""
    held_out: Float[np.ndarray, "n c"]
    error: float
    table: tuple[tuple[int, int, float], ...]
    """(candidate, updates, error) of all that was tried."""
    equals: tuple["Selected", ...] = ()
    """Others that few rows cannot tell from it: `held_out` and `error` are those of the mean of all."""
    weight: float = 1.0
    """In such a mean, relative to the best."""


def select(
    candidates: Sequence[Candidate],
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    *,
    weights: Float[np.ndarray, " n"] | None = None,
    updates: int = 8,
    folds: int | None = None,
    relative_bandwidth: float | None = None,
    relative_ridge: float | None = None,
    rank: int | None = None,
    begin: Begin | None = None,
    last: bool = False,
    average: bool = False,
    seed: int = 0,
    advance: Tick = lambda note: None,
) -> Selected:
    """The best of all candidates after 0 to `updates` updates, with its bandwidth and ridge.

    `relative_bandwidth` and `relative_ridge` fix what is otherwise searched (`recursive_features.learn`). `begin` gives
    the first metric from the rows whose labels it may use (W¹ᵀW¹ of Algorithm 1, say) instead of the identity.
    `last` makes all updates, and chooses the rest. `average` takes the mean of those that at most rules.FEW rows cannot
    tell apart.
    """
    n = len(X)
    count = min(n, folds or (thresholds.FOLDS if n < thresholds.MANY_ROWS else 2))
    fold = np.random.default_rng(seed).permutation(n) % count
    data = Training(X, Y, weights)
    search = Search(Folds(data, fold), relative_bandwidth, relative_ridge, rank, advance)
    runs = search.run(candidates, updates if count > 1 else 0, begin, last)
    table = tuple((candidates.index(run.candidate), t, e) for run in runs[1:] for t, e in enumerate(run.errors))
    best = runs[0]
    found = search.selected(best, len(best.judged) - 1 if last else best.best, begin is not None, table)
    if not average or last or n > thresholds.FEW:
        return found
    others = [search.selected(run, run.best, begin is not None) for run in _distinct(runs, found, data)]
    return _mean(found, others, data)


def _distinct(runs: list[Trajectory], best: Selected, data: Training) -> list[Trajectory]:
    """Those that cannot be told from the first, which is the best; a kernel without updates once."""
    seen: dict[Any, Trajectory] = {}
    for run in runs:
        made = run.before + run.best
        seen.setdefault((id(run.candidate.kernel), run.candidate.metric) if made else id(run.candidate.kernel), run)
    others = [run for run in seen.values() if run is not runs[0]]
    return [run for run in others if difference(run.judged[run.best].held_out, best.held_out, data) <= thresholds.APART]


def _mean(best: Selected, others: list[Selected], data: Training) -> Selected:
    """The mean of the best and the others, each by how likely a difference like its own is by chance, exp(-z²/2).

    That the best is best may be chance too: its own error, the smallest of several, is no reason to pick it."""
    if not others:
        return best
    worse = [max(0.0, difference(found.held_out, best.held_out, data)) for found in others]
    weights = [1.0, *(math.exp(-0.5 * z**2) for z in worse)]
    held_out = np.average([found.held_out for found in (best, *others)], 0, weights)
    error = unexplained(held_out - data.Y, data.Y, data.weights)
    equals = tuple(found._replace(weight=w) for found, w in zip(others, weights[1:]) if w > 0)
    return best._replace(held_out=held_out, error=error, equals=equals)


class Search:
    """Rows that judge what others have learned, and what is free: a bandwidth or a ridge that is None."""

    def __init__(
        self, evidence: Folds | HeldOut, bandwidth: float | None = None, ridge: float | None = None,
        rank: int | None = None, advance: Tick = lambda note: None,
    ):  # fmt: skip
        self.evidence, self.bandwidth, self.ridge, self.rank, self.advance = evidence, bandwidth, ridge, rank, advance
        self.look = evidence.look()

    def selected(self, run: Trajectory, t: int, begun: bool, table: tuple = ()) -> Selected:
        """A trajectory after t updates, at the bandwidth and ridge of its last fit."""
        made, chosen = run.before + t, self.refined(run, t) if begun else self.settled(run, t)
        return Selected(
            run.candidate, made, tuple(run.steps[:made]), chosen.place, chosen.held_out, chosen.error, table
        )

    def run(
        self, candidates: Sequence[Candidate], updates: int, begin: Begin | None = None, last: bool = False
    ) -> list[Trajectory]:
        """The best trajectory first, then those of all candidates that raced."""
        runs = self.start(candidates, begin, updates > 0 and not last)
        self.rounds(runs, updates, to_the_end=last)
        best = min(runs, key=lambda run: run.errors[-1] if last else run.smallest)
        if updates and not last:
            best = self.turned(self.slowly(best, candidates, updates))
        return [best, *runs]

    def start(
        self, candidates: Sequence[Candidate], begin: Begin | None = None, choose: bool = False
    ) -> list[Trajectory]:
        """The plain kernels; with `begin` under a first metric, that of each fold without the labels of its rows. Where
        there is a look at fewer rows, bandwidth and ridge begin at theirs, and who falls far behind there stays out if
        one may `choose`."""
        kernels = _kernels(candidates)
        plain = functools.partial(self.evidence.plain, bandwidth=self.bandwidth, ridge=self.ridge)
        if self.look is None:
            found = dict(zip(kernels, together([functools.partial(plain, kernel) for kernel in kernels.values()])))
        else:
            seen = Search(self.look, self.bandwidth, self.ridge, self.rank)
            seen.look = None
            first = seen.start(candidates)
            known = {id(run.candidate.kernel): run.judged[0] for run in first}
            if choose and begin is None:
                candidates = seen.worth_a_race(first)
                kernels = _kernels(candidates)
            # what fewer rows chose may be a corner: the usual place is looked at again
            usual = (self.bandwidth or 1.0, FIRST_RIDGE if self.ridge is None else self.ridge)
            tasks = []
            for i, kernel in kernels.items():
                starts = tuple(dict.fromkeys((known[i].place, usual)))
                tasks.append(functools.partial(plain, kernel, starts=starts, steps=(SMALL,)))
            found = dict(zip(kernels, together(tasks)))
        runs = []
        for c in candidates:
            run = Trajectory(c, found[id(c.kernel)], self.evidence.isotropic(c.metric))
            if begin is not None:
                run.metrics = [[normalized(begin(rows), c.metric) for rows in self.evidence.others]]
                run.judged = [self._judged(run, 0)]
            runs.append(run)
        return runs

    def worth_a_race(self, runs: list[Trajectory]) -> list[Candidate]:
        """Those that one update brings near the best, or on the way there: as far again would do. All, where none
        explains anything of so few rows."""
        if min(run.smallest for run in runs) > thresholds.EXPLAINS_NOTHING:
            return [run.candidate for run in runs]
        together([functools.partial(self.update, run) for run in runs])
        best = min(run.smallest for run in runs)
        return [run.candidate for run in runs if run.waited_for(best) or run.reach <= thresholds.FAR_BEHIND * best]

    def settled(self, run: Trajectory, t: int) -> Judged:
        """A trajectory after t updates at its last bandwidth and ridge; plain kernels have them."""
        return self.refined(run, t) if run.before + t else run.judged[t]

    def rounds(self, runs: list[Trajectory], updates: int, to_the_end: bool = False) -> None:
        """Updates, round by round, of all that promise something (of all, where `to_the_end`)."""
        going = list(runs)
        for _ in range(updates):
            together([functools.partial(self.update, run) for run in going])
            for run in going:
                self.advance(type(run.candidate.kernel).__name__)
            best = min(run.smallest for run in runs)
            going = [run for run in going if to_the_end or run.promising(best)]
            for run in runs:
                if run not in going:
                    run.views = None

    def update(self, run: Trajectory) -> None:
        """One more update in every fold, without the labels of its rows, and the error it leaves."""
        step, views = run.next_step(), self._views(run, len(run.metrics) - 1)
        run.metrics.append(self.evidence.updated(views, run.metrics[-1], step, run.candidate.metric, self.rank))
        run.steps.append(step)
        run.judged.append(run.judged[-1])
        t = len(run.judged) - 1
        screened = self._screened(run, t)
        if screened is None or screened.errors[0] > thresholds.PAYS_MUCH * run.errors[-1]:
            run.judged[-1] = self._judged(run, t)
        if screened is not None and screened.errors[0] <= run.errors[-1]:
            run.steps, run.metrics[-1], run.judged[-1] = screened.steps, screened.metrics[0], screened.judged[0]
            run.views = screened.views and (t, screened.views[1])

    def _screened(self, run: Trajectory, t: int) -> Trajectory | None:
        """The first update of a diagonal metric of very many columns, of those alone that it lifts above its noise:
        what follows then costs a fraction. It is tried beside the metric of all columns."""
        if run.before + t > 1 or run.metrics[t][0].ndim > 1 or len(run.metrics[t][0]) < thresholds.SCREENED:
            return None
        other = run.handed_to(run.candidate.kernel, floor=thresholds.NOISE_FLOOR, update=t)
        if all(M.all() for M in other.metrics[0]):
            return None
        other.judged[0] = self._judged(other, 0, t)
        return other

    def slowly(self, best: Trajectory, candidates: Sequence[Candidate], updates: int) -> Trajectory:
        """The best so far, or what does better with slow updates, which keep inputs of little influence."""
        if not best.best:
            return self._slowly_from_nothing(best, candidates, updates)
        metric = best.candidate.metric
        kernels = [k for k in _kernels(candidates).values() if metric in k.metrics]
        found = best
        for kernel in kernels:
            found = self._better(found, best.handed_to(kernel, thresholds.SLOW_POWER), updates)
        if found is not best:  # a better metric may suit another kernel
            for kernel in kernels:
                if kernel is not found.candidate.kernel:
                    found = self._better(found, found.handed_to(kernel), 0)
            found = self._better(found, found.handed_to(found.candidate.kernel, floor=thresholds.NOISE_FLOOR), 0)
        return found

    def turned(self, best: Trajectory) -> Trajectory:
        """The best so far, or what does better with its directions turned by residuals: the few that hold nearly all of
        the metric, or where that does not pay all of them. Lengths of a diagonal stay: few rows mislead them."""
        learned = best.candidate.metric == "full" and best.before + best.best
        for share in (thresholds.NEARLY_ALL, 1.0) if learned else ():
            other = best.turning(share)
            self.rounds([other], thresholds.TURNS)
            if self._turn_pays(other, best):
                return other
        return best

    def _turn_pays(self, turned: Trajectory, best: Trajectory) -> bool:
        """Whether held-out rows are predicted better. A turn of all rows is better than that of a fold's; few rows must
        be sure of it."""
        if self.look is not None:
            return turned.smallest < thresholds.WORTH_TURNING * best.smallest
        new, old = turned.judged[turned.best], best.judged[best.best]
        surely = self.evidence.surely_worse(old, new, thresholds.SURELY)
        return surely and turned.smallest < thresholds.TAKES_OVER * best.smallest

    def _slowly_from_nothing(self, best: Trajectory, candidates: Sequence[Candidate], updates: int) -> Trajectory:
        """Where no update helped: slow ones of the same kernel, with every kind of metric."""
        for candidate in candidates:
            if candidate.kernel is best.candidate.kernel:
                slow = best.handed_to(candidate.kernel, thresholds.SLOW_POWER)
                slow.candidate, slow.metrics = candidate, [self.evidence.isotropic(candidate.metric)]
                slow.judged = [best.judged[0]]
                self.rounds([slow], updates)
                best = slow if slow.smallest < thresholds.TAKES_OVER * best.smallest else best
        return best

    def _better(self, best: Trajectory, other: Trajectory, updates: int) -> Trajectory:
        """`other` where it beats the best, after as many updates of its own as pay."""
        if other.candidate.kernel is not best.candidate.kernel:  # another kernel, another bandwidth
            ridge = min(other.judged[0].place[1], thresholds.LEARNING_RIDGE)
            other.judged[0] = other.judged[0]._replace(place=(1.0, ridge))
            if not self._comes_near(other, best.smallest):
                return best
        other.judged[0] = self.refined(other, 0, thresholds.CLOSE)
        if other.errors[0] < thresholds.WORTH_SLOWING * best.smallest:
            self.rounds([other], updates)
        return other if other.smallest < thresholds.TAKES_OVER * best.smallest else best

    def _comes_near(self, other: Trajectory, best: float) -> bool:
        """Whether bandwidth and ridge that some of the rows choose, at little cost, bring it near the best."""
        fewer = self.evidence.fewer()
        if fewer is None:
            return True
        views = fewer.views(other.candidate.kernel, other.metrics[0])
        place = self._downhill(fewer, views, other.judged[0].place, thresholds.CLOSE)
        other.judged[0] = self.evidence.judged(self._views(other, 0), place)
        return other.errors[0] < thresholds.COMES_NEAR * best

    def refined(self, run: Trajectory, t: int, worth: float = thresholds.CLOSEST) -> Judged:
        """Bandwidth and ridge with the metrics after t updates, downhill by the same held-out predictions."""
        views = self._views(run, t)
        return self.evidence.judged(views, self._downhill(self.evidence, views, run.judged[t].place, worth))

    def _downhill(self, evidence: Folds | HeldOut, views: list[Any], start: Place, worth: float) -> Place:
        found, _ = descend(
            lambda h, rho: evidence.judged(views, (h, rho)).error, start,
            ridge=self.ridge is None, bandwidth=self.bandwidth is None, steps=((2.0, 10.0**0.5),), worth=worth,
        )  # fmt: skip
        return found

    def _judged(self, run: Trajectory, t: int, turn: int | None = None) -> Judged:
        """The metrics after t updates: at the bandwidth and ridge of the update before, and at a smaller ridge and a
        larger bandwidth by turns, what a better metric wants."""
        views, (h, rho) = self._views(run, t), run.judged[t].place
        options, turn = [(h, rho)], t if turn is None else turn
        if turn % 2 and self.ridge is None:
            options += [(h, min(rho, thresholds.LEARNING_RIDGE)), (h, rho / 10)]
        elif self.bandwidth is None and turn:
            options.append((2 * h, rho))
        found = [self.evidence.judged(views, p) for p in dict.fromkeys(options) if SMALLEST <= p[1] <= LARGEST]
        for view in views:
            view.forget()
        best = min(found, key=lambda judged: judged.error)
        return best if best.error < thresholds.WORTH_ANOTHER * found[0].error else found[0]

    def _views(self, run: Trajectory, t: int) -> list[Any]:
        """Every fold's rows under its metric after t updates; the latest are kept."""
        if run.views is None or run.views[0] != t:
            run.views = (t, self.evidence.views(run.candidate.kernel, run.metrics[t]))
        return run.views[1]


def _kernels(candidates: Sequence[Candidate]) -> dict[int, Kernel]:
    """Every kernel once."""
    return {id(c.kernel): c.kernel for c in candidates}
