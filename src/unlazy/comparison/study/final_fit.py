"""What follows the trials: the last fit and the law of more rows, side by side in workers, within what is left.

A fit that may be too long has a smaller one beside it. What has not ended at the last moment is stopped, and the
largest fit that has is the model, or a trial's, where that saw more rows.
"""

import importlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unlazy.comparison.data.table import Table
from unlazy.comparison.report.findings import chosen_model, models_table
from unlazy.comparison.study.model import Final, fit_table, kept_fit, kept_residuals, saved_name
from unlazy.comparison.study.more_rows import Law, law_of
from unlazy.comparison.study.plan import Clock
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.verdict import Verdict
from unlazy.lab.experiment import Record

MOST_ROWS = 200_000
STEEPEST = 2.0
"""Power of the rows in what the last fit costs, where it takes more of them than any trial did."""
BOLD, SAFE = 2.0, 0.5
"""Multiples of what is left that a fit may be guessed to take: one that is tried, one that ends for sure. Two threads
may halve the first, and a guess from fewer rows is right to such a factor."""
FEW, USUAL_COLUMNS = 400, 100
"""Rows of a fit that is made whatever is left, up to so many columns; beyond, as many as cost the same."""


def ending(
    study: Study, table: Table, verdict: Verdict, workers: Any, clock: Clock, seed: int = 0,
    store: str | Path | None = None,
) -> tuple[Final, Law | None]:  # fmt: skip
    """The model to keep, fitted to all rows of `table` or as many as time allows; the law, where it ended in time.
    `store` is the folder of the trials, which keeps the models of those that took long."""
    name, notes = saved_name(chosen_model(study, verdict), models_table(study))
    left = clock.until() - time.monotonic()
    bold, safe = (rows_within(study, name, share * left, table) for share in (BOLD, SAFE))
    ranked = [verdict.picks["lazy"], *(c for c in study.finalists if c != verdict.picks["lazy"])]
    law = None if verdict.word == "noise" or left <= 0 else partial(law_of, study.table, ranked, seed)
    kept = kept_fit(study, name, store)
    sizes = [rows for rows in dict.fromkeys((bold, safe)) if kept is None or rows > kept.rows]
    fits = [partial(fit_table, _drawn(table, rows, seed), name, seed=seed) for rows in sizes]
    if left > 0 and hasattr(workers, "attempt") and (fits or law):
        readying = threading.Thread(target=_ready, daemon=True)  # workers compute, this process would wait
        readying.start()
        found, told = _side_by_side(fits, law, workers, clock.until(), kept is None)
        readying.join()
    else:
        told = law() if law is not None else None
        found = None
    found = kept if found is None else found
    if found is None:  # here, where nothing can stop it
        found = fits[-1]()
    if found.rows < len(table):
        notes = (*notes, f"the saved model is fitted to {found.rows} of {len(table)} rows, drawn at random, to keep to "
                 "the budget (unlazy fit takes all)")  # fmt: skip
    return kept_residuals(found._replace(notes=notes), study), told


def _ready() -> None:
    """Import what the page will need: a third of its time."""
    for name in ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "jinja2"):
        importlib.import_module(name)


def _side_by_side(
    fits: Sequence[Callable[[], Final]], law: Callable[[], Law | None] | None, workers: Any, until: float,
    surely: bool = True,
) -> tuple[Final | None, Law | None]:  # fmt: skip
    """The first of the fits that ended in time, and the law; the surest fit is begun at once, and waited for if
    `surely`, since without a model there is no answer."""
    laws = [] if law is None else [law]
    calls: list[Callable] = [*(fits if workers.jobs > 1 else reversed(fits)), *laws]
    needed = [calls.index(call) for call in (*fits[:1], *laws)]
    sure = [calls.index(fit) for fit in fits] if surely else []
    found = dict(zip(map(id, calls), workers.attempt(calls, needed, until, sure)))
    done = [found[id(fit)] for fit in fits if found[id(fit)] is not None]
    return (done[0] if done else None), (found[id(law)] if law is not None else None)


def rows_within(study: Study, name: str, seconds: float, table: Table) -> int:
    """Rows that a last fit of this contestant would take in so many seconds, by what its trials took."""
    seen = study.records.where(contestant=name)
    top = max(seen.values("n"))
    took = max(float(np.median([_taken(r) for r in seen.where(n=top)])), 1e-3)
    ratio = max(seconds, 0.0) / took
    rows = top * (ratio ** (1 / STEEPEST) if ratio > 1 else ratio)
    return int(min(MOST_ROWS, len(table), max(least_rows(table), rows)))


def least_rows(table: Table) -> int:
    """Rows of a fit that takes a moment; the cost of a pair of rows is that of its columns."""
    wide = max(1.0, table.frame.shape[1] / USUAL_COLUMNS)
    return min(len(table), max(50, int(FEW / math.sqrt(wide))))


def _drawn(table: Table, rows: int, seed: int) -> Table:
    """So many rows, drawn at random."""
    if rows >= len(table):
        return table
    return table.rows(np.sort(np.random.default_rng(seed).permutation(len(table))[:rows]))


def _taken(record: Record) -> float:
    """Seconds of a trial: of the clock where it is known, else of work."""
    return record.seconds if math.isfinite(record.seconds) else float(record.measures["work"])
