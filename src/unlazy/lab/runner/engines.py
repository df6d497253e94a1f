"""Where chunks run: processes of this machine (`local`), a dask cluster (`dask`), or this process (`inline`).

Every engine gives the outcomes as they finish; only the process that asked writes to the store. Workers have one
thread each, whatever their number, so that their numbers do not depend on it. `inline` leaves XLA's threads of this
process alone and is for debugging: with few cores, several vectorized decompositions in one trial can then deadlock
in jaxlib (seen in 0.10), which workers cannot.
"""

import importlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, runtime_checkable

from unlazy.core.errors import UnlazyError, check_positive_integer, nearest
from unlazy.lab.runner.sweep import Chunk, Outcome

ENGINES = ("local", "dask", "inline")
STARTING = 1.0
"""Seconds, at most, until a pool's thread has taken what was submitted: it is a matter of milliseconds."""


@runtime_checkable
class Engine(Protocol):
    """Runs chunks."""

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        """The outcome of every chunk, in any order."""

    def close(self) -> None:
        """End what this engine started, at once."""


def open_engine(name: str = "local", jobs: int | None = None, address: str | None = None) -> Engine:
    """The engine of this name; `jobs` workers (default: one per core)."""
    if jobs is not None:
        check_positive_integer("jobs", jobs)
    if address is not None and name != "dask":
        raise ValueError(f"an address belongs to the dask engine, and the engine is {name!r}")
    if name == "local":
        return Local(jobs)
    if name == "dask":
        return Dask(jobs, address)
    if name == "inline":
        return Inline()
    raise ValueError(f"no engine {name!r}{nearest(name, ENGINES)}")


class Inline:
    """This process, one chunk after another; none is begun after `until`."""

    until: float | None = None

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        from unlazy.lab.runner.worker import run_chunk

        for chunk in chunks:
            if _left(self.until) == 0:
                return
            yield run_chunk(chunk)

    def close(self) -> None:
        from unlazy.lab.runner.worker import forget

        forget()


class Local:
    """Fresh processes of this machine (loky: never a fork), also when there is one; each keeps to its group.

    `until` is a moment (time.monotonic) after which outcomes end: nothing is begun then, and what runs is stopped.
    """

    until: float | None = None

    def __init__(self, jobs: int | None):
        import joblib

        self.jobs = jobs or joblib.cpu_count()
        self._workers = [_Worker() for _ in range(self.jobs)]

    def prepare(self, *modules: str) -> None:
        """Begin all workers, which import these modules while the caller does something else."""
        for worker in self._workers:
            worker.begin(_import, modules)

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        from unlazy.lab.runner.worker import run_chunk

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
            self._stop(running.values())  # given up, or nobody asks for them any more

    def attempt(
        self, calls: Sequence[Callable[[], Any]], needed: Sequence[int], until: float | None, sure: Sequence[int] = ()
    ) -> list[Any]:
        """What calls return, each in a worker, begun in their order; None where one has not ended at the moment
        `until`, or when those `needed` have: it is stopped. One of those `sure` is waited for in any case: the last,
        if none has ended."""
        found: list[Any] = [None] * len(calls)
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
                    self._stop([w for f, (_, w) in running.items() if f is not future])  # what would slow it down
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
    """One process, begun when there is something to do, that can be stopped alone."""

    def __init__(self) -> None:
        self.group = ""
        self._pool: Any = None
        self._last: Future | None = None

    def begin(self, function: Callable, *arguments: Any) -> Future:
        from joblib.externals.loky import ProcessPoolExecutor

        from unlazy.core.compilation_cache import kept_programs
        from unlazy.lab.runner.worker import ONE_THREAD, start

        if self._pool is None:
            alone = ONE_THREAD | kept_programs()
            self._pool = ProcessPoolExecutor(1, initializer=start, initargs=(os.getpid(),), env=alone)
        self._last = self._pool.submit(function, *arguments)
        return self._last

    def stop(self) -> None:
        if self._pool is None:
            return
        pool, self._pool, self.group = self._pool, None, ""
        patience = time.monotonic() + STARTING
        while not (self._last is None or self._last.running() or self._last.done()) and time.monotonic() < patience:
            time.sleep(0.005)  # a pool that is shut down between a submission and its thread's look at it trips over it
        pool.shutdown(wait=True, kill_workers=True)


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)


def _first(running: Iterable[Future], until: float | None) -> set[Future]:
    """Those that have ended, once one has; none at the moment `until`."""
    return wait(running, _left(until), FIRST_COMPLETED).done


def _result(future: Future) -> Any:
    from joblib.externals.loky import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool as error:
        raise UnlazyError(
            "a worker process died, perhaps for want of memory; what finished is stored: "
            "run the same command again, with fewer --jobs"
        ) from error


class Dask:
    """Workers of a dask cluster through joblib; without an address, a cluster of this machine's processes."""

    def __init__(self, jobs: int | None, address: str | None):
        try:
            from distributed import Client
        except ImportError as error:
            raise UnlazyError("the dask engine needs the package distributed: pip install 'unlazy[dask]'") from error
        import joblib

        self._jobs = jobs
        try:
            self._client = (
                Client(address, timeout="10s", set_as_default=False)
                if address
                else Client(
                    n_workers=jobs or joblib.cpu_count(), threads_per_worker=1, processes=True,
                    dashboard_address=None, set_as_default=False,
                )
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise UnlazyError(f"no dask scheduler answers at {address}: {error}") from error

    def outcomes(self, chunks: Sequence[Chunk]) -> Iterator[Outcome]:
        from joblib import Parallel, delayed, parallel_config

        from unlazy.lab.runner.worker import run_remote_chunk

        with parallel_config(backend="dask", client=self._client):
            parallel = Parallel(n_jobs=self._jobs or -1, return_as="generator_unordered", batch_size=1)
            yield from parallel(delayed(run_remote_chunk)(chunk) for chunk in chunks)

    def close(self) -> None:
        self._client.close()


def _left(until: float | None) -> float | None:
    """Seconds to this moment; None for ever."""
    return None if until is None else max(0.0, until - time.monotonic())


class _Queue:
    """Waiting chunks by group. A worker keeps its group while it lasts, then takes one that nobody works on."""

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
