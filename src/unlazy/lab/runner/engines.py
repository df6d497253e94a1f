"""Engines that run chunks: local processes (`local`), a dask cluster (`dask`), or the current process (`inline`).

Every engine yields the outcomes as they finish; only the calling process writes to the store. Each worker has one
thread, so that results do not depend on the number of workers. `inline` does not change the number of XLA threads and
is meant for debugging: with few cores, several vectorized decompositions in one trial can deadlock in jaxlib (seen in
0.10); with workers they cannot.
"""

import importlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

from unlazy.core.compilation_cache import compilation_cache_env
from unlazy.core.errors import UnlazyError, check_positive_integer, did_you_mean
from unlazy.lab.runner.sweep import Chunk, Outcome
from unlazy.lab.runner.worker import ONE_THREAD, clear_compiled, run_chunk, run_remote_chunk, start

R = TypeVar("R")
ENGINES = ("local", "dask", "inline")
SUBMIT_TIMEOUT = 1.0
"""Maximum time in seconds to wait until the thread of a pool has taken a submitted task (usually milliseconds)."""


@runtime_checkable
class TrialEngine(Protocol):
    """Interface of an engine that runs chunks of trials."""

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        """Run all chunks and yield their outcomes, in any order."""

    def close(self) -> None:
        """Stop everything that this engine has started."""


@runtime_checkable
class CallWorkers(Protocol):
    """Workers that run any calls, not only chunks of trials."""

    n_jobs: int

    def attempt(
        self, calls: Sequence[Callable[[], R]], needed: Sequence[int], until: float | None, sure: Sequence[int] = ()
    ) -> list[R | None]:
        """Run calls until a deadline; see `Local.attempt`."""


def open_engine(name: str = "local", n_jobs: int | None = None, address: str | None = None) -> TrialEngine:
    """Open an engine.

    Parameters
    ----------
    name : {"local", "dask", "inline"}, default "local"
        Local processes, a dask cluster, or the current process.
    n_jobs : int, optional
        Number of workers; by default one per core.
    address : str, optional
        Address of a dask scheduler, as tcp://host:port; by default a local cluster is started.

    Returns
    -------
    TrialEngine
        The engine; the caller closes it.

    Raises
    ------
    ValueError
        If an argument is invalid.
    UnlazyError
        If the dask cluster is not available.

    Examples
    --------
    >>> from unlazy import lab
    >>> engine = lab.open_engine("inline")
    >>> records = lab.run(
    ...     "information_exponent", seeds=2, change={"k": [1], "d": [16]}, store=None, engine=engine
    ... )
    >>> engine.close()
    >>> len(records)
    2
    """
    if n_jobs is not None:
        check_positive_integer("n_jobs", n_jobs)
    if address is not None and name != "dask":
        raise ValueError(f"an address requires the dask engine, got engine {name!r}")
    if name == "local":
        return Local(n_jobs)
    if name == "dask":
        return Dask(n_jobs, address)
    if name == "inline":
        return Inline()
    raise ValueError(f"no engine {name!r}{did_you_mean(name, ENGINES)}")


@contextmanager
def opened_engine(
    engine: str | TrialEngine, n_jobs: int | None = None, address: str | None = None
) -> Iterator[TrialEngine]:
    """Open the engine of this name and close it at the end; an engine object is left to the caller."""
    if not isinstance(engine, str):
        yield engine
        return
    own = open_engine(engine, n_jobs, address)
    try:
        yield own
    finally:
        own.close()


class Inline(TrialEngine):
    """Runs chunks one after another in the current process; none is started after the deadline `until`."""

    until: float | None = None

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        for chunk in chunks:
            if _left(self.until) == 0:
                return
            yield run_chunk(chunk)

    def close(self) -> None:
        clear_compiled()


class Local(TrialEngine):
    """Runs chunks in new local processes (loky, never forked); each process prefers chunks of one group.

    `until` is a deadline (time.monotonic): after it nothing is started, and running chunks are stopped.
    """

    until: float | None = None

    def __init__(self, n_jobs: int | None):
        import joblib

        self.n_jobs = n_jobs or joblib.cpu_count()
        self._workers = [_Worker() for _ in range(self.n_jobs)]

    def prepare(self, *modules: str) -> None:
        """Start all workers; they import these modules in the background."""
        for worker in self._workers:
            worker.begin(_import, modules)

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        queue, running, idle = _Queue(chunks), dict[Future, _Worker](), self._workers[::-1]
        try:
            while queue or running:
                while queue and idle and _left(self.until) != 0:
                    worker = idle.pop()
                    running[worker.begin(run_chunk, queue.take(worker.group))] = worker
                done = _first(running, self.until)
                if not done:
                    return
                for future in done:
                    outcome: Outcome = _result(future)
                    worker = running.pop(future)
                    worker.group = queue.release(outcome.group)
                    idle.append(worker)
                    yield outcome
        finally:
            self._stop(running.values())  # the deadline has passed, or the caller has stopped

    def attempt(
        self, calls: Sequence[Callable[[], R]], needed: Sequence[int], until: float | None, sure: Sequence[int] = ()
    ) -> list[R | None]:
        """Run calls in workers, started in order, and return their results.

        A call is stopped, and its result is None, if it has not finished by the deadline `until` or when all calls with
        indices in `needed` have finished. At least one of the calls in `sure` is always completed: the last one, if
        none has finished.
        """
        found: list[R | None] = [None] * len(calls)
        waiting, missing, idle = list(range(len(calls))), set(needed), self._workers[::-1]
        running: dict[Future, tuple[int, _Worker]] = {}
        try:
            while missing and _left(until) != 0:
                while waiting and idle:
                    i, worker = waiting.pop(0), idle.pop()
                    running[worker.begin(calls[i])] = i, worker
                for future in _first(running, until):
                    result = _result(future)
                    i, worker = running.pop(future)
                    found[i] = result
                    missing.discard(i)
                    idle.append(worker)
            if sure and all(found[i] is None for i in sure):
                for future in [f for f, (i, _) in running.items() if i == sure[-1]]:
                    self._stop([w for f, (_, w) in running.items() if f is not future])  # they would slow it down
                    found[sure[-1]] = _result(future)
        finally:
            self._stop([worker for _, worker in running.values()])
        return found

    def _stop(self, workers: Iterable["_Worker"]) -> None:
        for worker in workers:
            worker.stop()

    def close(self) -> None:
        self._stop(self._workers)


class _Worker:
    """One process, started on first use, that can be stopped individually."""

    def __init__(self) -> None:
        self.group = ""
        self._pool: Any = None
        self._last: Future | None = None

    def begin(self, function: Callable, *arguments: Any) -> Future:
        from joblib.externals.loky import ProcessPoolExecutor

        if self._pool is None:
            alone = ONE_THREAD | compilation_cache_env()
            self._pool = ProcessPoolExecutor(1, initializer=start, initargs=(os.getpid(),), env=alone)
        self._last = self._pool.submit(function, *arguments)
        return self._last

    def stop(self) -> None:
        if self._pool is None:
            return
        pool, self._pool, self.group = self._pool, None, ""
        patience = time.monotonic() + SUBMIT_TIMEOUT
        while not (self._last is None or self._last.running() or self._last.done()) and time.monotonic() < patience:
            time.sleep(0.005)  # shutting down a pool before its thread has taken a submitted task raises in that thread
        pool.shutdown(wait=True, kill_workers=True)


def _import(modules: Sequence[str]) -> None:
    """Import the modules."""
    for name in modules:
        importlib.import_module(name)


def _first(running: Iterable[Future], until: float | None) -> set[Future]:
    """Wait for the first futures to finish; none if the deadline passes."""
    return wait(running, _left(until), FIRST_COMPLETED).done


def _result(future: Future) -> Any:
    """The result of a future; UnlazyError if its worker died."""
    from joblib.externals.loky import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool as error:
        raise UnlazyError(
            "a worker process died, perhaps because it ran out of memory; finished trials are stored: "
            "run the same command again, with a smaller --n-jobs"
        ) from error


class Dask(TrialEngine):
    """Runs chunks on a dask cluster through joblib; without an address, a local cluster is started."""

    def __init__(self, n_jobs: int | None, address: str | None):
        try:
            from distributed import Client
        except ImportError as error:
            raise UnlazyError("the dask engine requires the package distributed: pip install 'unlazy[dask]'") from error
        import joblib

        self._n_jobs = n_jobs
        try:
            self._client = (
                Client(address, timeout="10s", set_as_default=False)
                if address
                else Client(
                    n_workers=n_jobs or joblib.cpu_count(), threads_per_worker=1, processes=True,
                    dashboard_address=None, set_as_default=False,
                )
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise UnlazyError(f"cannot connect to a dask scheduler at {address}: {error}") from error

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        from joblib import Parallel, delayed, parallel_config

        with parallel_config(backend="dask", client=self._client):
            parallel = Parallel(n_jobs=self._n_jobs or -1, return_as="generator_unordered", batch_size=1)
            yield from parallel(delayed(run_remote_chunk)(chunk) for chunk in chunks)

    def close(self) -> None:
        self._client.close()


def _left(until: float | None) -> float | None:
    """Seconds until a deadline; None if there is none."""
    return None if until is None else max(0.0, until - time.monotonic())


class _Queue:
    """Waiting chunks by group. A worker stays with its group, then takes the group with the fewest workers."""

    def __init__(self, chunks: Sequence[Chunk]):
        self._waiting: dict[str, deque[Chunk]] = {}
        for chunk in chunks:
            self._waiting.setdefault(chunk.group, deque()).append(chunk)
        self._busy: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, preferred: str) -> Chunk:
        group = preferred if preferred in self._waiting else min(self._waiting, key=self._rank)
        self._busy[group] = self._busy.get(group, 0) + 1
        chunk = self._waiting[group].popleft()
        if not self._waiting[group]:
            del self._waiting[group]
        return chunk

    def release(self, group: str) -> str:
        self._busy[group] -= 1
        return group

    def _rank(self, group: str) -> tuple[int, int]:
        return self._busy.get(group, 0), -len(self._waiting[group])
