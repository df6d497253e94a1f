"""Parallel tasks: the limit on threads, the order of results, prefetching."""

import threading
from contextlib import closing

import jax.numpy as jnp
import pytest
from threadpoolctl import threadpool_info

from unlazy.core import threads
from unlazy.core.arrays import precision
from unlazy.core.threads import prefetch


def seen(count=6):
    """The maximum number of concurrent tasks, and their results; tasks wait briefly for others to start."""
    now, most, lock, met = [0], [0], threading.Lock(), threading.Event()

    def task(i):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] > 1:
                met.set()
        met.wait(0.05)
        with lock:
            now[0] -= 1
        return i

    found = threads.run_parallel([lambda i=i: task(i) for i in range(count)])
    return most[0], found


def blas():
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def test_no_more_threads_than_asked_for(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    before = blas()
    most, found = seen()
    assert 2 <= most <= 3 and found == list(range(6))
    with threads.limit_threads(1):
        assert seen() == (1, list(range(6))) and blas() == 1
    with threads.limit_threads(-2):  # all of three but one
        assert seen()[0] == 2
    with threads.limit_threads(-9):
        assert seen()[0] == 1
    with threads.limit_threads(None):
        assert seen()[0] >= 2
    assert blas() == before


@pytest.mark.parametrize("jobs", [0, 1.5, True, "two"])
def test_misuse(jobs):
    with pytest.raises(ValueError, match="n_jobs must be a nonzero integer"), threads.limit_threads(jobs):
        pass


def test_prefetch_prepares_exactly_one_item_ahead():
    begun = [threading.Event() for _ in range(6)]
    alive = set()

    def make(i):
        begun[i].set()
        alive.add(i)
        return i

    for i in prefetch(make, range(6)):
        assert i == 5 or begun[i + 1].wait(60)  # nobody asked for it yet
        assert i > 3 or not begun[i + 2].is_set()
        assert len(alive) <= 2
        alive.discard(i)
    assert not alive


def test_prefetch_keeps_the_precision_and_raises_in_order():
    def make(i):
        if i == 2:
            raise ValueError("two")
        return jnp.ones(1).dtype.name

    for name in ("float32", "float64"):
        seen = []
        with precision(name), pytest.raises(ValueError, match="two"):
            seen.extend(prefetch(make, range(9)))
        assert seen == [name, name]


def test_closing_the_iterator_early_ends_the_thread():
    made = []
    with closing(prefetch(made.append, range(100))) as items:
        next(items)
    assert len(made) <= 2 and not [t for t in threading.enumerate() if t.name.startswith("prefetch")]
