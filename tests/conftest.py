"""Fast tests share compiled programs through JAX's persistent cache, kept out of git."""

import os
from pathlib import Path

_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Batched decompositions in one program can wait for each other on jaxlib's thread pool where cores are few.
os.environ.setdefault("PJRT_NPROC", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def x64():
    """The test runs in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Compiled programs of a whole suite would fill gigabytes; modules share few of them."""
    yield
    jax.clear_caches()
