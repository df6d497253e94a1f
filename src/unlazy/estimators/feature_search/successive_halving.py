"""From few rows to many: what the search chose is chosen again at larger sizes, judged by the same held-out rows.

1. All candidates race on a few thousand rows (`search`), judged on rows that nothing was learned from.
2. The best go on to four times as many rows, and again: bandwidth and ridge move downhill, the metric is learned on
from
   the fit at that size as long as the judges say that it pays; who falls behind is left.
3. The last size is what one factorization holds. Beyond, `last_fit` takes over.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from unlazy.core import devices
from unlazy.core.errors import UnlazyWarning
from unlazy.core.memory import memory_budget, trim
from unlazy.core.threads import half_the_cores, one_thread_each, within_memory
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.held_out import HeldOut, Seen
from unlazy.estimators.feature_search.search import Begin, Search, Tick
from unlazy.estimators.feature_search.stages import Stages, kept
from unlazy.estimators.feature_search.trajectory import Candidate, Judged, Trajectory
from unlazy.training.rfm.bandwidth_and_ridge import SMALL, descend
from unlazy.training.rfm.iteration import Step, pruned

T = TypeVar("T")
HELD = 10
"""Matrices of all pairs of the rows that choices are made on, alive at once on the host: distances under three metrics,
K, its factor, what judges see, and copies."""


@kept
class Contender(NamedTuple):
    """A kernel with its metric, bandwidth and ridge, and what the judges say of it at one size."""

    candidate: Candidate
    metric: np.ndarray
    power: float
    """Of the AGOP in its updates."""
    judged: Judged
    updates: int
    rows: int
    """Rows it was fitted to."""
    steps: tuple[Step, ...] = ()
    """The fits of the race whose gradients made its metric."""
    turns: tuple[float, ...] = (thresholds.NEARLY_ALL, 1.0)
    """Shares of the metric whose directions may be worth turning: what did not pay is not tried again."""

    relearned: float = 0.0
    """Its error when its metric was learned anew at this size, before anything else; 0 before that."""

    @property
    def error(self) -> float:
        return self.judged.error

    @property
    def gain(self) -> float:
        """The share of that error that was left in the end."""
        return self.error / self.relearned if self.relearned > 0 else 1.0


class Grown(NamedTuple):
    """What to fit to all rows."""

    best: Contender
    judging: Training
    """The rows that judged, in the order of `best.judged.held_out`."""
    learned: Training
    """All others."""


_TOO_MANY: ContextVar[int] = ContextVar("rows whose matrix did not fit", default=10**9)


def most_exact() -> int:
    """Rows up to which a fit is one factorization here: K alone on the host, on a card its factor and a copy too, two
    of them in one piece."""
    if devices.is_host():
        rows = min(thresholds.EXACT, np.sqrt(memory_budget() / (1.25 * 8)))
    else:
        room = min(devices.free_memory() / 3.5, devices.largest_block() / 2)
        rows = min(thresholds.EXACT_DEVICE, np.sqrt(room / 8))
    return int(min(rows, _TOO_MANY.get() // 2))


def with_room(work: Callable[[], T]) -> T:
    """`work`, again with half the rows in a matrix where the device has no room for as many as it said: others may use
    the same card."""
    try:
        return work()
    except jax.errors.JaxRuntimeError as error:
        most = most_exact()
        if not devices.is_out_of_memory(error) or most < thresholds.RACE:
            raise
    words = f"no room for a matrix of {most} × {most} numbers: at most {most // 2} rows are fitted exactly"
    warnings.warn(words, UnlazyWarning, stacklevel=2)
    token = _TOO_MANY.set(most)
    try:
        return with_room(work)
    finally:
        _TOO_MANY.reset(token)


def grown(
    candidates: Sequence[Candidate], data: Training, order: np.ndarray, *, updates: int, bandwidth: float | None,
    ridge: float | None, rank: int | None, begin: Callable[[Training], np.ndarray] | None, last: bool, advance: Tick,
    stages: Stages | None = None,
) -> Grown:  # fmt: skip
    """The best contender at the largest size; `order` is a permutation of the rows, of which the last judge. What every
    size found is one of the `stages`."""
    stages = stages or Stages()
    judges = min(thresholds.JUDGING, len(order) // (5 if len(order) < thresholds.TEN_THOUSAND else 10))
    learned, judging = data.rows(order[:-judges]), data.rows(order[-judges:])
    free: dict[str, Any] = {"bandwidth": bandwidth, "ridge": ridge, "rank": rank, "advance": advance}
    best: list[Contender] = []
    for size in sizes(len(learned.X)):
        rows = learned.rows(slice(size))
        if not best:
            start = None if begin is None else (lambda index, rows=rows: begin(rows.rows(index)))
            few = judging.rows(slice(thresholds.RACE_JUDGING)) if devices.is_host() else judging
            search = Search(HeldOut(rows, few), **free)
            with within_memory(HELD * 8 * size**2), one_thread_each():
                best = stages("race", functools.partial(_race, search, candidates, updates, start, last, size))
            trim()  # what the threads of the race have freed: larger matrices do not fit into its pieces
            continue
        evidence, at_size = HeldOut(rows, judging), list[Contender]()
        with half_the_cores():
            for i, one in enumerate(best):
                rival = min(at_size, key=lambda c: c.error, default=None)
                there = functools.partial(_at_size, one, evidence, size, updates, last, rival, **free)
                at_size.append(stages(f"{size} rows {i}", there))
        best = _left(at_size, thresholds.STILL_LATER)
        advance(f"{size} rows")
    return Grown(best[0], judging, learned)


def sizes(n: int) -> Iterator[int]:
    """Numbers of rows to choose on, the last as large as pays or fits."""
    if devices.is_host():
        first, most = thresholds.RACE, int(min(thresholds.GROWN, np.sqrt(memory_budget() / (HELD * 8))))
    else:
        first, most = thresholds.RACE_DEVICE, most_exact()
    size, most = min(first, n), min(most, n)
    while size < most:
        yield size
        size = size * thresholds.GROWTH if size * thresholds.GROWTH * 1.5 < most else most
    yield size


def _race(
    search: Search, candidates: Sequence[Candidate], updates: int, begin: Begin | None, last: bool, size: int
) -> list[Contender]:
    """The winner and who came near, each with its bandwidth and ridge."""
    found = []
    for run in search.run(candidates, updates, begin, last):
        t = len(run.judged) - 1 if last else run.best
        found.append((run.errors[t], run, t))
    contenders: list[Contender] = []
    found.sort(key=lambda item: item[0])
    for error, run, t in found:
        if error <= thresholds.STILL_IN * found[0][0] and all(not _same(c, run, t) for c in contenders):
            judged = search.settled(run, t)
            made = run.before + t
            steps = tuple(run.steps[:made])
            contenders.append(Contender(run.candidate, run.metrics[t][0], run.power, judged, made, size, steps))
    return _left(contenders, thresholds.STILL_IN)


def _same(contender: Contender, run: Trajectory, t: int) -> bool:
    """Whether it is the same kernel with the same kind of metric."""
    one, other = contender.candidate, run.candidate
    return one.kernel is other.kernel and (one.metric == other.metric or contender.updates == run.before + t == 0)


def _left(contenders: list[Contender], within: float) -> list[Contender]:
    """Those near the best, the best first."""
    ranked = sorted(contenders, key=lambda c: c.error)
    return [c for c in ranked if c.error <= within * ranked[0].error][: thresholds.CONTENDERS]


def _at_size(
    contender: Contender, evidence: HeldOut, size: int, updates: int, last: bool, rival: Contender | None = None, *,
    bandwidth: float | None, ridge: float | None, rank: int | None, advance: Tick,
) -> Contender:  # fmt: skip
    """The contender with its metric learned anew from these rows, bandwidth and ridge of this size, and its metric
    learned on. That is as far as it goes where the rest, worth as much as to the `rival` before it, would not make it
    the better one."""
    kernel, kind = contender.candidate
    views = evidence.views(kernel, [contender.metric])
    now = contender._replace(judged=evidence.judged(views, contender.judged.place), rows=size)
    if contender.steps and size <= thresholds.AGAIN:
        metrics = _again(contender, evidence, rank)
        other = evidence.views(kernel, metrics)
        judged = evidence.judged(other, contender.judged.place)
        if not evidence.surely_worse(judged, now.judged):
            now, views = now._replace(metric=metrics[0], judged=judged), other
    now = now._replace(relearned=now.error)
    if devices.is_host() and rival is not None and now.error * rival.gain > thresholds.WORTH_ANOTHER * rival.error:
        return now
    if not contender.updates and not last:  # the plain kernel won: whether a metric pays now is seen by one update
        tries = min(1, updates)
    else:
        tries = 0 if last or not updates else thresholds.UPDATES
    for _ in range(tries):
        step = Step(kernel, now.judged.place[0], min(now.judged.place[1], thresholds.LEARNING_RIDGE), now.power)
        metrics = evidence.updated(views, [now.metric], step, kind, rank)
        views = evidence.views(kernel, metrics)
        judged = evidence.judged(views, now.judged.place)
        if evidence.surely_worse(judged, now.judged):
            break
        paid = judged.error < now.error
        # where the judges cannot tell, the metric that was learned from more rows is taken, once
        now = now._replace(metric=metrics[0], judged=judged, updates=now.updates + 1)
        advance(type(kernel).__name__)
        if not paid:
            break
    now = _turned(now, evidence) if tries else now
    return tuned(now, evidence, evidence.views(kernel, [now.metric]), bandwidth, ridge)


def _turned(contender: Contender, evidence: HeldOut) -> Contender:
    """The contender with its directions turned as long as the judges like it: the few that hold nearly all of the
    metric, or where that does not pay all of them."""
    kernel, kind = contender.candidate
    for share in contender.turns:
        now, M = contender, [contender.metric]
        for _ in range(thresholds.TURNS):
            step = Step(kernel, *now.judged.place, turn=share)
            M = evidence.updated(evidence.views(kernel, M), M, step, kind, None)
            judged, before = evidence.judged(evidence.views(kernel, M), now.judged.place), now.error
            if judged.error < before:
                now = now._replace(metric=M[0], judged=judged, updates=now.updates + 1, turns=(share,))
            if not judged.error < thresholds.WORTH_TURNING * before:
                break
        if now is not contender:
            return now
    return contender._replace(turns=())


def tuned(
    contender: Contender, evidence: HeldOut, views: list[Seen], bandwidth: float | None, ridge: float | None
) -> Contender:
    """The contender, judged by this evidence, at the bandwidth and the ridge that suit these rows: those of every other
    row on the host, for an eighth of the work, where all rows agree that they are better."""
    some, start = (evidence.halved(), None) if devices.is_host() else (evidence, contender.error)
    kernel = contender.candidate.kernel
    at = views if some is evidence else some.views(kernel, [contender.metric])
    place, _ = descend(
        some.error_at(at), contender.judged.place, ridge=ridge is None, bandwidth=bandwidth is None, steps=(SMALL,),
        worth=thresholds.WORTH_MOVING, at_start=start,
    )  # fmt: skip
    if place == contender.judged.place:
        return contender
    judged = evidence.judged(views, place)
    return contender._replace(judged=judged) if judged.error < contender.error else contender


def _again(contender: Contender, evidence: HeldOut, rank: int | None) -> list[np.ndarray]:
    """The metric by the steps of the race, from the beginning: a direction that few rows lost is not lost again."""
    kind = contender.candidate.metric
    metrics = evidence.isotropic(kind)
    for step in contender.steps:
        metrics = evidence.updated(evidence.views(step.kernel, metrics), metrics, step, kind, rank)
        metrics = [pruned(M, step.floor) for M in metrics]
    return metrics
