"""The trials of a comparison, run by the lab: resumable, and parallel over processes or a Dask cluster.

First, all candidates are screened on few rows. Then the finalists (the best lazy, rich and outside models by errors
estimated on training rows) are run at the largest training size within the budget; then at smaller sizes, for a
learning curve, and on more splits. Expensive candidates are screened last, if time is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from unlazy.comparison.data.table import EncodedTable, held_out_count, save_table, split_rows
from unlazy.comparison.study.candidates import CANDIDATES, WIDE_TABLE, find_candidate
from unlazy.comparison.study.metrics import Metric, choose_metric
from unlazy.comparison.study.plan import MAX_SPLITS, MIN_SPLITS, TARGET_SPLITS, BudgetClock, StudyPlan
from unlazy.comparison.study.trial import run_trial
from unlazy.comparison.study.workers import start_workers
from unlazy.core.errors import UnlazyError
from unlazy.core.progress import ProgressOption
from unlazy.lab.experiment import Experiment, Records, config
from unlazy.lab.runner.engines import TrialEngine

CURVE_SIZES = 4
"""Maximum number of sizes of a learning curve; smaller ones are added as time allows, after the largest."""
SCREENING_ROWS = 400
"""Maximum number of rows on which all candidates are screened."""
MIN_TRAINING_ROWS = 30
MAX_TRAINING_ROWS = 4000
"""Largest training size with the default budget; it doubles each time the budget is multiplied by five."""
DEFAULT_BUDGET = 120.0
MAX_ROWS = 40_000
"""Larger tables are subsampled before the study."""
OUTSIDE_SHARE = 0.3
"""Maximum share of the time left after screening lazy and rich models for screening each outside model; one that takes
longer is abandoned."""
OPTIMISM = 1.5
"""Below the minimum number of splits, a split is started even if its predicted cost is this multiple of the remaining
time, because predictions are rough. Hopeless ones are not, because stopping them costs a worker."""
MAX_STEP = 4
"""Maximum factor from one size to the next, because costs are extrapolated from the last one."""
MIN_RARE_ROWS = 20
"""Screening uses enough rows to expect this many of the rarest class."""


@dataclass(frozen=True)
class Study:
    """A table, the names of the candidates, and the records of the trials."""

    table: EncodedTable
    candidates: tuple[str, ...]
    sizes: tuple[int, ...]
    splits: int
    records: Records
    budget: float
    notes: tuple[str, ...] = ()
    can_improve: bool = True
    """Whether a larger budget would allow more rows or more splits."""
    largest: bool = False
    """Whether no budget would allow a larger training size."""
    asked_metric: str | None = None
    """Name of the metric of the verdict; by default the one that fits the table."""

    @cached_property
    def metric(self) -> Metric:
        """The measure of error that the verdict is based on."""
        return choose_metric(self.table, self.asked_metric)

    @property
    def overlap(self) -> float:
        """Share of the rows in each test set, used by the variance correction for overlapping splits."""
        return held_out_count(self.table) / len(self.table)

    @cached_property
    def rarest(self) -> tuple[object, float]:
        """The rarest class and its share of the rows."""
        classes, counts = np.unique(self.table.y, return_counts=True)
        return classes[np.argmin(counts)], float(counts.min() / counts.sum())

    @property
    def rare(self) -> bool:
        """Whether models are evaluated by the average precision of the rarest class."""
        return self.metric.name == "average_precision"

    @property
    def risk_measure(self) -> str:
        """Key of the error that the verdict is based on, relative to a constant prediction."""
        return self.metric.measure

    @cached_property
    def measured(self) -> int:
        """Number of splits at the largest size for which the risk is known: a test set may have no row of a rare
        class."""
        last = self.records.where(n=self.sizes[-1])
        known = {r.params["split"] for r in last if not math.isnan(r.measures[self.risk_measure])}
        return len(known & set(range(self.splits)))

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """Candidates that have all splits at the largest size."""
        last = self.records.where(n=self.sizes[-1])
        done = {(r.params["candidate"], r.params["split"]) for r in last}
        return tuple(c for c in self.candidates if all((c, s) in done for s in range(self.splits)))


def run_study(
    table: EncodedTable, *, budget: float, store: str | Path, candidates: Sequence[str] = (),
    engine: str | TrialEngine = "local", progress: ProgressOption = False, seed: int = 0,
    clock: BudgetClock | None = None, fit: bool = False,
) -> Study:  # fmt: skip
    """Run the trials that are not stored yet; `fit` reserves time for a final fit to all rows."""
    names = _candidate_names(table, candidates)
    rows = len(table) if fit else 0
    table = subsample(table)
    digest = save_table(table, Path(store))
    clock = BudgetClock(budget) if clock is None else clock
    with start_workers(engine) as workers:
        plan = StudyPlan(experiment(store), digest, clock, store, workers, seed, progress, rows)
        climbed, finalists = _run_sizes(plan, table, names, budget)
        _extend_study(plan, climbed, finalists, names, smallest_size(table))
    climbed = sorted(climbed)
    while len(climbed) > 1 and plan.complete_splits(climbed[-1], finalists) < 2:
        climbed.pop()  # its splits did not finish in time
    splits = plan.complete_splits(climbed[-1], finalists)
    climbed = [n for n in climbed if plan.complete_splits(n, finalists) > 1 or n == climbed[-1]]
    if not splits:
        raise UnlazyError(f"no split finished within the budget of {budget:,g} s; increase --budget")
    sizes = training_sizes(table, budget)
    notes = _study_notes(table, names, climbed, sizes, splits, budget, plan.records)
    largest = climbed[-1] >= training_sizes(table, math.inf)[-1]
    more = not largest or splits < MAX_SPLITS
    return Study(table, names, tuple(climbed), splits, plan.records, budget, notes, more, largest)


def _candidate_names(table: EncodedTable, candidates: Sequence[str]) -> tuple[str, ...]:
    """Validate the names of the candidates; by default all that support the task."""
    names = tuple(find_candidate(name).name for name in candidates)
    for name in names:
        if table.task not in find_candidate(name).tasks:
            raise ValueError(
                f"{name} supports only {find_candidate(name).tasks[0]}, but the task is {table.task}; remove it from "
                "the models"
            )
    names = names or tuple(name for name, c in CANDIDATES.items() if table.task in c.tasks)
    for family in ("lazy", "rich"):
        if not any(find_candidate(name).family == family for name in names):
            known = ", ".join(name for name, c in CANDIDATES.items() if c.family == family)
            raise ValueError(
                f"a comparison needs at least one {family} model, got {', '.join(names)}; add one of {known}"
            )
    return names


def _run_sizes(
    plan: StudyPlan, table: EncodedTable, names: Sequence[str], budget: float
) -> tuple[list[int], list[str]]:
    """Screen the candidates, then run the finalists up to the largest affordable size; return sizes and finalists."""
    quick = [c for c in names if not CANDIDATES[c].expensive]
    early = quick if any(CANDIDATES[c].family == "rich" for c in quick) else list(names)
    sizes, first = training_sizes(table, budget), screening_rows(table, budget)
    plan.run(_one_per_family(early), [first], [0], must_finish=True)  # the minimum for an answer
    inside = [c for c in early if CANDIDATES[c].family != "outside"]
    plan.run(inside, [first], [0])
    plan.run(inside, [first], [1])
    outside, few = [c for c in early if c not in inside], 1 if table.frame.shape[1] > WIDE_TABLE else 2
    for name in outside:  # only references: the verdict does not need them
        if plan.fits_budget([name], [first], few, OUTSIDE_SHARE):
            plan.run([name], [first], range(few), share=OUTSIDE_SHARE)
    climbed, finalists = [first], plan.finalists(first, early)
    while climbed[-1] < sizes[-1]:
        last = climbed[-1]
        group = [finalists, plan.verdict_pair(last, finalists)]
        ways = [(n, names, wanted) for n in reversed([n for n in sizes if last < n <= MAX_STEP * last])
                for names, wanted in (
                    (group[0], TARGET_SPLITS), (group[0], MIN_SPLITS), (group[1], MIN_SPLITS)
                )]  # fmt: skip
        way = next((way for way in ways if plan.fits_budget(way[1], [way[0]], way[2])), None)
        if way is None:
            break
        n, finalists, wanted = way
        # if there is time for the minimum only, start two splits at once: one alone is not informative
        plan.run(finalists, [n], range(2 if wanted == MIN_SPLITS else plan.splits_at_once(finalists, n)))
        climbed.append(n)
        if not plan.complete_splits(n, finalists):
            break
    plan.run(finalists, climbed[-1:], [0, 1])
    return climbed, finalists


def _one_per_family(names: Sequence[str]) -> list[str]:
    """One lazy and one rich model."""
    lazy = [c for c in names if CANDIDATES[c].family == "lazy"]
    return ["gaussian" if "gaussian" in lazy else lazy[0], next(c for c in names if CANDIDATES[c].family == "rich")]


def _extend_study(plan: StudyPlan, climbed: list[int], finalists: list[str], names: Sequence[str], least: int) -> None:
    """Run more splits of the largest size, expensive candidates, smaller sizes and still more splits, as time
    allows."""
    top, splits = climbed[-1], 2
    splits = _more_splits(plan, finalists, top, splits, min(TARGET_SPLITS, MAX_SPLITS))
    for name in (c for c in plan.finalists(climbed[0], names) if c not in finalists):  # those skipped for lack of time
        if plan.fits_budget([name], [top], splits):
            plan.run([name], [top], range(splits))
            if plan.complete_splits(top, [name]) >= splits:
                finalists.append(name)
    late = [c for c in names if not any(r.params["candidate"] == c for r in plan.records)]
    if plan.clock.remaining(plan.final_fit_seconds()) > 0.3 * plan.clock.budget:
        _try_expensive(plan, climbed[0], top, finalists, late, splits)
    curve = [top >> k for k in range(1, CURVE_SIZES) if top >> k >= least]
    for n in curve:
        wanted = min(max(splits, MIN_SPLITS), TARGET_SPLITS)  # the variance of these is used if the largest has too few
        if n not in climbed and plan.fits_budget(finalists, [n], wanted):
            plan.run(finalists, [n], range(wanted))
            climbed.append(n)
        elif n in climbed and plan.fits_budget(finalists, [n], wanted - 2):
            plan.run(finalists, [n], range(wanted))
    _more_splits(plan, finalists, top, splits, MAX_SPLITS)


def _more_splits(plan: StudyPlan, finalists: list[str], top: int, splits: int, most: int) -> int:
    """Run more splits of the largest size as time allows, two at a time so that workers do not wait for one long trial;
    return the number of splits."""
    while splits < most and plan.fits_budget(finalists, [top], 1, OPTIMISM if splits < MIN_SPLITS else 1.0):
        more = 2 if splits + 2 <= most and plan.fits_budget(finalists, [top], 2) else 1
        plan.run(finalists, [top], range(splits, splits + more))
        splits += more
    return splits


def _try_expensive(plan: StudyPlan, first: int, top: int, finalists: list[str], late: list[str], splits: int) -> None:
    """Screen expensive candidates; one that is the best of its family is run at the largest size."""
    plan.run(late, [first], [0, 1])
    for name in late:
        family = [c for c in finalists if CANDIDATES[c].family == CANDIDATES[name].family]
        best = plan.ranking(first, [*family, name])[:1]
        if best == [name] and plan.fits_budget([name], [top], splits):
            plan.run([name], [top], range(splits))
            if plan.complete_splits(top, [name]) >= splits:
                finalists.append(name)


def experiment(store: str | Path) -> Experiment:
    """The study as an experiment of the lab; the digest of the table is one of its parameters."""
    plan = config({}, seeds=1)
    return Experiment(
        name="compare", source="general", tags=("D11",), quick=plan, full=plan,
        question="Does feature learning pay on this table?",
        prediction="It does where the target depends on few directions.",
        protocol="Random splits, nested training sizes, everything chosen on training rows.",
        verdict="The interval of the ratio of risks, paired over splits.",
        trial=partial(run_trial, folder=str(Path(store).resolve())), claims=_nothing, figure=_no_figure,
        vectorized=False, version=13,
    )  # fmt: skip


def training_sizes(table: EncodedTable, budget: float = DEFAULT_BUDGET) -> list[int]:
    """Training sizes in increasing order: the largest and its successive halves."""
    most = MAX_TRAINING_ROWS
    while budget >= 5 * DEFAULT_BUDGET and most < 4 * MAX_TRAINING_ROWS:
        most, budget = 2 * most, budget / 5
    top = min(most, available_rows(table))
    sizes = [top >> k for k in range(top.bit_length())]
    return sorted({n for n in sizes if n >= smallest_size(table)} or {top})


def available_rows(table: EncodedTable) -> int:
    """Number of training rows that all splits have."""
    alone = not len(table.time) and int(table.groups.max(initial=0)) + 1 == len(table)
    return min(len(split_rows(table, s)[0]) for s in range(1 if alone else MAX_SPLITS))


def screening_rows(table: EncodedTable, budget: float = DEFAULT_BUDGET) -> int:
    """Number of rows for screening: few, but enough for the rarest class if there are not many columns, because the
    first trials are run whatever they cost."""
    sizes, wanted = training_sizes(table, budget), SCREENING_ROWS
    if table.task == "classification" and table.frame.shape[1] <= WIDE_TABLE:
        rarest = float(np.unique(table.y, return_counts=True)[1].min()) / len(table)
        wanted = max(SCREENING_ROWS, min(5 * SCREENING_ROWS, round(MIN_RARE_ROWS / rarest)))
    return max([n for n in sizes if n <= wanted], default=sizes[0])


def smallest_size(table: EncodedTable) -> int:
    """Smallest training size."""
    return max(MIN_TRAINING_ROWS, 3 * len(np.unique(table.y)) if table.task == "classification" else 0)


def subsample(table: EncodedTable) -> EncodedTable:
    """A random sample of at most MAX_ROWS rows."""
    if len(table) <= MAX_ROWS:
        return table
    rows = np.sort(np.random.default_rng(0).permutation(len(table))[:MAX_ROWS])
    return table.rows(rows, f"the comparison uses a random sample of {MAX_ROWS:,} of {len(table):,} rows")


def _study_notes(
    table: EncodedTable, names: Sequence[str], climbed: list[int], sizes: list[int], splits: int, budget: float,
    records: Records,
) -> tuple[str, ...]:  # fmt: skip
    """Notes on limits set by the budget, and on failed trials."""
    notes, failed = [], records.failed
    begun = {one.params["candidate"] for one in (*records, *failed)}
    untried = [CANDIDATES[name].title for name in names if name not in begun]
    if untried:
        notes.append(
            f"the budget allowed trials of {len(names) - len(untried)} of {len(names)} models; not tried: "
            f"{', '.join(untried)}"
        )
    if climbed[-1] < sizes[-1]:
        notes.append(
            f"the budget of {budget:,g} s limited training to {climbed[-1]:,} of "
            f"{available_rows(table):,} rows; a larger --budget would use more"
        )
    if splits < TARGET_SPLITS:
        few = "one split only, so there are no intervals; a larger --budget would run more" if splits == 1 else \
            f"{splits} splits only; more would narrow the intervals"  # fmt: skip
        notes.append(f"the budget allowed {few}")
    if failed:
        who = ", ".join(sorted({find_candidate(f.params["candidate"]).title for f in failed}))
        notes.append(f"{len(failed)} failed trials are ignored: {who}")
    return tuple(notes)


def _nothing(records: Records) -> list:
    return []


def _no_figure(records: Records):  # type: ignore[no-untyped-def]
    raise UnlazyError("a comparison has its own page; run unlazy compare")
