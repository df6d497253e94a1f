"""Which method and which precision suit a problem, and why, in a sentence."""

import jax
import numpy as np

from unlazy.solvers.problem import Problem

SMALL = 4000
"""Up to here a factorisation in float64 takes about a second and leaves nothing to ask for."""
GPU_FULL = 300_000
"""Up to here a GPU makes a pass over all pairs in a tenth of a second, so all points can be centres."""
TIGHT = 1e-5
"""Tolerances below this are beyond what a float32 kernel resolves."""


def choose(problem: Problem, method: str | None, centres_given: bool = False) -> tuple[str, str]:
    """The method's name and the reason."""
    n, memory = problem.n, problem.memory
    if method is not None:
        return method, "it was asked for"
    if centres_given:
        return "nystrom_cg", "centres were given"
    if n <= SMALL and 8 * n * n <= memory:
        return "direct", f"n = {n} is at most {SMALL}: one factorisation is exact and takes about a second"
    if problem.source.whole is None and 4 * n * problem.source.d > memory // 2:
        return "nystrom_cg", f"the inputs ({n} × {problem.source.d}) do not fit half of the memory budget"
    stored = 4 * n * n <= 0.8 * memory
    if not stored and (jax.default_backend() == "cpu" or n > GPU_FULL):
        return "nystrom_cg", f"K of n = {n} points does not fit the memory budget of {memory / 2**30:.3g} GiB"
    where = "a pass over K costs little on this device" if not stored else "K fits the memory budget"
    return "preconditioned_cg", f"{where}, so all points can be centres"


def choose_precision(
    problem: Problem, method: str, tolerance: float, asked: str | None
) -> tuple[np.dtype, tuple[str, ...]]:
    """float32, or float64 where the tolerance needs it or the problem is small; with a note where it is not obvious."""
    if asked is not None:
        if asked not in ("float32", "float64"):
            raise ValueError(f"precision must be 'float32' or 'float64', got {asked!r}")
        return np.dtype(asked), ()
    if problem.n <= SMALL and 16 * problem.n**2 <= problem.memory:
        return np.dtype("float64"), ()
    if tolerance < TIGHT:
        return np.dtype("float64"), (f"float64, since float32 cannot reach a tolerance of {tolerance:.0e}",)
    return np.dtype("float32"), ()
