"""Work after the trials: the final fit and the prediction for more rows, in parallel, within the remaining budget.

Next to a fit that may take too long, a smaller one is run. At the deadline unfinished fits are stopped. The final model
is the largest finished fit, or the model of a trial that used more rows.
"""

import importlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from unlazy.comparison.data.table import EncodedTable
from unlazy.comparison.report.findings import chosen_model, models_table
from unlazy.comparison.study.model import FinalModel, attach_residuals, choose_saveable, fit_table, load_trial_model
from unlazy.comparison.study.more_rows import MoreRowsLaw, fit_more_rows_law
from unlazy.comparison.study.plan import BudgetClock
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.verdict import Verdict
from unlazy.lab.experiment import Record
from unlazy.lab.runner.engines import CallWorkers, TrialEngine

MAX_ROWS = 200_000
COST_EXPONENT = 2.0
"""Exponent of the number of rows in the cost of the final fit, beyond the largest trial."""
OPTIMISTIC, SAFE = 2.0, 0.5
"""Predicted cost, as a multiple of the remaining time, of the two fits that are run: one that may finish and one that
will. Predictions from fewer rows are accurate to about such a factor, and two threads may halve the time."""
MIN_FIT_ROWS, USUAL_COLUMNS = 400, 100
"""Rows of a fit that is run even if no time is left, and the number of columns up to which that holds; with more
columns, as many rows as cost the same."""


def final_fits(
    study: Study, table: EncodedTable, verdict: Verdict, workers: TrialEngine | CallWorkers, clock: BudgetClock,
    seed: int = 0, store: str | Path | None = None,
) -> tuple[FinalModel, MoreRowsLaw | None]:  # fmt: skip
    """Fit the final model to all rows of `table`, or as many as time allows, and the law for more rows, if in time.

    `store` is the folder of the trials, which has the models of long trials.
    """
    name, notes = choose_saveable(chosen_model(study, verdict), models_table(study))
    left = clock.deadline() - time.monotonic()
    bold, safe = (affordable_rows(study, name, share * left, table) for share in (OPTIMISTIC, SAFE))
    ranked = [verdict.picks["lazy"], *(c for c in study.finalists if c != verdict.picks["lazy"])]
    law = None if verdict.word == "noise" or left <= 0 else partial(fit_more_rows_law, study.table, ranked, seed)
    kept = load_trial_model(study, name, store)
    sizes = [rows for rows in dict.fromkeys((bold, safe)) if kept is None or rows > kept.rows]
    fits = [partial(fit_table, _sample(table, rows, seed), name, seed=seed) for rows in sizes]
    if left > 0 and isinstance(workers, CallWorkers) and (fits or law):
        imports = threading.Thread(target=_import_for_page, daemon=True)  # while the workers compute
        imports.start()
        found, fitted_law = _run_in_workers(fits, law, workers, clock.deadline(), kept is None)
        imports.join()
    else:
        fitted_law = law() if law is not None else None
        found = None
    found = kept if found is None else found
    if found is None:  # in this process, without a deadline
        found = fits[-1]()
    if found.rows < len(table):
        notes = (*notes, f"to stay within the budget, the saved model is fitted to a random sample of {found.rows:,} "
                 f"of {len(table):,} rows (unlazy fit uses all rows)")  # fmt: skip
    return attach_residuals(found._replace(notes=notes), study), fitted_law


def _import_for_page() -> None:
    """Import the modules for the page, which take a third of its time."""
    for name in ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "jinja2"):
        importlib.import_module(name)


def _run_in_workers(
    fits: Sequence[Callable[[], FinalModel]], law: Callable[[], MoreRowsLaw | None] | None, workers: CallWorkers,
    until: float, must_finish: bool = True,
) -> tuple[FinalModel | None, MoreRowsLaw | None]:  # fmt: skip
    """Return the first of the fits that finished in time, and the law. The smallest fit starts at once; with
    `must_finish` it may exceed the deadline, because a comparison needs a model."""
    laws = [] if law is None else [law]
    calls: list[Callable] = [*(fits if workers.n_jobs > 1 else reversed(fits)), *laws]
    needed = [calls.index(call) for call in (*fits[:1], *laws)]
    sure = [calls.index(fit) for fit in fits] if must_finish else []
    found = dict(zip(map(id, calls), workers.attempt(calls, needed, until, sure)))
    done = [found[id(fit)] for fit in fits if found[id(fit)] is not None]
    return (done[0] if done else None), (found[id(law)] if law is not None else None)


def affordable_rows(study: Study, name: str, seconds: float, table: EncodedTable) -> int:
    """Number of rows this candidate can fit in `seconds`, extrapolated from the times of its trials."""
    seen = study.records.where(candidate=name)
    top = max(seen.values("n"))
    took = max(float(np.median([_trial_seconds(r) for r in seen.where(n=top)])), 1e-3)
    ratio = max(seconds, 0.0) / took
    rows = top * (ratio ** (1 / COST_EXPONENT) if ratio > 1 else ratio)
    return int(min(MAX_ROWS, len(table), max(minimum_rows(table), rows)))


def minimum_rows(table: EncodedTable) -> int:
    """Number of rows of a fast fit; the cost of a pair of rows is proportional to the number of columns."""
    wide = max(1.0, table.frame.shape[1] / USUAL_COLUMNS)
    return min(len(table), max(50, int(MIN_FIT_ROWS / math.sqrt(wide))))


def _sample(table: EncodedTable, rows: int, seed: int) -> EncodedTable:
    """A random sample of the rows."""
    if rows >= len(table):
        return table
    return table.rows(np.sort(np.random.default_rng(seed).permutation(len(table))[:rows]))


def _trial_seconds(record: Record) -> float:
    """Wall-clock seconds of a trial if known, else CPU seconds."""
    return record.seconds if math.isfinite(record.seconds) else float(record.measures["work"])
