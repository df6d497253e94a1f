"""Run experiments: stored trials are not run again, finished trials are stored immediately."""

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlazy.core.errors import UnlazyWarning
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.lab.experiment import Config, Experiment, Records
from unlazy.lab.runner.catalog import find
from unlazy.lab.runner.engines import TrialEngine, opened_engine
from unlazy.lab.runner.settings import resolve_config
from unlazy.lab.runner.store import Store
from unlazy.lab.runner.sweep import plan


class Interrupted(KeyboardInterrupt):
    """A sweep was interrupted by Ctrl-C; the message says how to resume.

    Examples
    --------
    >>> from unlazy import lab
    >>> small = {"seeds": 2, "change": {"k": [1], "d": [16]}, "store": None}
    >>> try:
    ...     records = lab.run("information_exponent", **small, engine="inline")
    ... except lab.Interrupted as interrupt:
    ...     print(interrupt)
    """


def run(
    experiment: Experiment | str, config: str | Config = "quick", *, seeds: int | None = None,
    change: Mapping[str, object] | None = None, store: str | Path | None = "results", n_jobs: int | None = None,
    engine: str | TrialEngine = "local", address: str | None = None, progress: ProgressOption = False,
) -> Records:  # fmt: skip
    """Run an experiment and return its records; trials that are stored already are not run again.

    Parameters
    ----------
    experiment : Experiment or str
        The experiment, its name, or `module:attribute`.
    config : {"quick", "full"} or Config, default "quick"
        The configuration.
    seeds : int, optional
        Number of seeds per point; by default that of the configuration.
    change : mapping, optional
        Other values of parameters, such as `{"n": [100, 300]}`.
    store : str, Path or None, default "results"
        Folder of the stored trials; None stores nothing.
    n_jobs : int, optional
        Number of workers; by default one per core.
    engine : {"local", "dask", "inline"} or TrialEngine, default "local"
        Local processes, a dask cluster, the current process, or an open engine.
    address : str, optional
        Address of a dask scheduler, as tcp://host:port.
    progress : bool or callable, default False
        Whether to show a progress bar, or a function called with a `Progress` after every chunk of trials.

    Returns
    -------
    Records
        The records; trials that raised an exception are in `failed`.

    Raises
    ------
    ValueError
        If an argument is invalid.
    UnlazyError
        If the store cannot be used, or a worker dies.
    Interrupted
        On Ctrl-C; finished trials are stored.

    Examples
    --------
    >>> from unlazy import lab
    >>> records = lab.run(
    ...     "information_exponent", seeds=2, change={"k": [1], "d": [16]}, store=None, engine="inline"
    ... )
    >>> len(records), records[0].params
    (2, {'k': 1, 'd': 16})
    """
    if isinstance(experiment, str):
        experiment = find(experiment)
    config = resolve_config(experiment, config, seeds, change)
    points = config.points()
    with Store(store) as kept:
        chunks = plan(experiment, points, config.seeds, kept.finished(experiment))
        if chunks:
            label, failed = config.label or experiment.name, 0
            with (
                warnings.catch_warnings(),
                _interruptible() as check,
                opened_engine(engine, n_jobs, address) as workers,
                ProgressDisplay(label, sum(len(c.wanted) for c in chunks), show=progress, persist=True) as shown,
            ):
                # joblib replaces a worker whose memory grew by compiled programs; nothing is lost
                warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
                try:
                    for outcome in workers.outcomes(chunks):
                        kept.add(experiment, outcome)
                        failed += sum(trial.measures is None for trial in outcome.trials)
                        shown.advance(steps=len(outcome.trials), warning=f"{failed} failed" if failed else "")
                        check()
                except KeyboardInterrupt:
                    raise Interrupted(_how_to_resume(kept, experiment, config, store)) from None
        records = kept.records(experiment, points, config.seeds)
    if records.failed:
        last = records.failed[0].traceback.strip().splitlines()[-1]
        warnings.warn(
            f"{len(records.failed)} trials of {experiment.name} failed (the first with {last}); "
            "the next run will retry them", UnlazyWarning, stacklevel=2,
        )  # fmt: skip
    return records


def load(
    experiment: Experiment | str, config: str | Config = "quick", *, seeds: int | None = None,
    change: Mapping[str, object] | None = None, store: str | Path = "results",
) -> Records:  # fmt: skip
    """Load the stored records of a configuration; nothing is run.

    Parameters
    ----------
    experiment : Experiment or str
        The experiment, its name, or `module:attribute`.
    config : {"quick", "full"} or Config, default "quick"
        The configuration.
    seeds : int, optional
        Number of seeds per point; by default that of the configuration.
    change : mapping, optional
        Other values of parameters, such as `{"n": [100, 300]}`.
    store : str or Path, default "results"
        Folder of the stored trials.

    Returns
    -------
    Records
        The stored records of the configuration.

    Raises
    ------
    UnlazyError
        If nothing is stored in this folder, or the store cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from unlazy import lab
    >>> small = {"seeds": 2, "change": {"k": [1], "d": [16]}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ran = lab.run("information_exponent", **small, store=folder, engine="inline")
    ...     loaded = lab.load("information_exponent", **small, store=folder)
    >>> len(ran), len(loaded)
    (2, 2)
    """
    if isinstance(experiment, str):
        experiment = find(experiment)
    config = resolve_config(experiment, config, seeds, change)
    with Store(store, create=False) as kept:
        return kept.records(experiment, config.points(), config.seeds)


def _how_to_resume(kept: Store, experiment: Experiment, config: Config, store: str | Path | None) -> str:
    """Message after an interrupt."""
    count = len(kept.records(experiment, config.points(), config.seeds))
    done = f"{count} of {config.size} trials of {experiment.name}"
    if store is None:
        return f"interrupted after {done}; nothing was stored (store=None)"
    return f"interrupted: {done} are stored in {store}; run the same command again to resume"


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Remember a Ctrl-C until `check()` is called.

    A KeyboardInterrupt that arrives while Python runs a finalizer or a callback is raised there, printed and lost, and
    the sweep would continue.
    """
    interrupted = False

    def remember(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread()  # signal handlers can only be set in the main thread
    before = signal.signal(signal.SIGINT, remember) if mine else None
    try:
        yield check
    finally:
        if mine and before is not None:
            signal.signal(signal.SIGINT, before)
