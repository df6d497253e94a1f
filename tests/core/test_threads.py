"""Work side by side: never more threads than asked for, results in order."""

import threading

import pytest
from threadpoolctl import threadpool_info

from unlazy.core import threads


def seen(count=6):
    """The most tasks at work at once, and what they gave; tasks wait a little for company."""
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

    found = threads.together([lambda i=i: task(i) for i in range(count)])
    return most[0], found


def blas():
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def test_no_more_threads_than_asked_for(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 3)
    before = blas()
    most, found = seen()
    assert 2 <= most <= 3 and found == list(range(6))
    with threads.at_most(1):
        assert seen() == (1, list(range(6))) and blas() == 1
    with threads.at_most(-2):  # all of three but one
        assert seen()[0] == 2
    with threads.at_most(-9):
        assert seen()[0] == 1
    with threads.at_most(None):
        assert seen()[0] >= 2
    assert blas() == before


@pytest.mark.parametrize("jobs", [0, 1.5, True, "two"])
def test_misuse(jobs):
    with pytest.raises(ValueError, match="n_jobs must be a whole number"), threads.at_most(jobs):
        pass
