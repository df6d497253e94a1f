"""Error estimate of predictions: float64 entries of K on random rows, with all centers.

A float32 run knows its residual for the rounded K. The result of `predict` differs from that by the rounding of the
entries, the coefficients and the sums, each multiplied by ‖α‖, which is large if the ridge is small. Therefore a few
hundred rows are recomputed in float64 and compared with their float32 values.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core import devices
from unlazy.core.linalg import dot
from unlazy.core.precision import precision
from unlazy.products import product
from unlazy.products.engines.numpy_engine import numpy_operator
from unlazy.solvers.problem import Problem, on_device

SAMPLE_ROWS = 256
"""Rows drawn: a norm estimated from them has a standard error of 1/√(2·256), 4%."""
CPU_COLUMN_BLOCK = 2**13
"""Columns evaluated at once on the CPU."""
ITERATION_SHARE = 0.5
"""Share of the tolerance for the iteration if rounding and jitter matter, which may use the other half, since the two
may add up. Halving the error takes a few more steps; too little left for rounding would repeat all of them in
float64."""


def sample_rows(problem: Problem) -> np.ndarray:
    """Indices of the rows to compare; all rows if there are few."""
    return np.sort(
        np.random.default_rng(problem.seed + 1).choice(problem.n, min(problem.n, SAMPLE_ROWS), replace=False)
    )


def full_regression_error(problem: Problem, alpha: np.ndarray, left: np.ndarray | None) -> float:
    """Relative error of the predictions of full regression at the training points, for the worst output.

    With the coefficients α̂ that `predict` uses, r = y - (K + ρ)α̂ in float64 and e the rounding error of `predict`,
    the error is e - K(K + ρ)⁻¹r, at most ‖e‖ + ‖r‖, as they may point in the same direction. `left` is the residual of
    all rows as known to the method: ‖r‖² is then ‖left‖² plus the mean square of the difference on the sample, which
    is more accurate than ‖r‖² from the sample alone.
    """
    index = sample_rows(problem)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    exact, e = _product_and_rounding(problem, problem.source.take(index), problem.source.rows(0, problem.n), rounded)
    r = problem.y[index] - exact - problem.ridge * rounded[index]
    share = problem.n / len(index)
    if left is None:
        square = share * np.sum(r * r, 0)
    else:
        more = r - left[index]
        square = np.sum(left * left, 0) + share * np.sum(more * (more + 2 * left[index]), 0)
    size = np.sqrt(np.maximum(square, 0)) + np.sqrt(share * np.sum(e * e, 0))
    return float(np.max(size / problem.y_norm))


def nystrom_rounding(problem: Problem, Z: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounding errors for centers Z.

    Returns the size of one entry of e, the rounding error of `predict`, for every output; and a random draw of
    δKᵀ(y - Kα) + ρδK_MM α, the effect of the rounding of K on the normal equations: entries round independently.
    """
    index = sample_rows(problem)
    X, share = problem.source.take(index), problem.n / len(index)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    exact, e = _product_and_rounding(problem, X, Z, rounded)
    size = np.sqrt(np.mean(e * e, 0))
    _, moved = _product_and_rounding(problem, X, Z, problem.y[index] - exact, transposed=True)
    return size, np.sqrt(share) * moved + problem.ridge * size * problem.rng().normal(size=alpha.shape)


def _product_function(problem: Problem) -> Callable[..., np.ndarray]:
    """NumPy if a sample represents many rows; with few rows the same program as in `predict`."""
    on_host = devices.is_host() and problem.kernel.formula is not None
    return _on_host if on_host and problem.source.is_matrix and problem.n > SAMPLE_ROWS else _on_device


def _product_and_rounding(
    problem: Problem, X: Any, Z: Any, V: np.ndarray, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """K(X, Z) V or K(X, Z)ᵀ V from float64 entries, and its rounding error in the problem's precision."""
    one = _product_function(problem)
    exact = one(problem, X, Z, V, np.dtype("float64"), transposed)
    return exact, one(problem, X, Z, V, problem.dtype, transposed) - exact


def _on_device(problem: Problem, X: Any, Z: Any, V: np.ndarray, dtype: np.dtype, transposed: bool) -> np.ndarray:
    # a custom product costs one pass; in blocks it would need a Jacobian of every point
    """The product by a kernel operator on the device."""
    engine = None if dtype == problem.dtype or problem.kernel.requires_gradients else "blocked"
    with precision(dtype.name):
        K = product(problem.kernel, on_device(X, dtype), on_device(Z, dtype), engine=engine, memory=problem.memory)
        return np.asarray((K.rmatmul if transposed else K.matmul)(jnp.asarray(V, dtype)), np.float64)


def _on_host(
    problem: Problem, X: np.ndarray, Z: np.ndarray, V: np.ndarray, dtype: np.dtype, transposed: bool
) -> np.ndarray:
    """The product in NumPy: compiling a product for a few hundred rows would cost more."""
    with precision(dtype.name):
        entries = numpy_operator(problem.kernel, X.astype(dtype), Z.astype(dtype)).block
        V, parts = V.astype(dtype), []
        width = math.ceil(len(Z) / math.ceil(len(Z) / CPU_COLUMN_BLOCK))
        for first in range(0, len(Z), width):
            start = min(first, len(Z) - width)  # the last piece overlaps the previous one: equal shapes
            K: Any = entries(slice(None), slice(start, start + width))
            if transposed:
                parts.append(dot(K.T, V)[first - start :])
                continue
            if dtype == np.float32:  # sums in JAX, as in `predict`, round more than those of BLAS
                K = jax.device_put(K)
            piece = V[start : start + width].copy()
            piece[: first - start] = 0
            parts.append(np.asarray(dot(K, piece)))
    return np.asarray(np.concatenate(parts) if transposed else np.sum(parts, 0), np.float64)
