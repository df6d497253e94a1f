"""Which method and which precision suit a problem, and why, in a sentence."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.solvers.problem import Problem

SMALL = 4000
"""Up to here a factorisation in float64 takes about a second and leaves nothing to ask for."""
GPU_FULL = 300_000
"""Up to here a GPU makes a pass over all pairs in a tenth of a second, so all points can be centres."""
ROUGH = 0.35
"""A kernel is rough when this part of its trace lies outside its largest tenth of directions (sample of PILOT points).
Gaussian kernels of usual bandwidth are near 0.2, Laplace and NTK-like kernels in ten dimensions or more above 0.4."""
PILOT = 1000
TIGHT = 1e-5
"""Tolerances below this are beyond what a float32 kernel resolves."""


def choose(problem: Problem, method: str | None, tolerance: float, centres_given: bool = False) -> tuple[str, str]:
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
    if tolerance < 1e-4:
        return "preconditioned_cg", f"tolerance {tolerance:.0e} asks for the full solution, not one on some centres"
    rough = roughness(problem)
    if rough > ROUGH:
        return "preconditioned_cg", f"the kernel is rough (roughness {rough:.2f}): few centres would lose accuracy"
    return "nystrom_cg", f"the kernel is smooth (roughness {rough:.2f}): a part of the points as centres is enough"


def roughness(problem: Problem) -> float:
    """Part of the trace of K outside the largest tenth of its directions, on a sample."""
    size = min(problem.n, PILOT)
    index = np.sort(problem.rng().choice(problem.n, size, replace=False))
    K = np.asarray(problem.kernel.gram(jnp.asarray(problem.source.take(index), problem.dtype)), np.float64)
    values = np.linalg.eigvalsh(K)
    return float(max(0.0, values[: -max(1, size // 10)].sum()) / max(values.sum(), np.finfo(float).tiny))


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
