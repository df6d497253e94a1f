"""Worker processes: run chunks in one thread, with one compiled function per group of points."""

import os
import platform
import signal
import subprocess
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray
from threadpoolctl import threadpool_limits

from unlazy._version import VERSION
from unlazy.core import devices
from unlazy.core.arrays import precision
from unlazy.lab.experiment import Experiment, Measures, Params
from unlazy.lab.runner.resident_memory import MemoryLimit
from unlazy.lab.runner.serialization import check_measures, normalize_measures
from unlazy.lab.runner.sweep import Chunk, Environment, Outcome, Trial

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # A pool of one thread: XLA does not parallelize, and batched LAPACK calls of one program cannot deadlock while they
    # wait for each other's threads (jaxlib maps a batch over the pool that its caller occupies).
    "PJRT_NPROC": "1",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip(),
    "XLA_PYTHON_CLIENT_PREALLOCATE": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),  # workers share a GPU
}

_compiled: dict[tuple, Callable] = {}
_MAX_COMPILED = 32  # compiled functions that a worker keeps
_memory_limit: list[MemoryLimit] = []  # set in worker processes only: the programs of the main process are the user's


def start(parent: int | None = None) -> None:
    """Turn this process into a worker: one thread (before JAX starts), ignores Ctrl-C, exits with its parent."""
    os.environ.update(ONE_THREAD)
    _memory_limit[:] = [MemoryLimit(clear_compiled)]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and stops the workers
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def run_chunk(chunk: Chunk) -> Outcome:
    """Run one chunk in this process; an exception in a trial becomes part of the outcome."""
    import scipy.linalg  # noqa: F401  JAX uses its BLAS, and limits apply only to loaded libraries

    run = _run_vectorized if chunk.experiment.vectorized else _run_sequentially
    with precision(chunk.experiment.precision), threadpool_limits(1):
        try:
            trials = run(chunk)
        except Exception as error:
            trials = [Trial(seed, None, float("nan"), _traceback(error)) for seed in chunk.wanted]
        outcome = Outcome(chunk.params, tuple(trials), environment(), os.getpid(), chunk.group)
    for limit in _memory_limit:
        limit.enforce()
    return outcome


def run_remote_chunk(chunk: Chunk) -> Outcome:
    """`run_chunk` for workers started by others (dask): limits the process to one thread first."""
    _start_once()
    return run_chunk(chunk)


def trial_key(experiment: Experiment, seed: ArrayLike) -> PRNGKeyArray:
    """PRNG key of a trial, from the seed and the name of the experiment only: all points share the same randomness."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(experiment.name.encode()))


def clear_compiled() -> None:
    """Drop all compiled functions."""
    _compiled.clear()


@cache
def environment() -> Environment:
    """Versions, device and commit of this process."""
    return Environment(VERSION, jax.__version__, platform.python_version(), devices.description(), _commit())


def _run_vectorized(chunk: Chunk) -> list[Trial]:
    """Run all lanes of a chunk in one vectorized call."""
    experiment = chunk.experiment
    moving = {k: chunk.params[k] for k in (*experiment.traced, *experiment.padded) if k in chunk.params}
    for name, value in moving.items():
        if not isinstance(value, int | float | np.number):
            raise TypeError(f"traced parameter {name!r} must be a number, got {value!r}")
    seeds = np.asarray(chunk.lanes, np.uint32)
    function = _compile(chunk, moving, seeds)
    began = time.perf_counter()
    measures = jax.device_get(function(moving, seeds))
    seconds = (time.perf_counter() - began) / len(chunk.lanes)
    lanes = {seed: i for i, seed in enumerate(chunk.lanes)}
    found = [(s, {k: v[lanes[s]] for k, v in measures.items()}) for s in chunk.wanted]
    return [Trial(s, normalize_measures(values, chunk.params), seconds) for s, values in found]


def _compile(chunk: Chunk, moving: Params, seeds: np.ndarray) -> Callable:
    """Compiled function of a group of points: (traced parameters, seeds) → measures with a leading axis of lanes."""
    key = (chunk.group, *(type(v) for v in moving.values()))
    if key not in _compiled:
        experiment, static = chunk.experiment, _static(chunk)

        def one(moving: Params, seed: ArrayLike) -> Measures:
            return check_measures(experiment.trial(static | moving, trial_key(experiment, seed)), chunk.params)

        while len(_compiled) >= _MAX_COMPILED:
            del _compiled[next(iter(_compiled))]
        _compiled[key] = jax.jit(jax.vmap(one, in_axes=(None, 0))).lower(moving, seeds).compile()
    return _compiled[key]


def _run_sequentially(chunk: Chunk) -> list[Trial]:
    """Run the wanted seeds of a chunk one after another, without jit."""
    trials = []
    for seed in chunk.wanted:
        began = time.perf_counter()
        measures = chunk.experiment.trial(_static(chunk) | chunk.params, trial_key(chunk.experiment, seed))
        trials.append(Trial(seed, normalize_measures(measures, chunk.params), time.perf_counter() - began))
    return trials


def _static(chunk: Chunk) -> Params:
    """The static parameters of a chunk."""
    return dict(chunk.experiment.static_part(chunk.params))


def _traceback(error: Exception) -> str:
    """The traceback; its last line is always the exception (JAX may add remarks after it)."""
    text = "".join(traceback.format_exception(error)).rstrip()
    reason = " ".join(traceback.format_exception_only(error)[0].split())
    return text if text.splitlines()[-1] == reason else f"{text}\n{reason}"


@cache
def _start_once() -> None:
    start()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent process ends."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _commit() -> str:
    """The git commit of the source tree, with "+" if it was modified; empty if there is none."""
    folder = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        edited = "+" if git("status", "--porcelain", "--untracked-files=no", ".") else ""
        return git("rev-parse", "HEAD") + edited
    except (OSError, subprocess.SubprocessError):
        return ""
