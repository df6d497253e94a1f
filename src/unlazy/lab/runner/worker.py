"""What happens inside a worker: one chunk, one thread, one compiled function per group of points."""

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
from typing import Any

import jax
import numpy as np

from unlazy._version import VERSION
from unlazy.core import devices
from unlazy.core.precision import precision
from unlazy.lab.experiment import Experiment, Params
from unlazy.lab.runner.resident_memory import Keeper
from unlazy.lab.runner.serialization import check_measures, tidy
from unlazy.lab.runner.sweep import Chunk, Environment, Outcome, Trial

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # A pool of one: XLA then splits nothing over threads, and batched LAPACK calls of one program cannot wait for each
    # other's threads forever (jaxlib maps a batch over the very pool that its caller occupies).
    "PJRT_NPROC": "1",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip(),
    "XLA_PYTHON_CLIENT_PREALLOCATE": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),  # workers share a GPU
}

_compiled: dict[tuple, Callable] = {}
_KEEP = 32  # compiled functions a worker holds on to
_keeper: list[Keeper] = []  # of a process that is a worker: in the user's own, programs are the user's


def start(parent: int | None = None) -> None:
    """Make this process a worker: one thread (before JAX starts), deaf to Ctrl-C, gone when its parent is."""
    os.environ.update(ONE_THREAD)
    _keep_compiled_programs()
    _keeper[:] = [Keeper(forget)]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends us
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def run_chunk(chunk: Chunk) -> Outcome:
    """Run one chunk in this process; an exception in a trial becomes its outcome."""
    import scipy.linalg  # noqa: F401  its BLAS is the one JAX uses; limits reach only what is loaded
    from threadpoolctl import threadpool_limits

    run = _run_vectorized if chunk.experiment.vectorized else _run_plainly
    with precision(chunk.experiment.precision), threadpool_limits(1):
        try:
            trials = run(chunk)
        except Exception as error:
            trials = [Trial(seed, None, float("nan"), _traceback(error)) for seed in chunk.wanted]
        outcome = Outcome(chunk.params, tuple(trials), environment(), os.getpid(), chunk.group)
    for keeper in _keeper:
        keeper.look()
    return outcome


def run_remote_chunk(chunk: Chunk) -> Outcome:
    """`run_chunk` for workers somebody else started: makes the process one-threaded first."""
    _start_once()
    return run_chunk(chunk)


def trial_key(experiment: Experiment, seed: Any) -> Any:
    """The key of a trial: its seed and the experiment's name alone, so that every point sees the same randomness."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(experiment.name.encode()))


def forget() -> None:
    """Drop every compiled function."""
    _compiled.clear()


@cache
def environment() -> Environment:
    """Versions, device and commit of this process."""
    return Environment(VERSION, jax.__version__, platform.python_version(), devices.description(), _commit())


def _run_vectorized(chunk: Chunk) -> list[Trial]:
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
    return [Trial(s, tidy(values, chunk.params), seconds) for s, values in found]


def _compile(chunk: Chunk, moving: Params, seeds: np.ndarray) -> Callable:
    """One function for all points of a group: (traced parameters, seeds) → measures with a leading axis of lanes."""
    key = (chunk.group, *(type(v) for v in moving.values()))
    if key not in _compiled:
        experiment, static = chunk.experiment, _static(chunk)

        def one(moving: Params, seed: Any) -> dict[str, Any]:
            return check_measures(experiment.trial(static | moving, trial_key(experiment, seed)), chunk.params)

        while len(_compiled) >= _KEEP:
            del _compiled[next(iter(_compiled))]
        _compiled[key] = jax.jit(jax.vmap(one, in_axes=(None, 0))).lower(moving, seeds).compile()
    return _compiled[key]


def _run_plainly(chunk: Chunk) -> list[Trial]:
    trials = []
    for seed in chunk.wanted:
        began = time.perf_counter()
        measures = chunk.experiment.trial(_static(chunk) | chunk.params, trial_key(chunk.experiment, seed))
        trials.append(Trial(seed, tidy(measures, chunk.params), time.perf_counter() - began))
    return trials


def _static(chunk: Chunk) -> Params:
    return dict(chunk.experiment.static_part(chunk.params))


def _traceback(error: Exception) -> str:
    """The traceback, its last line always the reason (JAX may add remarks after it)."""
    text = "".join(traceback.format_exception(error)).rstrip()
    reason = " ".join(traceback.format_exception_only(error)[0].split())
    return text if text.splitlines()[-1] == reason else f"{text}\n{reason}"


@cache
def _start_once() -> None:
    start()


def _keep_compiled_programs(limit: int = 4 * 2**30) -> None:
    """joblib ends a worker that has grown by 300 MB; compiled programs are no leak, and a new worker has none."""
    from joblib.externals.loky import process_executor

    if hasattr(process_executor, "_MAX_MEMORY_LEAK_SIZE"):
        process_executor._MAX_MEMORY_LEAK_SIZE = limit


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _commit() -> str:
    """The commit of this package's source tree, marked when it was edited; empty where there is none."""
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
