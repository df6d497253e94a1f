"""Successive halving for many rows: fewer candidates at larger sizes, scored on the same validation rows.

1. All candidates are tried on a few thousand rows (`search`) and scored on rows that nothing was learned from.
2. The best ones continue with four times as many rows, repeatedly: bandwidth and ridge are tuned, the metric is updated
   from the fit at that size as long as that helps on the validation rows, and candidates that fall behind are dropped.
3. The last size is what one factorization can hold. Beyond, `final_fit` takes over.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from unlazy.core import devices
from unlazy.core.devices import memory_budget, release_free_heap
from unlazy.core.errors import UnlazyWarning
from unlazy.core.threads import half_threaded_blas, limit_threads_by_memory, single_threaded_blas
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.held_out import SingleSplit, SplitView
from unlazy.estimators.feature_search.search import InitialMetric, ProgressCallback, Search, SearchOptions
from unlazy.estimators.feature_search.stage_checkpoints import Stages, checkpointable
from unlazy.estimators.feature_search.trajectory import KernelCandidate, MetricTrajectory, ScoredCandidate
from unlazy.solvers.ridge import FINE_STEP, coordinate_search
from unlazy.training.rfm import device_programs
from unlazy.training.rfm.iteration import ROTATION_ROWS, RfmStep, prune_metric
from unlazy.training.rfm.partition import leaf_rows
from unlazy.training.rfm.split_fits import GRADIENTS, HOST_ROWS

T = TypeVar("T")
PEAK_MATRICES = 10
"""Number of n × n matrices of the rows of a stage that are alive at once on the host.

They are distances under three metrics, K, its factor, K of the validation rows, and copies.
"""


@checkpointable
class HalvingCandidate(NamedTuple):
    """A kernel with its metric, bandwidth and ridge, and its score at one size."""

    candidate: KernelCandidate
    metric: np.ndarray
    power: float
    """Power of the AGOP in its updates."""
    scored: ScoredCandidate
    updates: int
    rows: int
    """Number of rows it was fitted to."""
    steps: tuple[RfmStep, ...] = ()
    """The fits of the first stage whose gradients gave its metric."""
    rotations: tuple[float, ...] = (constants.LEADING_SHARE, 1.0)
    """Shares of the metric whose directions may be rotated; shares that did not help are dropped."""

    relearned_error: float = 0.0
    """Its error after its metric was relearned at this size, before further changes; 0 before that."""

    @property
    def error(self) -> float:
        """Error on the validation rows."""
        return self.scored.error

    @property
    def gain(self) -> float:
        """Final error divided by `relearned_error`."""
        return self.error / self.relearned_error if self.relearned_error > 0 else 1.0


class HalvingResult(NamedTuple):
    """What to fit to all rows."""

    best: HalvingCandidate
    validation: TrainingData
    """The validation rows, in the order of `best.scored.held_out`."""
    training: TrainingData
    """All other rows."""


_ROWS_THAT_FAILED: ContextVar[int] = ContextVar("rows whose matrix did not fit", default=10**9)


def max_exact_rows() -> int:
    """Largest number of rows that one factorization can fit.

    On the host it holds K alone; on a GPU also the factor and copies, in one block.
    """
    if devices.is_host():
        rows = min(constants.EXACT_ROWS, np.sqrt(memory_budget() / (1.25 * 8)))
    else:
        rows = min(constants.EXACT_ROWS_DEVICE, np.sqrt(devices.largest_block() / (device_programs.COPIES * 8)))
    return int(min(rows, _ROWS_THAT_FAILED.get() // 2))


def retry_on_out_of_memory(work: Callable[[], T]) -> T:
    """Run `work`; if the device runs out of memory, run it again with at most half the rows in a matrix.

    Other processes may use the same GPU, so less memory may be available than reported.
    """
    try:
        return work()
    except jax.errors.JaxRuntimeError as error:
        most = max_exact_rows()
        if not devices.is_out_of_memory(error) or most < constants.FIRST_ROWS:
            raise
    message = f"out of memory for a matrix of {most} × {most} numbers: at most {most // 2} rows are fitted exactly"
    warnings.warn(message, UnlazyWarning, stacklevel=2)
    token = _ROWS_THAT_FAILED.set(most)
    try:
        return retry_on_out_of_memory(work)
    finally:
        _ROWS_THAT_FAILED.reset(token)


def successive_halving(
    candidates: Sequence[KernelCandidate], data: TrainingData, order: np.ndarray, options: SearchOptions, *,
    begin: Callable[[TrainingData], np.ndarray] | None = None, advance: ProgressCallback = lambda note: None,
    stages: Stages | None = None,
) -> HalvingResult:  # fmt: skip
    """Return the best candidate at the largest size.

    `order` is a permutation of the rows, the last of which validate. The result of each size is one of the `stages`.
    """
    stages = stages or Stages()
    n_validation = validation_rows(len(order))
    training, validation = data.rows(order[:-n_validation]), data.rows(order[-n_validation:])
    best: list[HalvingCandidate] = []
    sizes = list(stage_sizes(len(training.X)))
    for size in sizes:
        rows = training.rows(slice(size))
        if not best:
            start = None if begin is None else (lambda index, rows=rows: begin(rows.rows(index)))
            few = validation.rows(slice(constants.FIRST_VALIDATION_ROWS)) if devices.is_host() else validation
            search = Search(SingleSplit(rows, few, sizes[-1]), options, advance)
            with limit_threads_by_memory(PEAK_MATRICES * 8 * size**2), single_threaded_blas():
                best = stages("race", functools.partial(_first_stage, search, candidates, start, size))
            release_free_heap()  # return freed memory to the system: larger matrices do not fit into its fragments
            continue
        evidence, at_size = SingleSplit(rows, validation, sizes[-1]), list[HalvingCandidate]()
        with half_threaded_blas():
            for i, one in enumerate(best):
                leader = min(at_size, key=lambda c: c.error, default=None)
                there = functools.partial(_at_size, one, evidence, size, options, advance, leader)
                at_size.append(stages(f"{size} rows {i}", there))
        best = _keep_best(at_size, constants.KEEP_FACTOR)
        advance(f"{size} rows")
    return HalvingResult(best[0], validation, training)


def validation_rows(n: int) -> int:
    """Number of rows, out of n, that validate."""
    return min(constants.VALIDATION_ROWS, n // (5 if n < constants.TENTH_VALIDATION_ROWS else 10))


def compile_programs_ahead(candidates: Sequence[KernelCandidate], data: TrainingData, updates: bool) -> None:
    """Start to compile the programs of `successive_halving` and of the last fit on an accelerator."""
    if devices.is_host() or not any(device_programs.is_shared(candidate.kernel) for candidate in candidates):
        return
    (n, d), n_validation = data.X.shape, validation_rows(len(data.X))
    sizes = [size for size in stage_sizes(n - n_validation) if size > HOST_ROWS]
    if sizes:
        leaves = n > max_exact_rows()
        device_programs.compile_ahead(
            leaf_rows(n - n_validation, max_exact_rows()) if leaves else n, sizes, n_validation, d, data.Y.shape[1],
            weighted=data.weights is not None, leaves=leaves,
            gradient_rows=(GRADIENTS, ROTATION_ROWS) if updates else None,
        )  # fmt: skip


def fits_are_expensive(rows: int) -> bool:
    """Return whether fits to this number of rows are to be saved."""
    return devices.is_host() or rows >= constants.EXPENSIVE_ROWS_DEVICE


def stage_sizes(n: int) -> Iterator[int]:
    """Numbers of rows of the stages; the last is the largest that is useful or fits into memory."""
    if devices.is_host():
        first, most = (
            constants.FIRST_ROWS,
            int(min(constants.MAX_ROWS_HOST, np.sqrt(memory_budget() / (PEAK_MATRICES * 8)))),
        )
    else:
        first, most = constants.FIRST_ROWS_DEVICE, max_exact_rows()
        if n > most:  # the final fits, to leaves of all rows, update the metric further
            most = min(most, constants.MAX_ROWS_BEFORE_LEAVES)
    size, most = min(first, n), min(most, n)
    while size < most:
        yield size
        size = size * constants.SIZE_FACTOR if size * constants.SIZE_FACTOR * 1.5 < most else most
    yield size


def _first_stage(
    search: Search, candidates: Sequence[KernelCandidate], begin: InitialMetric | None, size: int
) -> list[HalvingCandidate]:
    """Search on the first rows; return the best candidate and those near it, with bandwidth and ridge."""
    found = []
    for run in search.run(candidates, begin):
        t = len(run.scored) - 1 if search.options.last else run.best
        found.append((run.errors[t], run, t))
    choices: list[HalvingCandidate] = []
    found.sort(key=lambda item: item[0])
    for error, run, t in found:
        if error <= constants.FIRST_KEEP_FACTOR * found[0][0] and all(not _same(c, run, t) for c in choices):
            scored = search.finalize(run, t)
            made = run.inherited_updates + t
            steps = tuple(run.steps[:made])
            choices.append(HalvingCandidate(run.candidate, run.metrics[t][0], run.power, scored, made, size, steps))
    return _keep_best(choices, constants.FIRST_KEEP_FACTOR)


def _same(choice: HalvingCandidate, run: MetricTrajectory, t: int) -> bool:
    """Return whether it has the same kernel and the same kind of metric."""
    one, other = choice.candidate, run.candidate
    return one.kernel is other.kernel and (
        one.metric == other.metric or choice.updates == run.inherited_updates + t == 0
    )


def _keep_best(choices: list[HalvingCandidate], within: float) -> list[HalvingCandidate]:
    """Keep the candidates near the best, the best first."""
    ranked = sorted(choices, key=lambda c: c.error)
    return [c for c in ranked if c.error <= within * ranked[0].error][: constants.MAX_CANDIDATES]


def _at_size(
    choice: HalvingCandidate, evidence: SingleSplit, size: int, options: SearchOptions, advance: ProgressCallback,
    leader: HalvingCandidate | None = None,
) -> HalvingCandidate:  # fmt: skip
    """Relearn the metric from these rows, update it further, and tune bandwidth and ridge.

    Stop after relearning if the rest, helping as much as it helped the `leader` at this size, would not beat the
    leader.
    """
    kernel, kind = choice.candidate
    views = evidence.views(kernel, [choice.metric])
    now = choice._replace(scored=evidence.score(views, choice.scored.place), rows=size)
    if choice.steps and size <= constants.RELEARN_ROWS:
        metrics = _relearned_metric(choice, evidence, options.rank)
        other = evidence.views(kernel, metrics)
        scored = evidence.score(other, choice.scored.place)
        if not evidence.significantly_worse(scored, now.scored):
            now, views = now._replace(metric=metrics[0], scored=scored), other
    now = now._replace(relearned_error=now.error)
    if (
        fits_are_expensive(size)
        and leader is not None
        and now.error * leader.gain > constants.WORTH_ANOTHER_UPDATE * leader.error
    ):
        return now
    if (
        not choice.updates and not options.last
    ):  # the plain kernel was best: one update tells whether a metric helps now
        tries = min(1, options.updates)
    else:
        tries = 0 if options.last or not options.updates else constants.UPDATES_PER_SIZE
    for _ in range(tries):
        step = RfmStep(kernel, now.scored.place[0], min(now.scored.place[1], constants.MAX_LEARNING_RIDGE), now.power)
        metrics = evidence.update_metrics(views, [now.metric], step, kind, options.rank)
        views = evidence.views(kernel, metrics)
        scored = evidence.score(views, now.scored.place)
        if evidence.significantly_worse(scored, now.scored):
            break
        paid = scored.error < now.error
        # if the difference is not significant, the metric learned from more rows is used, once
        now = now._replace(metric=metrics[0], scored=scored, updates=now.updates + 1)
        advance(type(kernel).__name__)
        if not paid:
            break
    now = _rotate_metric(now, evidence) if tries else now
    return tune(now, evidence, evidence.views(kernel, [now.metric]), options.relative_bandwidth, options.relative_ridge)


def _rotate_metric(choice: HalvingCandidate, evidence: SingleSplit) -> HalvingCandidate:
    """Rotate the directions of the metric as long as that helps on the validation rows.

    First the few directions that hold nearly all of the metric are rotated; if that does not help, all of them.
    """
    kernel, kind = choice.candidate
    for share in choice.rotations:
        now, M = choice, [choice.metric]
        for _ in range(constants.ROTATIONS_PER_SIZE):
            step = RfmStep(kernel, *now.scored.place, turn=share)
            M = evidence.update_metrics(evidence.views(kernel, M), M, step, kind, None)
            scored, before = evidence.score(evidence.views(kernel, M), now.scored.place), now.error
            if scored.error < before:
                now = now._replace(metric=M[0], scored=scored, updates=now.updates + 1, rotations=(share,))
            if not scored.error < constants.ROTATION_FACTOR * before:
                break
        if now is not choice:
            return now
    return choice._replace(rotations=())


def tune(
    choice: HalvingCandidate,
    evidence: SingleSplit,
    views: list[SplitView],
    bandwidth: float | None,
    ridge: float | None,
) -> HalvingCandidate:
    """Tune bandwidth and ridge of a candidate for these rows.

    On the host, and for many rows on an accelerator, they are tuned on half of the rows, for an eighth of the work, and
    used if they are better on all rows.
    """
    expensive = devices.is_host() or len(evidence.training.X) >= constants.HALVED_ROWS_DEVICE
    some, start = (_half_split(evidence), None) if expensive else (evidence, choice.error)
    kernel = choice.candidate.kernel
    at = views if some is evidence else some.views(kernel, [choice.metric])
    place, _ = coordinate_search(
        some.error_at(at), choice.scored.place, ridge=ridge is None, bandwidth=bandwidth is None, steps=(FINE_STEP,),
        worth=constants.SIZE_TUNING_GAIN, at_start=start,
    )  # fmt: skip
    if place == choice.scored.place:
        return choice
    scored = evidence.score(views, place)
    return choice._replace(scored=scored) if scored.error < choice.error else choice


def _half_split(evidence: SingleSplit) -> SingleSplit:
    """About half of the training rows; on an accelerator those of an earlier stage if possible: its program exists."""
    n = len(evidence.training.X)
    if devices.is_host():
        return evidence.subsample(slice(None, None, 2))
    size = constants.FIRST_ROWS_DEVICE
    while size < 0.45 * n:
        size *= constants.SIZE_FACTOR
    return evidence.subsample(slice(size if size <= 0.65 * n else n // 2))


def _relearned_metric(choice: HalvingCandidate, evidence: SingleSplit, rank: int | None) -> list[np.ndarray]:
    """Repeat the steps of the first stage from the start: directions that few rows missed may be found now."""
    kind = choice.candidate.metric
    metrics = evidence.isotropic_metrics(kind)
    for step in choice.steps:
        metrics = evidence.update_metrics(evidence.views(step.kernel, metrics), metrics, step, kind, rank)
        metrics = [prune_metric(M, step.floor) for M in metrics]
    return metrics
