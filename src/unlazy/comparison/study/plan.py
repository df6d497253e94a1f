"""Planning of a study: the records so far, the predicted cost of further trials, and the clock.

A budget is wall-clock seconds from the start of the command. Stored trials are charged as if they had been run now, so
that a resumed run takes the same decisions. Trials that do not finish before the deadline are abandoned.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from unlazy import lab
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.trial import LONG_TRIAL
from unlazy.core.progress import ProgressOption
from unlazy.lab.experiment import Config, Experiment, Records, config
from unlazy.lab.runner.engines import TrialEngine

COST_EXPONENT = 1.3
"""Empirical exponent of the number of rows in the cost of a trial: searches use subsets, factorizations are one
part."""
MIN_MEASURED_SECONDS = 0.3
"""CPU seconds of a trial from which the cost exponent of a candidate is measured from two sizes."""
MIN_EXPONENT, MAX_EXPONENT, MAX_EXPONENT_RICH = 1.0, 2.5, 1.1
"""Measured exponents are clipped to this range. A feature machine searches on a subset first: from 500 to 4,000 rows of
20 columns its exponents were 0.8 to 1.1, whatever smaller sizes suggested."""
PAGE_SECONDS, PAGE_SHARE = 7.0, 0.2
"""CPU seconds reserved for the page, the answer and the shutdown; at most this share of the budget."""
LAW_SECONDS, LAW_SHARE = 6.0, 0.08
"""The same for the prediction with twice the rows."""
FIT_SHARE = 0.2
"""Maximum share of the budget for the final fit."""
HOPELESS_FACTOR = 2.0
"""A fit predicted to take this multiple of its time limit is not started: two threads may halve it, not more."""
EQUAL_TIMES = 1.2
"""Times within this factor count as equal."""
TARGET_SPLITS, MIN_SPLITS, MAX_SPLITS = 5, 3, 10
"""Number of splits: that training sizes are planned for; needed for an interval; run if time is left."""
MIN_LAZY, MAX_LAZY, NEAR_BEST = 2, 4, 1.25
"""Lazy finalists: the best two, and up to four whose error is within this factor of the best, which two splits cannot
distinguish."""


class BudgetClock:
    """Wall-clock time used and remaining of a budget."""

    def __init__(self, budget: float, began: float | None = None, page: bool = True):
        self.began = time.monotonic() if began is None else began
        self.budget = budget
        self.page = page
        self.aside = 0.0
        """Seconds set aside for a comparison after the study."""
        self.slowdown = 1.0
        """Wall-clock seconds per CPU second, measured from the trials."""
        self._stored = 0.0

    def charge(self, seconds: float) -> None:
        """Charge the time of stored trials, as if they had been run."""
        self._stored += seconds

    @property
    def reserve(self) -> float:
        """Seconds reserved for the page and the answer, and those set aside."""
        return self.aside + (min(self.slowdown * PAGE_SECONDS, PAGE_SHARE * self.budget) if self.page else 0.0)

    def remaining(self, reserved: float = 0.0) -> float:
        """Seconds left for trials, after the reserve for the page and `reserved` seconds."""
        return self.budget - (time.monotonic() - self.began) - self._stored - self.reserve - reserved

    def deadline(self, reserved: float = 0.0) -> float:
        """Time (time.monotonic) at which trials must have finished."""
        return self.began + self.budget - self.reserve - reserved


@dataclass
class StudyPlan:
    """Runs trials and predicts the cost of further ones."""

    study: Experiment
    digest: str
    clock: BudgetClock
    store: str | Path
    workers: TrialEngine
    draw: int = 0
    progress: ProgressOption = False
    rows: int = 0
    """Rows of the final fit; 0 if there is none."""
    records: Records = field(default_factory=Records)

    def run(
        self, names: Sequence[str], sizes: Sequence[int], splits: Sequence[int], must_finish: bool = False,
        share: float = 1.0,
    ) -> None:  # fmt: skip
        """Run trials of these candidates, slow ones first so that workers finish together. Trials that do not finish in
        this share of the remaining time are abandoned, unless `must_finish`."""
        if not (names and sizes and splits):
            return
        began = time.monotonic()
        deadline = self.clock.deadline(self.final_fit_seconds())
        deadline = began + share * max(0.0, deadline - began)
        self.workers.until = None if must_finish else deadline  # type: ignore[attr-defined]
        try:
            late = not must_finish and deadline <= began  # stored trials are read even then
            shown = False if late else self.progress
            found = lab.run(
                self.study, self._config(names, sizes, splits), store=self.store, engine=self.workers, progress=shown
            )
        finally:
            self.workers.until = None  # type: ignore[attr-defined]
        known = {_key(r) for r in self.records}
        fresh = [r for r in found if _key(r) not in known]
        self.records = Records([*self.records, *fresh], [*self.records.failed, *found.failed])
        self.clock.slowdown = self._slowdown
        self.clock.charge(max(0.0, sum(r.seconds for r in fresh) / self.n_jobs - (time.monotonic() - began)))

    @property
    def n_jobs(self) -> int:
        """Number of trials that run at once."""
        return getattr(self.workers, "n_jobs", None) or 1

    def fits_budget(self, names: Sequence[str], sizes: Sequence[int], splits: int, stretch: float = 1.0) -> bool:
        """Whether this number of splits of these candidates at each of these sizes would finish in the remaining time,
        or in `stretch` times that. One trial runs in one worker. A candidate without trials is assumed to cost as much
        as the most expensive one."""
        known = {r.params["candidate"] for r in self.records}
        largest = {n: max((self.trial_cost(name, n) for name in known), default=0.0) for n in sizes}
        works = [self.trial_cost(name, n) if name in known else largest[n] for name in names for n in sizes]
        longest = max([splits * sum(works) / self.n_jobs, *works])
        return self._slowdown * longest <= stretch * self.clock.remaining(
            self.final_fit_seconds(max(sizes, default=None))
        )

    def splits_at_once(self, names: Sequence[str], n: int) -> int:
        """Number of splits to run in parallel: two if one long trial would leave the other workers idle, else one."""
        works = [self.trial_cost(name, n) for name in names]
        return 2 if self.n_jobs > 1 and 2 * sum(works) / self.n_jobs <= EQUAL_TIMES * max(works) else 1

    def trial_cost(self, name: str, n: int) -> float:
        """Predicted CPU seconds of one trial, from the nearest size that was run; the lower median over splits, because
        the first trial of a size compiles."""
        work: dict[int, list[float]] = {}
        for r in self.records.where(candidate=name):
            work.setdefault(r.params["n"], []).append(r.measures["work"])
        if not work:
            return 0.0
        steady = {m: sorted(found)[(len(found) - 1) // 2] for m, found in work.items()}
        near = min(steady, key=lambda m: abs(math.log(m / n)))
        steepest = MAX_EXPONENT_RICH if name == "feature_machine" else MAX_EXPONENT
        return float(steady[near] * (n / near) ** (self._cost_exponent(steady, near, steepest) if n > near else 1.0))

    def _cost_exponent(self, steady: dict[int, float], near: int, steepest: float) -> float:
        """Cost exponent beyond the size `near`: measured from a smaller size whose trials were long enough, else the
        empirical value."""
        below = max((m for m, work in steady.items() if m < near and work >= MIN_MEASURED_SECONDS), default=None)
        if below is None or steady[near] <= 0:
            return min(COST_EXPONENT, steepest)
        return float(np.clip(math.log(steady[near] / steady[below]) / math.log(near / below), MIN_EXPONENT, steepest))

    def final_fit_seconds(self, top: int | None = None) -> float:
        """Seconds to reserve for the final fit of the most expensive saveable finalist, within its share of the budget,
        and for the law of more rows, if trials go up to `top` rows. Nothing is reserved for a fit that would not
        finish, because the model of a long trial is stored, nor before the verdict has enough splits if such a model
        has used at least half of the rows."""
        if not self.rows or not self.records:
            return 0.0
        top = max(self.records.values("n")) if top is None else top
        at_top = {r.params["candidate"] for r in self.records.where(n=top)}
        names = at_top or {r.params["candidate"] for r in self.records}
        saveable = [name for name in names if CANDIDATES[name].saveable]
        costs = ((self.trial_cost(name, self.rows), self.trial_cost(name, top)) for name in saveable)
        cost, at_largest = max(costs, default=(0.0, 0.0))
        law, most = min(self._slowdown * LAW_SECONDS, LAW_SHARE * self.clock.budget), FIT_SHARE * self.clock.budget
        late = self._slowdown * cost > HOPELESS_FACTOR * most
        enough = 2 * top >= self.rows and self.complete_splits(top, sorted(at_top)) < MIN_SPLITS
        fit = 0.0 if at_largest >= LONG_TRIAL and (late or enough) else min(most, self._slowdown * cost)
        return max(law, fit) if self.n_jobs > 1 else law + fit  # in parallel with several workers

    def ranking(self, n: int, names: Sequence[str]) -> list[str]:
        """Names sorted by their error estimated on training rows at this size; those without records are omitted."""
        mean = {name: self._inner(n, name) for name in names}
        return sorted((name for name in mean if math.isfinite(mean[name])), key=mean.__getitem__)

    def _inner(self, n: int, name: str) -> float:
        """Geometric mean over splits of the error estimated on training rows; infinite without records."""
        found = [max(r.measures["inner"], 1e-9) for r in self.records.where(n=n, candidate=name)]
        return float(np.exp(np.mean(np.log(found)))) if found else math.inf

    def finalists(self, n: int, names: Sequence[str]) -> list[str]:
        """Select the finalists: the best lazy models, the best isotropic one, the best rich and the best outside
        model."""
        ranked = self.ranking(n, names)
        family = {word: [c for c in ranked if CANDIDATES[c].family == word] for word in ("lazy", "rich", "outside")}
        alike = [c for c in family["lazy"] if CANDIDATES[c].isotropic][:1]
        near = [c for c in family["lazy"] if self._inner(n, c) <= NEAR_BEST * self._inner(n, family["lazy"][0])]
        lazy = family["lazy"][: max(MIN_LAZY, min(MAX_LAZY, len(near)))]
        return [*lazy, *(c for c in alike if c not in lazy), *family["rich"][:1], *family["outside"][:1]]

    def verdict_pair(self, n: int, names: Sequence[str]) -> list[str]:
        """The best lazy and the best rich model, which the verdict needs."""
        ranked = self.ranking(n, names)
        first = {CANDIDATES[c].family: c for c in reversed(ranked)}
        return [first[word] for word in ("lazy", "rich") if word in first]

    def complete_splits(self, n: int, names: Sequence[str]) -> int:
        """Number of consecutive splits, from the first, that all of these models have at this size."""
        done = {(r.params["candidate"], r.params["split"]) for r in self.records.where(n=n)}
        count = 0
        while names and all((name, count) in done for name in names):
            count += 1
        return count

    @property
    def _slowdown(self) -> float:
        """Wall-clock seconds per CPU second; above one on a busy machine."""
        work = sum(r.measures["work"] for r in self.records)
        taken = sum(r.seconds for r in self.records if math.isfinite(r.seconds))
        return max(1.0, taken / work) if work > 0 else 1.0

    def _config(self, names: Sequence[str], sizes: Sequence[int], splits: Sequence[int]) -> Config:
        order = sorted(names, key=lambda name: name not in _LONG_TRIALS)
        grid: dict[str, list] = {"n": sorted(sizes, reverse=True), "candidate": order, "split": list(splits)}
        return replace(config(grid, seeds=1, table=self.digest, draw=self.draw), label=f"{_stage(sizes, splits):32s}")


_LONG_TRIALS = ("feature_machine", "network", "one_step", "boosting")


def _key(record) -> tuple:  # type: ignore[no-untyped-def]
    return record.params["candidate"], record.params["n"], record.params["split"]


def _stage(sizes: Sequence[int], splits: Sequence[int]) -> str:
    """Label of a progress bar."""
    few = f"split {splits[0] + 1}" if len(splits) == 1 else f"splits {splits[0] + 1} to {splits[-1] + 1}"
    return f"{sizes[0]:,} rows, {few}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} rows, {few}"
