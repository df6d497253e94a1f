"""Which method and which precision suit a problem, and why, in a sentence; what to try next where float32 fails."""

import numpy as np

from unlazy.core import devices
from unlazy.core.precision import rounding
from unlazy.solvers.methods.registry import METHODS
from unlazy.solvers.problem import Problem

SMALL = 4000
"""Up to here a factorization in float64 takes about a second and leaves nothing to ask for."""
CPU_DIRECT = 8000
"""Up to here a factorization in float64 is the way out where float32 fails: some ten seconds."""
GPU_DIRECT = 40_000
"""The same on a GPU: about a second."""
CPU_FULL = 30_000
"""Up to here K is computed again in every pass where it does not fit: a pass takes a second or two."""
GPU_FULL = 300_000
"""Up to here a GPU makes a pass over all pairs in a tenth of a second, so all points can be centers."""
TIGHT = 1e-5
"""Tolerances below this are beyond what a float32 kernel resolves."""
HARD = 8
"""Ridges below so many roundings of λ_max in float32: its products then lose the small directions to rounding."""
LEAST_RANK = 10


def choose(problem: Problem, method: str | None, centers_given: bool = False) -> tuple[str, str]:
    """The method's name and the reason."""
    n, memory = problem.n, problem.memory
    if not problem.source.matrix:
        return _for_any_data(problem, method, centers_given)
    if method is not None:
        return method, "it was asked for"
    if centers_given:
        return "nystrom_cg", "centers were given"
    if n <= SMALL and 8 * n * n <= memory:
        return "direct", f"n = {n} is at most {SMALL}: one factorization is exact and takes about a second"
    if problem.source.whole is None and 4 * n * problem.source.d > memory // 2:
        return "nystrom_cg", f"the inputs ({n} × {problem.source.d}) do not fit half of the memory budget"
    if 4 * n * n <= 0.8 * memory:
        return "preconditioned_cg", "K fits the memory budget, so all points can be centers"
    budget = f"K of n = {n} points does not fit the memory budget of {_size(memory)}"
    if n > (CPU_FULL if devices.is_host() else GPU_FULL):
        return "nystrom_cg", f"{budget}, and there are too many points to compute it again in every pass"
    least = n * (4 * (3 * LEAST_RANK + 4) + 64 * problem.y.shape[1])
    if memory < least:
        raise ValueError(
            f"{budget}, and even computing it again in every pass takes {_size(least)}: allow that with memory=, or "
            "ask for an approximation with centers="
        )
    if problem.kernel.takes_gradients or devices.count() > 1:  # blocks come one after the other, on one device
        return "preconditioned_cg", f"{budget}, so it is computed again in every pass"
    return "askotch", f"{budget}, so it is computed again in every pass, of which blocks of rows need the fewest"


def _for_any_data(problem: Problem, method: str | None, centers_given: bool) -> tuple[str, str]:
    """Images and trees are solved by one factorization, by blocks where asked; other methods read rows of a matrix."""
    if centers_given or (method is not None and not METHODS[method].any_data):
        asked = "centers" if centers_given else f"method {method!r}"
        raise ValueError(
            f"{asked} needs inputs that are a matrix; images and trees are solved with method='direct' or 'askotch'"
        )
    if method is not None:
        return method, "it was asked for"
    if 4 * problem.n**2 > problem.memory:
        raise ValueError(
            f"K of n = {problem.n} points does not fit the memory budget of {_size(problem.memory)}, and inputs that "
            "are no matrix are solved with K in memory: use fewer points, allow more with memory=, or have K computed "
            "again in every pass with method='askotch'"
        )
    return "direct", "the inputs are no matrix: one factorization serves any data"


def choose_precision(
    problem: Problem, method: str, tolerance: float, asked: str | None
) -> tuple[np.dtype, tuple[str, ...]]:
    """float32, or float64 where the tolerance or the ridge needs it or the problem is small; with a note where it is
    not obvious."""
    if asked is not None:
        if asked not in ("float32", "float64"):
            raise ValueError(f"precision must be 'float32' or 'float64', got {asked!r}")
        return np.dtype(asked), ()
    if problem.n <= SMALL and 16 * problem.n**2 <= problem.memory:
        return np.dtype("float64"), ()
    if tolerance < TIGHT:
        return np.dtype("float64"), (f"float64, since float32 cannot reach a tolerance of {tolerance:.0e}",)
    if problem.ridge_within(HARD * rounding(np.float32)):
        return np.dtype("float64"), (
            f"float64, since a ridge of {problem.ridge:.2g} is lost in float32's rounding of K",
        )
    return np.dtype("float32"), ()


def wide_method(problem: Problem, method: str, free: bool) -> str:
    """The method for float64: a factorization where that is quick enough and fits and the choice is free."""
    most = CPU_DIRECT if devices.is_host() else GPU_DIRECT
    copies = 1 if devices.is_host() else 3
    full = method in ("preconditioned_cg", "askotch") and free
    return "direct" if full and problem.n <= most and copies * 8 * problem.n**2 <= problem.memory else method


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{max(count / 2**20, 0.01):.3g} MiB"
