"""All trials: contestants × nested training sizes × splits, run by the lab, so that a killed run goes on where it
stopped and the trials spread over processes or a dask cluster.

The budget decides how far the sizes go and how many splits there are: two splits climb the ladder of sizes for as long
as the work they recorded (seconds of processor time, which on an idle machine are those of the clock) says that the
other splits would still fit. Records decide, not the clock, so a resumed run takes the same decisions.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from unlazy import lab
from unlazy.comparison.contestants import CONTESTANTS, find
from unlazy.comparison.table import Table, held_out_rows, save_table, split
from unlazy.comparison.trial import run_trial
from unlazy.core.errors import UnlazyError
from unlazy.core.experiment import Config, Experiment, Records, config
from unlazy.lab.engines import Engine

CURVE = 4
"""Sizes of a learning curve: smaller ones are added as far as time allows, once the largest has its splits."""
FIRST = 4
"""Rows of the first size for every second of work that the budget buys: about a tenth of it, by experience."""
SMALLEST = 30
LARGEST = 6000
MOST_ROWS = 40_000
"""Rows beyond this are sampled before the study: what a budget can train on is less."""
WANTED, FEWEST, MOST = 5, 3, 10
"""Splits that sizes are planned for; that an interval needs; that are run where time is left."""
GROWTH = 2.4
"""What twice the rows cost at most: between square and cubic."""
SHARE = 0.85
"""Of the budget, for trials; the rest is for starting, the last fit and the page."""
START = 8.0
"""Seconds until workers have loaded what they need."""


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

    @property
    def overlap(self) -> float:
        """Share of all rows that a split tests on, as the variance correction over splits needs it."""
        return held_out_rows(self.table) / len(self.table)


def run_study(
    table: Table, *, budget: float, store: str | Path, contestants: Sequence[str] = (), jobs: int | None = None,
    engine: str | Engine = "local", address: str | None = None, progress: bool = True,
) -> Study:  # fmt: skip
    """Run what is not stored yet."""
    names = tuple(find(name).name for name in contestants) or tuple(CONTESTANTS)
    for family in ("lazy", "rich"):
        if not any(find(name).family == family for name in names):
            known = ", ".join(name for name, c in CONTESTANTS.items() if c.family == family)
            raise ValueError(f"a comparison needs a {family} model among {', '.join(names)}; add one of {known}")
    table = sampled(table)
    digest = save_table(table, Path(store))
    study = experiment(store)
    workers = lab.open_engine(engine, jobs, address) if isinstance(engine, str) else engine
    plan = _Plan(study, names, digest, budget, getattr(workers, "jobs", None) or jobs or 1)
    try:
        sizes = ladder(table)
        climbed: list[int] = []
        for n in plan.from_first(sizes):
            if climbed and not plan.affords_size(climbed, n):
                break
            plan.run([n], (0, 1), store, workers, progress)
            climbed.append(n)
        splits = 2
        while splits < min(WANTED, MOST) and plan.affords_split(splits):
            plan.run(climbed, (splits,), store, workers, progress)
            splits += 1
        while len(climbed) < CURVE and climbed[0] // 2 >= smallest(table) and plan.affords_smaller(climbed[0]):
            climbed.insert(0, climbed[0] // 2)
            plan.run(climbed[:1], range(splits), store, workers, progress)
        while splits < MOST and plan.affords_split(splits):
            plan.run(climbed, (splits,), store, workers, progress)
            splits += 1
    finally:
        if isinstance(engine, str):
            workers.close()
    notes = _remarks(table, climbed, sizes, splits, budget, plan.records.failed)
    return Study(table, names, tuple(climbed), splits, plan.records, budget, notes)


class _Plan:
    """Records so far, and what the next step would cost by them."""

    def __init__(self, study: Experiment, names: tuple[str, ...], digest: str, budget: float, jobs: int):
        self.study, self.names, self.digest, self.budget, self.jobs = study, names, digest, budget, jobs
        self.records = Records()

    def run(
        self, sizes: Sequence[int], splits: Sequence[int], store: str | Path, workers: Engine, progress: bool
    ) -> None:
        """The trials of these splits at these sizes; the slow ones first, so that workers end together."""
        with warnings.catch_warnings():
            # joblib replaces a worker that compiled programs made large; nothing is lost
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
            shown = progress and f"{_stage(sizes, splits):32s}"
            found = lab.run(self.study, self._config(sizes, splits), store=store, engine=workers, progress=shown)
        self.records = Records([*self.records, *found], [*self.records.failed, *found.failed])

    def from_first(self, sizes: list[int]) -> list[int]:
        """Sizes from the first one on: the largest that surely costs little of the budget."""
        return sizes[max(0, sum(n <= FIRST * self._worth for n in sizes) - 1) :]

    def affords_size(self, climbed: list[int], n: int) -> bool:
        """Whether every split could go up to n, by what the sizes so far took once programs were compiled."""
        top = self._steady(climbed[-1:])
        rise = (GROWTH if n > 300 else 2.0) ** math.log2(n / climbed[-1])
        left = (WANTED - 2) * self._steady(climbed) + WANTED * rise * top
        return bool(self._spent(climbed) + self._spent(climbed[-1:]) - 2 * top + left <= self._worth)

    def affords_smaller(self, n: int) -> bool:
        """Whether a curve that has few sizes can have one more, half of n, for every split so far."""
        return self._spent(self.records.values("n")) + 0.6 * self._spent([n]) <= self._worth

    def affords_split(self, done: int) -> bool:
        """Whether one more split fits."""
        sizes = self.records.values("n")
        return done < FEWEST or self._spent(sizes) + self._steady(sizes) <= self._worth

    @property
    def _worth(self) -> float:
        """Seconds of work that the budget buys."""
        return (SHARE * self.budget - START) * self.jobs

    def _spent(self, sizes: Sequence[int]) -> float:
        return sum(r.measures["work"] for r in self.records if r.params["n"] in sizes)

    def _steady(self, sizes: Sequence[int]) -> float:
        """Work of one split at these sizes: the (lower) median over splits, since the first of a size compiles."""
        work: dict[tuple, list[float]] = {}
        for r in self.records:
            if r.params["n"] in sizes:
                work.setdefault((r.params["n"], r.params["contestant"]), []).append(r.measures["work"])
        return sum(sorted(found)[(len(found) - 1) // 2] for found in work.values())

    def _config(self, sizes: Sequence[int], splits: Sequence[int]) -> Config:
        names = sorted(self.names, key=lambda name: name not in _SLOW)
        grid: dict[str, list] = {"n": sorted(sizes, reverse=True), "contestant": names, "split": list(splits)}
        share = round(self.budget / 120, 3)  # of one trial, for settings beyond the first
        return config(grid, seeds=1, table=self.digest, seconds=share)


def _stage(sizes: Sequence[int], splits: Sequence[int]) -> str:
    """What a bar of progress is about."""
    few = f"split {splits[0] + 1}" if len(splits) == 1 else f"splits 1 to {len(splits)}"
    return f"{sizes[0]} rows, {few}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} rows, {few}"


_SLOW = ("feature_machine", "network", "one_step", "forest")


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
        vectorised=False, version=6,
    )  # fmt: skip


def ladder(table: Table) -> list[int]:
    """Training sizes, smallest first: halves of the largest."""
    top = min(LARGEST, len(split(table, 0)[0]))
    sizes = [top >> k for k in range(top.bit_length())]
    return sorted({n for n in sizes if n >= smallest(table)} or {top})


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
        notes.append(f"the budget left time for {splits} splits; more would narrow the intervals")
    if failed:
        who = ", ".join(sorted({find(f.params["contestant"]).title for f in failed}))
        notes.append(f"{len(failed)} trials failed and are left out: {who}")
    return tuple(notes)


def parse_budget(text: str | float) -> float:
    """Seconds from '90s', '2m', '1h' or a number of seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    cleaned = str(text).strip().lower()
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned[-1:] in units else (cleaned, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"a budget looks like '90s', '2m' or '1h', got {text!r}")
    return seconds


def _nothing(records: Records) -> list:
    return []


def _no_figure(records: Records):  # type: ignore[no-untyped-def]
    raise UnlazyError("a comparison draws its own page: unlazy compare")
