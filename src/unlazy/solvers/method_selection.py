"""Choice of method and precision for a problem, with the reason; the fallback if float32 fails."""

import numpy as np

from unlazy.core import devices
from unlazy.core.arrays import unit_roundoff
from unlazy.core.errors import did_you_mean
from unlazy.solvers.methods.askotch import Askotch
from unlazy.solvers.methods.base import Method
from unlazy.solvers.methods.direct import Direct
from unlazy.solvers.methods.eigenpro import EigenPro
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.methods.preconditioned_cg import PreconditionedCG
from unlazy.solvers.methods.richardson import Richardson
from unlazy.solvers.problem import Problem

FLOAT64_DIRECT_MAX_N = 4000
"""Up to this n, a factorization in float64 takes about a second and is exact."""
CPU_DIRECT_MAX_N = 8000
"""Up to this n, a factorization in float64 is the fallback if float32 fails: about ten seconds."""
GPU_DIRECT_MAX_N = 40_000
"""The same on a GPU: about a second."""
CPU_RECOMPUTE_MAX_N = 30_000
"""Up to this n, K is recomputed in every pass if it does not fit: a pass takes a second or two."""
GPU_RECOMPUTE_MAX_N = 300_000
"""Up to this n, a GPU computes a pass over all pairs in a tenth of a second, so all points can be centers."""
FLOAT32_MIN_TOLERANCE = 1e-5
"""Smaller tolerances are beyond the accuracy of a float32 kernel."""
FLOAT32_RIDGE_ROUNDINGS = 8
"""Ridges below this multiple of λ_max times the unit roundoff need float64: float32 loses small eigenvalues."""
MIN_RANK = 10
"""Smallest rank of a preconditioner assumed in memory estimates."""


def choose_method(problem: Problem, method: str | None) -> tuple[str, str]:
    """Return the name of the method and the reason."""
    n, memory = problem.n, problem.memory
    if not problem.source.is_matrix:
        return _choose_for_non_matrix(problem, method)
    if method is not None:
        return method, "it was requested"
    if n <= FLOAT64_DIRECT_MAX_N and 8 * n * n <= memory:
        reason = f"n = {n} is at most {FLOAT64_DIRECT_MAX_N}: one factorization is exact and takes about a second"
        return "direct", reason
    if problem.source.array is None and 4 * n * problem.source.d > memory // 2:
        return "nystrom_cg", f"the inputs ({n} × {problem.source.d}) do not fit in half of the memory budget"
    if 4 * n * n <= 0.8 * memory:
        return "preconditioned_cg", "K fits in the memory budget, so all points can be centers"
    budget = f"K of n = {n} points does not fit in the memory budget of {_format_bytes(memory)}"
    if n > (CPU_RECOMPUTE_MAX_N if devices.is_host() else GPU_RECOMPUTE_MAX_N):
        return "nystrom_cg", f"{budget}, and there are too many points to recompute it in every pass"
    min_bytes = n * (4 * (3 * MIN_RANK + 4) + 64 * problem.y.shape[1])
    if memory < min_bytes:
        raise ValueError(
            f"{budget}, and even recomputing it in every pass takes {_format_bytes(min_bytes)}: allow that with "
            "memory=, or use an approximation with method=NystromCG(centers=…)"
        )
    if problem.kernel.requires_gradients or devices.count() > 1:  # blocks are processed sequentially, on one device
        return "preconditioned_cg", f"{budget}, so it is recomputed in every pass"
    return "askotch", f"{budget}, so it is recomputed in every pass, and block steps need the fewest passes"


def _choose_for_non_matrix(problem: Problem, method: str | None) -> tuple[str, str]:
    """Choose a method when X is not a matrix: one factorization, or blocks on request; other methods need a matrix."""
    if method is not None and not METHODS[method].supports_any_input:
        raise ValueError(f"method {method!r} requires a matrix X; images and pytrees need method='direct' or 'askotch'")
    if method is not None:
        return method, "it was requested"
    if 4 * problem.n**2 > problem.memory:
        raise ValueError(
            f"K of n = {problem.n} points does not fit in the memory budget of {_format_bytes(problem.memory)}, and "
            "inputs other than a matrix need K in memory: use fewer points, increase memory=, or recompute K in every "
            "pass with method='askotch'"
        )
    return "direct", "the inputs are not a matrix: one factorization works for any inputs"


def choose_precision(problem: Problem, tolerance: float, requested: str | None) -> tuple[np.dtype, tuple[str, ...]]:
    """float32, or float64 if the tolerance or the ridge requires it or the problem is small.

    The second value contains a note if the choice is not obvious.
    """
    if requested is not None:
        return np.dtype(requested), ()
    if problem.n <= FLOAT64_DIRECT_MAX_N and 16 * problem.n**2 <= problem.memory:
        return np.dtype("float64"), ()
    if tolerance < FLOAT32_MIN_TOLERANCE:
        return np.dtype("float64"), (f"float64, since float32 cannot reach a tolerance of {tolerance:.0e}",)
    if problem.ridge_below(FLOAT32_RIDGE_ROUNDINGS * unit_roundoff(np.float32)):
        return np.dtype("float64"), (
            f"float64, since a ridge of {problem.ridge:.2g} is lost in the rounding of K in float32",
        )
    return np.dtype("float32"), ()


def float64_method(problem: Problem, method: str, may_change: bool) -> str:
    """The method for float64: a factorization if it is fast enough, fits and the method may be changed."""
    max_n = CPU_DIRECT_MAX_N if devices.is_host() else GPU_DIRECT_MAX_N
    copies = 1 if devices.is_host() else 3
    full = method in ("preconditioned_cg", "askotch") and may_change
    return "direct" if full and problem.n <= max_n and copies * 8 * problem.n**2 <= problem.memory else method


def _format_bytes(count: float) -> str:
    """Number of bytes as a string."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{max(count / 2**20, 0.01):.3g} MiB"


METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (Direct, PreconditionedCG, NystromCG, Askotch, EigenPro, Richardson)
}
"""Methods of `solve` by name."""


def validate_method(method: object) -> None:
    """Raise ValueError for an unknown method."""
    if isinstance(method, type) and issubclass(method, Method):
        raise ValueError(f"method must be an instance, not a class: {method.__name__}() with its options as arguments")
    if not isinstance(method, Method) and method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}{did_you_mean(str(method), METHODS)}")
