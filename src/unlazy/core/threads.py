"""Parallel execution of independent tasks in threads.

NumPy, LAPACK and compiled programs release the GIL while they compute. Many factorizations of about a thousand rows are
faster in parallel on one core each than one after another on all cores.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from unlazy.core.arrays import default_float, precision
from unlazy.core.devices import memory_budget

T = TypeVar("T")
A = TypeVar("A")
_inside = threading.local()
_max_threads: ContextVar[int | None] = ContextVar("max_threads", default=None)


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def run_parallel(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Results of all tasks, in order. Each runs in the caller's precision; nested calls run sequentially."""
    workers = min(len(tasks), _max_threads.get() or available_cores())
    if workers < 2 or getattr(_inside, "busy", False):
        return [task() for task in tasks]
    name = default_float().name

    def run(task: Callable[[], Any]) -> Any:
        _inside.busy = True
        with precision(name):
            return task()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, tasks))


def prefetch(make: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Yield `make(item)` for each item; the next one is computed in a thread while the caller uses the current one.

    At most two results are alive at once. `make` runs in the caller's precision. An exception is raised when its item
    is due, and the thread ends if the caller stops early.

    Examples
    --------
    >>> from unlazy.core.threads import prefetch
    >>> list(prefetch(str, range(3)))
    ['0', '1', '2']
    """
    name = default_float().name

    def run(item: A) -> T:
        with precision(name):
            return make(item)

    pool, waiting = ThreadPoolExecutor(1, "prefetch"), deque[Future[T]]()
    try:
        for item in items:
            waiting.append(pool.submit(run, item))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def single_threaded_blas() -> AbstractContextManager:
    """Context manager that limits BLAS to one thread: for small factorizations, more threads are slower."""
    return threadpool_limits(1, "blas")


def half_threaded_blas() -> AbstractContextManager:
    """Context manager that limits BLAS to half of the cores.

    For factorizations of a few thousand rows, the second half of the threads saves a sixth of the time for a sixth more
    work.
    """
    return threadpool_limits(max(1, (_max_threads.get() or available_cores()) // 2), "blas")


def limit_threads_by_memory(bytes_per_thread: int) -> AbstractContextManager:
    """Context manager that limits the number of threads to what fits the memory budget."""
    return limit_threads(max(1, min(_max_threads.get() or available_cores(), memory_budget() // bytes_per_thread)))


@contextmanager
def limit_threads(jobs: object) -> Iterator[None]:
    """Limit the number of threads of `run_parallel` and of BLAS.

    -1 means all cores, -2 all but one, and so on, as in scikit-learn; None changes nothing. Programs that XLA compiles
    for the CPU use their own threads.
    """
    if jobs is None:
        yield
        return
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs == 0:
        raise ValueError(f"n_jobs must be a nonzero integer (-1 for all cores) or None, got {jobs!r}")
    most = jobs if jobs > 0 else max(1, available_cores() + 1 + jobs)
    token = _max_threads.set(most)
    try:
        with threadpool_limits(most, "blas"):
            yield
    finally:
        _max_threads.reset(token)
