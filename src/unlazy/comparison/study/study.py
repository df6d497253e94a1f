"""All trials, run by the lab, so that a killed run goes on where it stopped and the trials spread over processes or a
dask cluster.

A short look at all contestants on few rows; then the best lazy models, the best rich one and the best outsider, by
errors estimated on training rows, at the largest size that the budget reaches; then smaller sizes, for a curve, and
more splits. Costly contestants are looked at last, if time is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from unlazy.comparison.data.table import Table, held_out_rows, save_table, split
from unlazy.comparison.study.contestants import CONTESTANTS, WIDE, find
from unlazy.comparison.study.plan import FEWEST, MOST, WANTED, Clock, Plan
from unlazy.comparison.study.trial import run_trial
from unlazy.comparison.study.workers import begun
from unlazy.core.errors import UnlazyError
from unlazy.lab.experiment import Experiment, Records, config
from unlazy.lab.runner.engines import Engine

CURVE = 4
"""Sizes of a learning curve: smaller ones are added as far as time allows, once the largest has its splits."""
LOOK = 400
"""Rows, at most, of the look at all contestants."""
SMALLEST = 30
LARGEST = 4000
"""Rows of the largest training size; twice as many where a budget is five times the usual one, and so on."""
USUAL = 120.0
MOST_ROWS = 40_000
"""Rows beyond this are sampled before the study: what a budget can train on is less."""
OUTSIDE = 0.3
"""Share of what is left after the look at lazy and rich models that a look at the others may take before the climb."""
HOPE = 1.5
"""Splits below the fewest are begun where they would take up to so many times what is left: prices are guesses. What is
hopeless is not, since stopping it costs a worker."""
STEP = 4
"""From a size to the next at most: what a larger one costs is read off the last."""
SEEN = 20
"""Rows of the rarest class that the look wants."""
RARE = 0.1
"""Share of the rows below which a class is rare: mistakes and squared errors hardly see it, ranks do."""


@dataclass(frozen=True)
class Study:
    """A table, who takes part, and the records of the trials."""

    table: Table
    contestants: tuple[str, ...]
    sizes: tuple[int, ...]
    splits: int
    records: Records
    budget: float
    notes: tuple[str, ...] = ()
    more: bool = True
    """Whether a larger budget would go further: to more rows, or to more splits."""

    @property
    def overlap(self) -> float:
        """Share of all rows that a split tests on, as the variance correction over splits needs it."""
        return held_out_rows(self.table) / len(self.table)

    @cached_property
    def rarest(self) -> tuple[Any, float]:
        """The smallest class and its share of the rows."""
        classes, counts = np.unique(self.table.y, return_counts=True)
        return classes[np.argmin(counts)], float(counts.min() / counts.sum())

    @property
    def rare(self) -> bool:
        """Whether a class is so rare that ranks judge: 1 - average precision in place of the squared error."""
        return self.table.task == "classification" and self.rarest[1] < RARE

    @property
    def judged_by(self) -> str:
        """The measure that the verdict goes by, in units of a constant's."""
        return "missed" if self.rare else "risk"

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """Contestants that have every split at the largest size."""
        last = self.records.where(n=self.sizes[-1])
        done = {(r.params["contestant"], r.params["split"]) for r in last}
        return tuple(c for c in self.contestants if all((c, s) in done for s in range(self.splits)))


def run_study(
    table: Table, *, budget: float, store: str | Path, contestants: Sequence[str] = (), jobs: int | None = None,
    engine: str | Engine = "local", address: str | None = None, progress: bool = True, seed: int = 0,
    clock: Clock | None = None, fit: bool = False,
) -> Study:  # fmt: skip
    """Run what is not stored yet; `fit` keeps time for a last fit to all rows."""
    names = _taking_part(table, contestants)
    rows = len(table) if fit else 0
    table = sampled(table)
    digest = save_table(table, Path(store))
    clock = Clock(budget) if clock is None else clock
    with begun(engine, jobs, address) as workers:
        plan = Plan(experiment(store), digest, clock, store, workers, seed, progress, rows)
        climbed, finalists = _climb(plan, table, names, budget)
        _widen(plan, climbed, finalists, names, smallest(table))
    climbed = sorted(climbed)
    while len(climbed) > 1 and plan.complete(climbed[-1], finalists) < 2:
        climbed.pop()  # its splits did not end in time
    splits = plan.complete(climbed[-1], finalists)
    climbed = [n for n in climbed if plan.complete(n, finalists) > 1 or n == climbed[-1]]
    if not splits:
        raise UnlazyError(f"no split ended within {budget:g} s; give a larger --budget")
    sizes = ladder(table, budget)
    notes = _remarks(table, climbed, sizes, splits, budget, plan.records.failed)
    more = climbed[-1] < sizes[-1] or splits < MOST
    return Study(table, names, tuple(climbed), splits, plan.records, budget, notes, more)


def _taking_part(table: Table, contestants: Sequence[str]) -> tuple[str, ...]:
    names = tuple(find(name).name for name in contestants)
    for name in names:
        if table.task not in find(name).tasks:
            raise ValueError(f"{name} is for {find(name).tasks[0]} alone, and this is a {table.task}; leave it out")
    names = names or tuple(name for name, c in CONTESTANTS.items() if table.task in c.tasks)
    for family in ("lazy", "rich"):
        if not any(find(name).family == family for name in names):
            known = ", ".join(name for name, c in CONTESTANTS.items() if c.family == family)
            raise ValueError(f"a comparison needs a {family} model among {', '.join(names)}; add one of {known}")
    return names


def _climb(plan: Plan, table: Table, names: Sequence[str], budget: float) -> tuple[list[int], list[str]]:
    """The look, then the finalists at the largest size that their splits reach; sizes that were run, and finalists."""
    quick = [c for c in names if not CONTESTANTS[c].costly]
    early = quick if any(CONTESTANTS[c].family == "rich" for c in quick) else list(names)
    sizes, first = ladder(table, budget), look(table, budget)
    plan.run(_least(early), [first], [0], surely=True)  # without these there is no answer
    inside = [c for c in early if CONTESTANTS[c].family != "outside"]
    plan.run(inside, [first], [0])
    plan.run(inside, [first], [1])
    outside, few = [c for c in early if c not in inside], 1 if table.frame.shape[1] > WIDE else 2
    if plan.affords(outside, [first], few, OUTSIDE):  # references: the verdict does without, and rows come first
        plan.run(outside, [first], range(few))
    climbed, finalists = [first], plan.finalists(first, early)
    while climbed[-1] < sizes[-1]:
        last = climbed[-1]
        group = [finalists, plan.core(last, finalists)]
        ways = [(n, names, wanted) for n in reversed([n for n in sizes if last < n <= STEP * last])
                for names, wanted in ((group[0], WANTED), (group[0], FEWEST), (group[1], FEWEST))]  # fmt: skip
        way = next((way for way in ways if plan.affords(way[1], [way[0]], way[2])), None)
        if way is None:
            break
        n, finalists, wanted = way
        # where the fewest are all that time has room for, both begin: one alone says nothing
        plan.run(finalists, [n], range(2 if wanted == FEWEST else plan.splits_at_once(finalists, n)))
        climbed.append(n)
        if not plan.complete(n, finalists):
            break
    plan.run(finalists, climbed[-1:], [0, 1])
    return climbed, finalists


def _least(names: Sequence[str]) -> list[str]:
    """One model of each family that is compared."""
    lazy = [c for c in names if CONTESTANTS[c].family == "lazy"]
    return ["gaussian" if "gaussian" in lazy else lazy[0], next(c for c in names if CONTESTANTS[c].family == "rich")]


def _widen(plan: Plan, climbed: list[int], finalists: list[str], names: Sequence[str], least: int) -> None:
    """More splits of the largest size, costly contestants, a curve, still more splits, as time allows."""
    top, splits = climbed[-1], 2
    splits = _more_splits(plan, finalists, top, splits, min(WANTED, MOST))
    for name in (c for c in plan.finalists(climbed[0], names) if c not in finalists):  # those that time had left behind
        if plan.affords([name], [top], splits):
            plan.run([name], [top], range(splits))
            if plan.complete(top, [name]) >= splits:
                finalists.append(name)
    late = [c for c in names if not any(r.params["contestant"] == c for r in plan.records)]
    if plan.clock.left(plan.last_fit()) > 0.3 * plan.clock.budget:
        _costly(plan, climbed[0], top, finalists, late, splits)
    curve = [top >> k for k in range(1, CURVE) if top >> k >= least]
    for n in curve:
        wanted = min(max(splits, FEWEST), WANTED)  # where the largest size has too few, the spread is theirs
        if n not in climbed and plan.affords(finalists, [n], wanted):
            plan.run(finalists, [n], range(wanted))
            climbed.append(n)
        elif n in climbed and plan.affords(finalists, [n], wanted - 2):
            plan.run(finalists, [n], range(wanted))
    _more_splits(plan, finalists, top, splits, MOST)


def _more_splits(plan: Plan, finalists: list[str], top: int, splits: int, most: int) -> int:
    """Splits of the largest size as time allows, by twos, so that no worker waits for the other's long trial; how many
    there are then."""
    while splits < most and plan.affords(finalists, [top], 1, HOPE if splits < FEWEST else 1.0):
        more = 2 if splits + 2 <= most and plan.affords(finalists, [top], 2) else 1
        plan.run(finalists, [top], range(splits, splits + more))
        splits += more
    return splits


def _costly(plan: Plan, first: int, top: int, finalists: list[str], late: list[str], splits: int) -> None:
    """A look at them; one that comes near the best of its family goes on to the largest size."""
    plan.run(late, [first], [0, 1])
    for name in late:
        family = [c for c in finalists if CONTESTANTS[c].family == CONTESTANTS[name].family]
        best = plan.ranking(first, [*family, name])[:1]
        if best == [name] and plan.affords([name], [top], splits):
            plan.run([name], [top], range(splits))
            if plan.complete(top, [name]) >= splits:
                finalists.append(name)


def experiment(store: str | Path) -> Experiment:
    """The study as the lab knows it; the table's digest is among the parameters."""
    plan = config({}, seeds=1)
    return Experiment(
        name="compare", source="general", tags=("D11",), quick=plan, full=plan,
        question="Does feature learning pay on this table?",
        prediction="It does where the target depends on few directions.",
        protocol="Random splits, nested training sizes, everything chosen on training rows.",
        verdict="The interval of the ratio of risks, paired over splits.",
        trial=partial(run_trial, folder=str(Path(store).resolve())), claims=_nothing, figure=_no_figure,
        vectorized=False, version=11,
    )  # fmt: skip


def ladder(table: Table, budget: float = USUAL) -> list[int]:
    """Training sizes, smallest first: halves of the largest."""
    most = LARGEST
    while budget >= 5 * USUAL and most < 4 * LARGEST:
        most, budget = 2 * most, budget / 5
    alone = not len(table.time) and int(table.groups.max(initial=0)) + 1 == len(table)
    top = min(most, *(len(split(table, s)[0]) for s in range(1 if alone else MOST)))
    sizes = [top >> k for k in range(top.bit_length())]
    return sorted({n for n in sizes if n >= smallest(table)} or {top})


def look(table: Table, budget: float = USUAL) -> int:
    """Rows on which all contestants are looked at: few, but enough to see the rarest class, where columns are not many:
    the first trials are run whatever they take."""
    sizes, wanted = ladder(table, budget), LOOK
    if table.task == "classification" and table.frame.shape[1] <= WIDE:
        rarest = float(np.unique(table.y, return_counts=True)[1].min()) / len(table)
        wanted = max(LOOK, min(5 * LOOK, round(SEEN / rarest)))
    return max([n for n in sizes if n <= wanted], default=sizes[0])


def smallest(table: Table) -> int:
    """Rows below which nothing is trained."""
    return max(SMALLEST, 3 * len(np.unique(table.y)) if table.task == "classification" else 0)


def sampled(table: Table) -> Table:
    """At most MOST_ROWS rows, drawn at random."""
    if len(table) <= MOST_ROWS:
        return table
    rows = np.sort(np.random.default_rng(0).permutation(len(table))[:MOST_ROWS])
    return table.rows(rows, f"{MOST_ROWS} of {len(table)} rows, drawn at random, take part in the comparison")


def _remarks(
    table: Table, climbed: list[int], sizes: list[int], splits: int, budget: float, failed: Sequence
) -> tuple[str, ...]:
    notes = []
    if climbed[-1] < sizes[-1]:
        notes.append(
            f"the budget of {budget:g} s ends the training sizes at {climbed[-1]} of "
            f"{len(table) - held_out_rows(table)} rows; a larger --budget goes further"
        )
    if splits < WANTED:
        few = "one split, which has no interval; a larger --budget runs more" if splits == 1 else \
            f"{splits} splits; more would narrow the intervals"  # fmt: skip
        notes.append(f"the budget left time for {few}")
    if failed:
        who = ", ".join(sorted({find(f.params["contestant"]).title for f in failed}))
        notes.append(f"{len(failed)} trials failed and are left out: {who}")
    return tuple(notes)


def _nothing(records: Records) -> list:
    return []


def _no_figure(records: Records):  # type: ignore[no-untyped-def]
    raise UnlazyError("a comparison draws its own page: unlazy compare")
