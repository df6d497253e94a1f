"""A worker's compiled programs do not pile up: they are forgotten once it holds too much."""

import os
import subprocess
import sys

import jax
import pytest

from unlazy.lab.runner import worker
from unlazy.lab.runner.resident_memory import Keeper, resident

needs_size = pytest.mark.skipif(resident() is None, reason="this system does not say how much a process holds")

_MANY = """
import jax, jax.numpy as jnp
from unlazy.lab.runner.resident_memory import Keeper, resident
programs = {}
keeper = Keeper(programs.clear, bound=BOUND, room=12 * 2**20)
forgot, most = 0, 0
x = jnp.ones(7)
start = resident()
def long(k):
    def f(x):
        for i in range(60):
            x = jnp.sort(jnp.sin(x * (k + i)) + x[::-1])
        return x
    return f
for k in range(COUNT):
    programs[k] = jax.jit(long(k)).lower(x).compile()
    forgot += keeper.look()
    most = max(most, resident())
print(forgot, most - start, resident() - start)
"""


def _grown(bound: str, count: int) -> tuple[int, int]:
    """How often a fresh process forgot, and the most that compiling `count` programs made it grow by."""
    code = _MANY.replace("BOUND", bound).replace("COUNT", str(count))
    # in a hurry a compiler's programs are several times as large: a few megabytes take seconds, not minutes
    hurried = {"JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | hurried
    )
    forgot, most, _ = map(int, result.stdout.split())
    return forgot, most


@needs_size
@pytest.mark.slow
def test_programs_that_are_forgotten_give_their_memory_back():
    """Twelve programs after a bound that the third reaches at the latest, against twelve that all stay."""
    never, kept = _grown("2**50", 12)
    often, bounded = _grown("resident() + 12 * 2**20", 12)
    assert never == 0 and often >= 2
    assert bounded < 0.7 * kept  # a third of the programs, and what compiling itself leaves behind


@needs_size
def test_the_bound_is_looked_at_and_moves_with_what_cannot_be_forgotten(monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # the other tests' programs
    forgotten = []
    keeper = Keeper(lambda: forgotten.append(1), bound=1, room=2**40)
    assert keeper.look() and forgotten == [1]
    assert not keeper.look()  # what is left now is the measure: no forgetting after every chunk
    assert not Keeper(lambda: forgotten.append(1), bound=2**60).look()


@needs_size
def test_a_worker_looks_after_every_chunk(monkeypatch):
    import lab_toys

    from unlazy import lab

    looked = []

    class Noted(Keeper):
        def look(self) -> bool:
            looked.append(True)
            return False

    monkeypatch.setattr(worker, "_keeper", [Noted(worker.forget)])
    lab.run(lab_toys.plain, seeds=1, engine="inline", store=None, progress=False)
    assert len(looked) == 3
