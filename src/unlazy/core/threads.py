"""Independent pieces of work on the cores at hand, side by side in threads.

NumPy, LAPACK and compiled programs let other threads run while they compute. Many factorizations of a thousand rows are
done faster next to each other, each on one core, than one after the other on all of them.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from unlazy.core.memory import memory_budget
from unlazy.core.precision import default_float, precision

T = TypeVar("T")
A = TypeVar("A")
_inside = threading.local()
_most: ContextVar[int | None] = ContextVar("most", default=None)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all tasks, in their order; each runs in the caller's precision. Tasks inside tasks run one after
    the other."""
    workers = min(len(tasks), _most.get() or cores())
    if workers < 2 or getattr(_inside, "busy", False):
        return [task() for task in tasks]
    name = default_float().name

    def run(task: Callable[[], Any]) -> Any:
        _inside.busy = True
        with precision(name):
            return task()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, tasks))


def ahead(make: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """`make(item)` of one item after the other, the next made in a thread while the caller uses the present one: two
    are alive at once, and what takes longer, making or using, sets the pace. In the caller's precision; an error comes
    out where its item is due, and a caller who leaves early ends the thread.

    >>> list(ahead(str, range(3)))
    ['0', '1', '2']
    """
    name = default_float().name

    def run(item: A) -> T:
        with precision(name):
            return make(item)

    pool, waiting = ThreadPoolExecutor(1, "ahead"), deque[Future[T]]()
    try:
        for item in items:
            waiting.append(pool.submit(run, item))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def one_thread_each() -> Any:
    """A scope in which BLAS takes one thread: small factorizations lose more to threads that wait than they gain."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "blas")


def half_the_cores() -> Any:
    """A scope in which BLAS takes every other core: in factorizations of a few thousand rows the second half of the
    threads brings a sixth of the time for a sixth more work."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(max(1, (_most.get() or cores()) // 2), "blas")


def within_memory(each: int) -> Any:
    """A scope of as many threads at most as the memory budget has room for, if each takes so many bytes."""
    return at_most(max(1, min(_most.get() or cores(), memory_budget() // each)))


@contextmanager
def at_most(jobs: Any) -> Iterator[None]:
    """A scope of at most so many threads, of `together` and of BLAS; -1 is all cores, -2 all but one, and so on, as in
    scikit-learn; None changes nothing. The programs that XLA compiles for the CPU have threads of their own."""
    from threadpoolctl import threadpool_limits

    if jobs is None:
        yield
        return
    whole = isinstance(jobs, int) and not isinstance(jobs, bool)
    if not whole or jobs == 0:
        raise ValueError(f"n_jobs must be a whole number, -1 for all cores, or None, got {jobs!r}")
    most = jobs if jobs > 0 else max(1, cores() + 1 + jobs)
    token = _most.set(most)
    try:
        with threadpool_limits(most, "blas"):
            yield
    finally:
        _most.reset(token)
