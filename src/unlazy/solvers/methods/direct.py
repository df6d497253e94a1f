"""(K + ρI)α = y by Cholesky factorization: n³/3 operations, exact to rounding.

On the CPU, LAPACK is called through SciPy and factorizes K in place; XLA's Cholesky calls the same LAPACK routine but
keeps two copies (n = 3,000, float32: SciPy 0.27 CPU-seconds, XLA 0.33).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve as device_cho_solve
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unlazy.core import devices
from unlazy.core.arrays import Points, unit_roundoff
from unlazy.products import gram
from unlazy.products.engines.base import blocked_operator
from unlazy.products.engines.blocked import gram_numpy
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.methods.base import Method
from unlazy.solvers.problem import FittedCoefficients, Problem

JITTER_ATTEMPTS = 8
"""Attempts to factorize, each with ten times the jitter."""
BAND_ROWS = 512
"""Rows of K summed at a time."""


class Direct(Method):
    """One Cholesky factorization of K, for any inputs whose Gram matrix fits in memory.

    Followed by at most three steps of iterative refinement. If K + ridge·I is singular to rounding, the smallest jitter
    that allows the factorization is added and reported in `notes`.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, Direct, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=1e-3, method=Direct()).predict(X[:5]).shape
    (5,)
    """

    name = "direct"
    default_max_steps = 4
    supports_any_input = True

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α by one factorization, then at most three refinement steps against the true residual."""
        X = problem.X()
        need = problem.n**2 * problem.dtype.itemsize
        if need > problem.memory:
            raise ValueError(
                f"a direct solution of n = {problem.n} takes {need / 2**30:.3g} GiB and the memory budget is "
                f"{problem.memory / 2**30:.3g} GiB: omit method, or increase it with memory='…GiB'"
            )
        factor, jitter = factorize(problem, X)
        ridge = problem.ridge + jitter
        notes = problem.notes
        if jitter:
            notes += (f"K + {problem.ridge:.2g}·I is singular to rounding: {jitter:.2g} was added (jitter)",)
        K = blocked_operator(problem.kernel, X, memory=problem.memory)
        alpha = np.zeros_like(problem.y)
        residual, best, steps = problem.y, np.inf, 0
        while steps < self.default_max_steps:
            candidate = alpha + _cholesky_solve(factor, residual)
            true = problem.y - np.asarray(K.matmul(jnp.asarray(candidate, K.dtype)), np.float64) - ridge * candidate
            now = problem.relative_residual(true)
            if not now < best:
                break
            alpha, residual, best, steps = candidate, true, now, steps + 1
            if best <= callback.tolerance:
                break
        callback.after_step(steps, best, lambda: alpha, lambda: {"x": alpha})
        stopped = "exact" if best <= callback.tolerance else "stalled"
        return FittedCoefficients(alpha, best, steps, stopped, need, notes, ridge=ridge, residual_vector=residual)


def factorize(problem: Problem, X: Points):  # type: ignore[no-untyped-def]
    """Cholesky factor of K + (ρ + jitter)I, and the jitter: 0, or growing by factors of 10 from rounding."""
    jitter, unit = 0.0, 0.0
    K: Any
    for _ in range(JITTER_ATTEMPTS):
        if devices.is_host():
            K = gram_numpy(problem.kernel, X)
            unit = unit or _rounding_unit(problem, K)
            K[np.diag_indices_from(K)] += problem.ridge + jitter
            try:
                # K is symmetric, so K.T is K in column-major order, which LAPACK overwrites in place
                return cho_factor(K.T, lower=True, overwrite_a=True, check_finite=False), jitter
            except LinAlgError:
                pass
        else:
            K = gram(problem.kernel, X, memory=problem.memory)
            unit = unit or _rounding_unit(problem, K)
            L = jnp.linalg.cholesky(K + (problem.ridge + jitter) * jnp.eye(problem.n, dtype=K.dtype))
            if bool(jnp.isfinite(L[-1, -1])):
                return L, jitter
        jitter = unit if not jitter else 10 * jitter
    raise ValueError(
        f"K + {jitter:.2g}·I is not positive definite: the kernel is not positive semi-definite at these points, or "
        "its entries are not finite"
    )


def _rounding_unit(problem: Problem, K) -> float:  # type: ignore[no-untyped-def]
    """Rounding error of K as a whole: 2^-p times its largest row sum, a bound on λ_max."""
    # K is symmetric; in bands of rows, since |K| would be a second copy of K
    size = float(np.max([float(abs(K[i : i + BAND_ROWS]).sum(1).max()) for i in range(0, len(K), BAND_ROWS)]))
    if not np.isfinite(size):
        raise ValueError("the kernel is NaN or infinite on these inputs: rescale them, or use float64")
    return unit_roundoff(problem.dtype) * size


def _cholesky_solve(factor, B: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Solve with the factor; the result is float64."""
    if isinstance(factor, tuple):
        return np.asarray(cho_solve(factor, B.astype(factor[0].dtype), check_finite=False), np.float64)
    return np.asarray(device_cho_solve((factor, True), jnp.asarray(B, factor.dtype)), np.float64)
