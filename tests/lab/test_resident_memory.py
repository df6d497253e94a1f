"""Workers drop their compiled programs when their resident memory exceeds a limit."""

import os
import subprocess
import sys

import jax
import pytest

from unlazy.lab.runner import worker
from unlazy.lab.runner.resident_memory import MemoryLimit, resident

needs_size = pytest.mark.skipif(resident() is None, reason="resident memory is unknown on this system")

_MANY = """
import jax, jax.numpy as jnp
from unlazy.lab.runner.resident_memory import MemoryLimit, resident
programs = {}
limit = MemoryLimit(programs.clear, bound=BOUND, allowance=12 * 2**20)
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
    forgot += limit.enforce()
    most = max(most, resident())
print(forgot, most - start, resident() - start)
"""


def _grown(bound: str, count: int) -> tuple[int, int]:
    """How often a new process dropped its programs, and its largest growth while compiling `count` programs."""
    code = _MANY.replace("BOUND", bound).replace("COUNT", str(count))
    # unoptimized programs are several times as large: a few megabytes take seconds, not minutes
    unoptimized = {"JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | unoptimized
    )
    forgot, most, _ = map(int, result.stdout.split())
    return forgot, most


@needs_size
@pytest.mark.slow
@pytest.mark.nightly
def test_dropping_programs_releases_their_memory():
    """Twelve programs with a bound that the third one exceeds, compared with twelve programs without a bound."""
    never, kept = _grown("2**50", 12)
    often, bounded = _grown("resident() + 12 * 2**20", 12)
    assert never == 0 and often >= 2
    assert bounded < 0.7 * kept  # a third of the programs, and what compilation itself leaves behind


@needs_size
def test_limit_adapts_to_memory_that_cannot_be_released(monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # keep the programs of other tests
    dropped = []
    limit = MemoryLimit(lambda: dropped.append(1), bound=1, allowance=2**40)
    assert limit.enforce() and dropped == [1]
    assert not limit.enforce()  # the limit has moved: programs are not dropped after every chunk
    assert not MemoryLimit(lambda: dropped.append(1), bound=2**60).enforce()


@needs_size
def test_worker_enforces_limit_after_every_chunk(monkeypatch):
    import lab_toys

    from unlazy import lab

    calls = []

    class Noted(MemoryLimit):
        def enforce(self) -> bool:
            calls.append(True)
            return False

    monkeypatch.setattr(worker, "_memory_limit", [Noted(worker.clear_compiled)])
    lab.run(lab_toys.plain, seeds=1, engine="inline", store=None, progress=False)
    assert len(calls) == 3
