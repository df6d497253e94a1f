"""The error of the chosen model with and without the suspicious inputs, on the same test rows.

This is one quick comparison next to the main study: the same splits, one model, as many rows and splits as the time set
aside allows.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import EncodedTable, save_table
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.metrics import Metric
from unlazy.comparison.study.plan import BudgetClock, StudyPlan
from unlazy.comparison.study.study import Study, experiment, subsample
from unlazy.core.progress import ProgressOption
from unlazy.lab.experiment import Records
from unlazy.lab.runner.engines import TrialEngine

SHARE, MAX_SECONDS = 0.1, 60.0
"""Share of the budget that is set aside for it, and the most seconds."""
MIN_SHARE = 0.05
"""Share of the budget that trials may take even if nothing is left of what was set aside."""
CAUTION = 0.8
"""Predicted times may use this share of the seconds."""


class SuspectErrors(NamedTuple):
    """Errors of one model with and without the suspects as inputs, on the same test rows, in the units of `familiar`:
    RMSE, share of mistakes, log loss or average precision."""

    model: str
    rows: int
    """Number of training rows."""
    splits: int
    with_them: float
    without_them: float


def set_aside(clock: BudgetClock) -> float:
    """Seconds of the budget for `measure_suspect_errors`."""
    return min(SHARE * clock.budget, MAX_SECONDS)


def measure_suspect_errors(
    study: Study, other: EncodedTable, name: str, clock: BudgetClock, *, store: str | Path, workers: TrialEngine,
    kept: bool = False, seed: int = 0, progress: ProgressOption = False,
) -> SuspectErrors | None:  # fmt: skip
    """Run the model `name` on the table `other`, which has the suspects, or lacks them if the study has them (`kept`).

    `other` has the rows and groups of the table of the study, so that splits are the same. Return None if there is
    no time for one split.
    """
    now = time.monotonic()
    seconds = max(min(set_aside(clock), clock.deadline() - now), MIN_SHARE * clock.budget)
    mine = study.records.where(candidate=name)
    sizes = mine.where(split=0).values("n")
    if not sizes or _seconds(mine, sizes[0]) > set_aside(clock):
        return None
    other = subsample(other)
    plan = StudyPlan(
        experiment(store), save_table(other, Path(store)), BudgetClock(seconds, now, page=False), store, workers, seed,
        progress,
    )  # fmt: skip
    n, splits = _affordable(mine, sizes, CAUTION * seconds, plan.n_jobs)
    plan.run([name], [n], [0], must_finish=True)
    plan.run([name], [n], range(splits))
    found = {r.params["split"]: r for r in plan.records}
    same = {r.params["split"]: r for r in mine.where(n=n) if r.params["split"] in found}
    if not same:
        return None
    errors = [familiar_error(study.metric, Records(list(rows))) for rows in (same.values(), [found[s] for s in same])]
    without, with_them = reversed(errors) if kept else errors
    return SuspectErrors(CANDIDATES[name].title, n, len(same), with_them, without)


def _affordable(mine: Records, sizes: list[int], seconds: float, n_jobs: int) -> tuple[int, int]:
    """Largest size at which a split takes at most so many seconds, and the number of splits that take as long after the
    first; at least one split of the smallest size."""
    for n in sorted(sizes, reverse=True):
        cost = _seconds(mine, n)
        if cost <= seconds:
            return n, min(len(mine.where(n=n)), max(1, n_jobs * int(seconds / cost - 1)))
    return min(sizes), 1


def _seconds(mine: Records, n: int) -> float:
    """Wall-clock seconds of a trial of this size; the lower median, because the first one compiles."""
    took = sorted(r.seconds if math.isfinite(r.seconds) else float(r.measures["work"]) for r in mine.where(n=n))
    return max(took[(len(took) - 1) // 2], 1e-3)


def familiar_error(metric: Metric, records: Records) -> float:
    """Error in familiar units: RMSE, average precision, log loss, or share of mistakes; the mean over splits
    that have it."""
    if metric.name == "rmse":
        return math.sqrt(float(np.mean(records.measure("risk") * records.measure("constant"))))
    measure = {"average_precision": "precision", "log_loss": "log_loss"}.get(metric.name, "mistakes")
    return known_mean(records.measure(measure))


def known_mean(values: np.ndarray) -> float:
    """Mean over the splits that have the measure; NaN if none has it."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
