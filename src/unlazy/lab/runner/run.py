"""Run an experiment: what is stored is not run again, what finishes is stored at once."""

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlazy.core.errors import UnlazyWarning
from unlazy.core.progress import Display
from unlazy.lab.experiment import Config, Experiment, Records
from unlazy.lab.runner.catalog import find
from unlazy.lab.runner.engines import Engine, open_engine
from unlazy.lab.runner.settings import choose
from unlazy.lab.runner.store import Store
from unlazy.lab.runner.sweep import Outcome, plan


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a sweep; the message says how to go on."""


def run(
    experiment: Experiment | str, config: str | Config = "quick", *, seeds: int | None = None,
    change: Mapping[str, Any] | None = None, store: str | Path | None = "results", jobs: int | None = None,
    engine: str | Engine = "local", address: str | None = None, progress: bool | str = True,
) -> Records:  # fmt: skip
    """Records of one experiment, run where they are not stored yet.

    `experiment` is an Experiment, its name, or `module:attribute`. `config` is "quick", "full" or a Config; `change`
    sets parameters to other values (`{"n": [100, 300]}`). `store` is a folder, or None to keep nothing. `engine` is
    "local" (processes), "dask" (with `address`) or "inline" (this process). `progress` shows a bar, under the
    experiment's name or the one it gives. Trials that raise are in `.failed`.
    """
    if isinstance(experiment, str):
        experiment = find(experiment)
    config = choose(experiment, config, seeds, change)
    points = config.points()
    with Store(store) as kept:
        chunks = plan(experiment, points, config.seeds, kept.finished(experiment))
        if chunks:
            with (
                _interruptible() as check,
                _opened(engine, jobs, address) as workers,
                _progress(experiment, chunks, progress) as show,
            ):
                try:
                    for outcome in workers.outcomes(chunks):
                        kept.add(experiment, outcome)
                        show(outcome)
                        check()
                except KeyboardInterrupt:
                    raise Interrupted(_how_to_resume(kept, experiment, config, store)) from None
        records = kept.records(experiment, points, config.seeds)
    if records.failed:
        last = records.failed[0].traceback.strip().splitlines()[-1]
        warnings.warn(
            f"{len(records.failed)} trials of {experiment.name} failed (the first with {last}); "
            "the next run tries them again", UnlazyWarning, stacklevel=2,
        )  # fmt: skip
    return records


def load(
    experiment: Experiment | str, config: str | Config = "quick", *, seeds: int | None = None,
    change: Mapping[str, Any] | None = None, store: str | Path = "results",
) -> Records:  # fmt: skip
    """What is stored of a configuration; nothing is run."""
    if isinstance(experiment, str):
        experiment = find(experiment)
    config = choose(experiment, config, seeds, change)
    with Store(store, create=False) as kept:
        return kept.records(experiment, config.points(), config.seeds)


def _how_to_resume(kept: Store, experiment: Experiment, config: Config, store: str | Path | None) -> str:
    count = len(kept.records(experiment, config.points(), config.seeds))
    done = f"{count} of {config.size} trials of {experiment.name}"
    if store is None:
        return f"stopped after {done}; nothing was kept (store=None)"
    return f"stopped: {done} are in {store}; the same command goes on from there"


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Ctrl-C is remembered until `check()` is called: one that comes while Python runs a finaliser or a callback is
    raised there, printed and lost, and the sweep would go on."""
    asked = False

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread()  # only there may handlers be set
    before = signal.signal(signal.SIGINT, remember) if mine else None
    try:
        yield check
    finally:
        if mine and before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _opened(engine: str | Engine, jobs: int | None, address: str | None) -> Iterator[Engine]:
    """An engine of our own, ended when the run ends; or one that the caller keeps."""
    if not isinstance(engine, str):
        yield engine
        return
    own = open_engine(engine, jobs, address)
    try:
        yield own
    finally:
        own.close()


@contextmanager
def _progress(experiment: Experiment, chunks: list, wanted: bool | str) -> Iterator[Callable[[Outcome], None]]:
    """Done, failed and time left."""
    name = wanted if isinstance(wanted, str) else experiment.name
    failed = 0
    with Display(name, sum(len(c.wanted) for c in chunks), show=bool(wanted), kept=True) as shown:

        def show(outcome: Outcome) -> None:
            nonlocal failed
            failed += sum(trial.measures is None for trial in outcome.trials)
            shown.advance(steps=len(outcome.trials), wrong=f"{failed} failed" if failed else "")

        yield show
