"""What a study may still begin: records so far, what the next step would cost by them, and the clock.

A budget is seconds of the clock from the moment a user asked. Stored trials count as if they had been run now, so that
a run that was stopped takes the same decisions again; a trial that would end after the last moment is given up.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unlazy import lab
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.trial import LONG
from unlazy.lab.experiment import Config, Experiment, Records, config
from unlazy.lab.runner.engines import Engine

GROWTH = 1.3
"""Power of the rows in what a trial costs, by experience: searches see some of them, factorizations are not all."""
MEASURABLE = 0.3
"""Seconds of work above which two sizes tell how a contestant's cost grows."""
FLATTEST, STEEPEST, STEEPEST_RICH = 1.0, 2.5, 1.1
"""Between these such a power is believed. A feature machine looks at some of the rows first: from 500 to 4,000 rows of
20 columns its work grew by powers of 0.8 to 1.1, whatever fewer rows say."""
PAGE, PAGE_SHARE = 7.0, 0.2
"""Seconds of work for the page, the answer and leaving; at most this share of a budget."""
LAW, LAW_SHARE = 6.0, 0.08
"""The same for what twice the rows would bring."""
FIT_SHARE = 0.2
"""Of a budget, at most, for the last fit."""
SURELY_LATE = 2.0
"""A fit that is guessed to take so many times what it may is not begun: two threads may halve it, no more."""
SAME = 1.2
"""Times whose ratio is at most this are as good as equal."""
WANTED, FEWEST, MOST = 5, 3, 10
"""Splits that sizes are planned for; that an interval needs; that are run where time is left."""
LAZY, LAZIEST, NEAR = 2, 4, 1.25
"""Lazy models that go on to more rows: the best two, and up to four whose error is within this factor of the best; two
splits do not tell such apart."""


class Clock:
    """Seconds since a user asked, and those that a budget has left."""

    def __init__(self, budget: float, began: float | None = None, page: bool = True):
        self.began = time.monotonic() if began is None else began
        self.budget = budget
        self.page = page
        self.slow = 1.0
        """Seconds of the clock for one of work, as far as trials have told."""
        self._stored = 0.0

    def part(self, share: float) -> "Clock":
        """The first part of the time, with no page at its end."""
        return Clock(share * self.budget, self.began, page=False)

    def charge(self, seconds: float) -> None:
        """Count stored trials as if they had been run."""
        self._stored += seconds

    @property
    def reserve(self) -> float:
        """Seconds for page and answer."""
        return min(self.slow * PAGE, PAGE_SHARE * self.budget) if self.page else 0.0

    def left(self, reserved: float = 0.0) -> float:
        """Seconds for trials, when page, answer and so much more are done."""
        return self.budget - (time.monotonic() - self.began) - self._stored - self.reserve - reserved

    def until(self, reserved: float = 0.0) -> float:
        """The moment (time.monotonic) at which trials must have ended."""
        return self.began + self.budget - self.reserve - reserved


@dataclass
class Plan:
    """Trials that were run, and the price of others."""

    study: Experiment
    digest: str
    clock: Clock
    store: str | Path
    workers: Engine
    draw: int = 0
    progress: bool = True
    rows: int = 0
    """Of the table, for the last fit; 0 where there is none."""
    records: Records = field(default_factory=Records)

    def run(self, names: Sequence[str], sizes: Sequence[int], splits: Sequence[int], surely: bool = False) -> None:
        """Trials of these contestants; the slow ones first, so that workers end together. Those that have not ended in
        time are given up, unless `surely`."""
        if not (names and sizes and splits):
            return
        began = time.monotonic()
        self.workers.until = None if surely else self.clock.until(self.last_fit())  # type: ignore[attr-defined]
        try:
            with warnings.catch_warnings():
                # joblib replaces a worker that compiled programs made large; nothing is lost
                warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
                late = not surely and self.clock.until(self.last_fit()) <= began  # what is stored is read even then
                shown = self.progress and not late and f"{_stage(sizes, splits):32s}"
                found = lab.run(
                    self.study, self._config(names, sizes, splits), store=self.store, engine=self.workers,
                    progress=shown,
                )  # fmt: skip
        finally:
            self.workers.until = None  # type: ignore[attr-defined]
        known = {_key(r) for r in self.records}
        fresh = [r for r in found if _key(r) not in known]
        self.records = Records([*self.records, *fresh], [*self.records.failed, *found.failed])
        self.clock.slow = self._slow
        self.clock.charge(max(0.0, sum(r.seconds for r in fresh) / self.jobs - (time.monotonic() - began)))

    @property
    def jobs(self) -> int:
        return getattr(self.workers, "jobs", None) or 1

    def affords(self, names: Sequence[str], sizes: Sequence[int], splits: int, stretch: float = 1.0) -> bool:
        """Whether so many splits of these contestants at each of these sizes would end in what is left, or in `stretch`
        times that. Workers share the trials, but not one of them; a contestant that was not tried may take as long as
        the dearest that was."""
        known = {r.params["contestant"] for r in self.records}
        dearest = {n: max((self.price(name, n) for name in known), default=0.0) for n in sizes}
        works = [self.price(name, n) if name in known else dearest[n] for name in names for n in sizes]
        longest = max([splits * sum(works) / self.jobs, *works])
        return self._slow * longest <= stretch * self.clock.left(self.last_fit(max(sizes, default=None)))

    def splits_at_once(self, names: Sequence[str], n: int) -> int:
        """Splits that end as soon as the first of them would alone: two where one long trial leaves others idle."""
        works = [self.price(name, n) for name in names]
        return 2 if self.jobs > 1 and 2 * sum(works) / self.jobs <= SAME * max(works) else 1

    def price(self, name: str, n: int) -> float:
        """Seconds of work of one trial, by the nearest size that was run; the lower median over splits, since the first
        of a size compiles."""
        work: dict[int, list[float]] = {}
        for r in self.records.where(contestant=name):
            work.setdefault(r.params["n"], []).append(r.measures["work"])
        if not work:
            return 0.0
        steady = {m: sorted(found)[(len(found) - 1) // 2] for m, found in work.items()}
        near = min(steady, key=lambda m: abs(math.log(m / n)))
        steepest = STEEPEST_RICH if name == "feature_machine" else STEEPEST
        return float(steady[near] * (n / near) ** (self._growth(steady, near, steepest) if n > near else 1.0))

    def _growth(self, steady: dict[int, float], near: int, steepest: float) -> float:
        """Power of the rows in the price beyond the size `near`: measured from a smaller one where that took long
        enough to tell, else by experience."""
        below = max((m for m, work in steady.items() if m < near and work >= MEASURABLE), default=None)
        if below is None or steady[near] <= 0:
            return min(GROWTH, steepest)
        return float(np.clip(math.log(steady[near] / steady[below]) / math.log(near / below), FLATTEST, steepest))

    def last_fit(self, top: int | None = None) -> float:
        """Seconds that the last fit of the dearest saveable finalist would take, within its share of the budget, and
        the law of more rows, where trials go as far as `top` rows. A fit that would surely not end takes none: the
        model of a long trial is kept. That of half of the rows and more will do until the verdict has its splits."""
        if not self.rows or not self.records:
            return 0.0
        top = max(self.records.values("n")) if top is None else top
        at_top = {r.params["contestant"] for r in self.records.where(n=top)}
        names = at_top or {r.params["contestant"] for r in self.records}
        price, kept = max(
            ((self.price(name, self.rows), self.price(name, top)) for name in names if CONTESTANTS[name].saveable),
            default=(0.0, 0.0),
        )
        law, most = min(self._slow * LAW, LAW_SHARE * self.clock.budget), FIT_SHARE * self.clock.budget
        late = self._slow * price > SURELY_LATE * most
        enough = 2 * top >= self.rows and self.complete(top, sorted(at_top)) < FEWEST
        fit = 0.0 if kept >= LONG and (late or enough) else min(most, self._slow * price)
        return max(law, fit) if self.jobs > 1 else law + fit  # side by side, where there are workers

    def ranking(self, n: int, names: Sequence[str]) -> list[str]:
        """Names by their error on training rows at this size, best first; those without one are left out."""
        mean = {name: self._inner(n, name) for name in names}
        return sorted((name for name in mean if math.isfinite(mean[name])), key=mean.__getitem__)

    def _inner(self, n: int, name: str) -> float:
        """Error on training rows, its geometric mean over splits; infinite where there is none."""
        found = [max(r.measures["inner"], 1e-9) for r in self.records.where(n=n, contestant=name)]
        return float(np.exp(np.mean(np.log(found)))) if found else math.inf

    def finalists(self, n: int, names: Sequence[str]) -> list[str]:
        """Who goes on: the best lazy models and the best to which all directions are alike, the best rich one, the
        best outsider."""
        ranked = self.ranking(n, names)
        family = {word: [c for c in ranked if CONTESTANTS[c].family == word] for word in ("lazy", "rich", "outside")}
        alike = [c for c in family["lazy"] if CONTESTANTS[c].isotropic][:1]
        near = [c for c in family["lazy"] if self._inner(n, c) <= NEAR * self._inner(n, family["lazy"][0])]
        lazy = family["lazy"][: max(LAZY, min(LAZIEST, len(near)))]
        return [*lazy, *(c for c in alike if c not in lazy), *family["rich"][:1], *family["outside"][:1]]

    def core(self, n: int, names: Sequence[str]) -> list[str]:
        """The best lazy and the best rich model: no verdict without them."""
        ranked = self.ranking(n, names)
        first = {CONTESTANTS[c].family: c for c in reversed(ranked)}
        return [first[word] for word in ("lazy", "rich") if word in first]

    def complete(self, n: int, names: Sequence[str]) -> int:
        """Splits, from the first on, that all of these have at this size."""
        done = {(r.params["contestant"], r.params["split"]) for r in self.records.where(n=n)}
        count = 0
        while names and all((name, count) in done for name in names):
            count += 1
        return count

    @property
    def _slow(self) -> float:
        """Seconds of the clock for one of work: more than one where others use the machine."""
        work = sum(r.measures["work"] for r in self.records)
        taken = sum(r.seconds for r in self.records if math.isfinite(r.seconds))
        return max(1.0, taken / work) if work > 0 else 1.0

    def _config(self, names: Sequence[str], sizes: Sequence[int], splits: Sequence[int]) -> Config:
        order = sorted(names, key=lambda name: name not in _SLOW)
        grid: dict[str, list] = {"n": sorted(sizes, reverse=True), "contestant": order, "split": list(splits)}
        return config(grid, seeds=1, table=self.digest, draw=self.draw)


_SLOW = ("feature_machine", "network", "one_step", "boosting")


def _key(record) -> tuple:  # type: ignore[no-untyped-def]
    return record.params["contestant"], record.params["n"], record.params["split"]


def _stage(sizes: Sequence[int], splits: Sequence[int]) -> str:
    """What a bar of progress is about."""
    few = f"split {splits[0] + 1}" if len(splits) == 1 else f"splits {splits[0] + 1} to {splits[-1] + 1}"
    return f"{sizes[0]} rows, {few}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} rows, {few}"
