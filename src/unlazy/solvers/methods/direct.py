"""(K + ρI)α = y by Cholesky: n³/3 operations, exact to rounding.

On the CPU by LAPACK through SciPy, in the memory of K itself; XLA's Cholesky calls the same LAPACK but keeps two
copies (n = 3,000, float32: SciPy 0.27 CPU-seconds, XLA 0.33).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve as device_cho_solve
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unlazy.core import devices
from unlazy.core.precision import rounding
from unlazy.products import gram, product
from unlazy.products.engines.dense import fill
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.methods.base import Method
from unlazy.solvers.problem import Fit, Problem

ATTEMPTS = 8
BAND = 512


class Direct(Method):
    """One Cholesky factorization of K, for any data whose K fits.

    >>> solve(kernel, X, y, ridge=1e-3, method=Direct()).predict(Z).shape
    (5,)
    """

    name = "direct"
    most_steps = 4
    any_data = True

    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """α by one factorization, then at most three steps of refinement against the true residual."""
        X = problem.X()
        need = problem.n**2 * problem.dtype.itemsize
        if need > problem.memory:
            raise ValueError(
                f"a direct solution of n = {problem.n} takes {need / 2**30:.3g} GiB and the memory budget is "
                f"{problem.memory / 2**30:.3g} GiB: leave method to be chosen, or allow more with memory='…GiB'"
            )
        factor, jitter = factorized(problem, X)
        ridge = problem.ridge + jitter
        notes = problem.notes
        if jitter:
            notes += (f"K + {problem.ridge:.2g}·I is singular to rounding: {jitter:.2g} was added (jitter)",)
        K = product(problem.kernel, X, how="blocked", memory=problem.memory)
        alpha = np.zeros_like(problem.y)
        residual, best, steps = problem.y, np.inf, 0
        while steps < self.most_steps:
            candidate = alpha + _substitute(factor, residual)
            true = problem.y - np.asarray(K.matmul(jnp.asarray(candidate, K.dtype)), np.float64) - ridge * candidate
            now = problem.relative(true)
            if not now < best:
                break
            alpha, residual, best, steps = candidate, true, now, steps + 1
            if best <= watch.tolerance:
                break
        watch.after(steps, best, lambda: alpha, lambda: {"x": alpha})
        stopped = "exact" if best <= watch.tolerance else "stalled"
        return Fit(alpha, best, steps, stopped, need, notes, ridge=ridge, left=residual)


def factorized(problem: Problem, X: Any):  # type: ignore[no-untyped-def]
    """The Cholesky factor of K + (ρ + jitter)I, and the jitter it took: 0, else growing by tens from rounding."""
    jitter, unit = 0.0, 0.0
    K: Any
    for _ in range(ATTEMPTS):
        if devices.is_host():
            K = fill(problem.kernel, X)
            unit = unit or _unit(problem, K)
            K[np.diag_indices_from(K)] += problem.ridge + jitter
            try:
                # K is symmetric, so its transpose is K in the order of columns that LAPACK overwrites in place
                return cho_factor(K.T, lower=True, overwrite_a=True, check_finite=False), jitter
            except LinAlgError:
                pass
        else:
            K = gram(problem.kernel, X, memory=problem.memory)
            unit = unit or _unit(problem, K)
            L = jnp.linalg.cholesky(K + (problem.ridge + jitter) * jnp.eye(problem.n, dtype=K.dtype))
            if bool(jnp.isfinite(L[-1, -1])):
                return L, jitter
        jitter = unit if not jitter else 10 * jitter
    raise ValueError(
        f"K + {jitter:.2g}·I is still not positive: the kernel is not positive semi-definite on these points, or its "
        "entries are not finite"
    )


def _unit(problem: Problem, K) -> float:  # type: ignore[no-untyped-def]
    """Rounding of K as a whole: 2^-p times its largest row sum, a bound on λ_max."""
    # K is symmetric; by bands of rows, since |K| would be a second K
    size = float(np.max([float(abs(K[i : i + BAND]).sum(1).max()) for i in range(0, len(K), BAND)]))
    if not np.isfinite(size):
        raise ValueError("the kernel gives NaN or infinity on these inputs: rescale them, or use float64")
    return rounding(problem.dtype) * size


def _substitute(factor, B: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    if isinstance(factor, tuple):
        return np.asarray(cho_solve(factor, B.astype(factor[0].dtype), check_finite=False), np.float64)
    return np.asarray(device_cho_solve((factor, True), jnp.asarray(B, factor.dtype)), np.float64)
