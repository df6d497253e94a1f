"""Where trials of a comparison run: workers that are ready when the table is."""

from collections.abc import Iterator
from contextlib import contextmanager

from unlazy import lab
from unlazy.lab.runner.engines import Engine

NEEDED = (
    "unlazy.comparison.study.trial",
    "unlazy.estimators.feature_machine.machines",
    "unlazy.estimators.preprocessing.table_encoder",
)
"""What every trial imports: seconds, which pass while this process reads the table."""


@contextmanager
def begun(engine: str | Engine, jobs: int | None = None, address: str | None = None) -> Iterator[Engine]:
    """The engine of this name, ended at last; one that was given is the caller's."""
    if not isinstance(engine, str):
        yield engine
        return
    workers = lab.open_engine(engine, jobs, address)
    try:
        if hasattr(workers, "prepare"):
            workers.prepare(*NEEDED)
        yield workers
    finally:
        workers.close()
