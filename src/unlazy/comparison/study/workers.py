"""Workers of a comparison, which import their modules while the table is read."""

from collections.abc import Iterator
from contextlib import contextmanager

from unlazy.lab.runner.engines import TrialEngine, opened_engine

PRELOADED_MODULES = (
    "unlazy.comparison.study.trial",
    "unlazy.estimators.feature_machine.machines",
    "unlazy.estimators.preprocessing.table_encoder",
)
"""Modules that every trial imports; workers import them while the main process reads the table."""


@contextmanager
def start_workers(
    engine: str | TrialEngine, n_jobs: int | None = None, address: str | None = None
) -> Iterator[TrialEngine]:
    """Open the engine of this name and close it at the end; an engine object is left to the caller."""
    with opened_engine(engine, n_jobs, address) as workers:
        if isinstance(engine, str) and hasattr(workers, "prepare"):
            workers.prepare(*PRELOADED_MODULES)
        yield workers
