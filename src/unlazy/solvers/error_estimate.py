"""How far predictions are off: measured with float64 entries of K on rows drawn at random, all centers counted.

A float32 run knows its residual for the K it rounded. What `predict` gives differs from that by the rounding of the
entries, of the coefficients and of the sums, each times ‖α‖, which is large where the ridge is small. So some hundred
rows are computed again in float64 and compared with what float32 made of them.
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
from unlazy.products.engines.numpy_engine import hosted
from unlazy.solvers.problem import Problem, on_device

ROWS = 256
"""Rows drawn: a norm estimated from them has a standard error of 1/√(2·256), 4%."""
COLUMNS = 2**13
"""Columns evaluated at once on the CPU."""
ROOM = 0.5
"""Part of the tolerance an iteration uses up where rounding and jitter count, which may then take the other half: the
two may add up. The last half takes a few steps; too little room for rounding, and all are made again in float64."""


def rows_of(problem: Problem) -> np.ndarray:
    """The rows to look at; all of them where there are few."""
    return np.sort(np.random.default_rng(problem.seed + 1).choice(problem.n, min(problem.n, ROWS), replace=False))


def full_error(problem: Problem, alpha: np.ndarray, left: np.ndarray | None) -> float:
    """Relative error of the predictions of full regression at the training points, the worst of the outputs.

    With the coefficients α̂ that `predict` uses, r = y - (K + ρ)α̂ in float64 and e what `predict` adds by rounding,
    the error is e - K(K + ρ)⁻¹r, at most ‖e‖ + ‖r‖: they may point the same way. `left` is the residual the method
    itself found for all rows: ‖r‖² is then ‖left‖² and the mean square of what the sample shows besides, which is known
    better than ‖r‖² from a sample alone.
    """
    index = rows_of(problem)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    exact, e = _products(problem, problem.source.take(index), problem.source.rows(0, problem.n), rounded)
    r = problem.y[index] - exact - problem.ridge * rounded[index]
    share = problem.n / len(index)
    if left is None:
        square = share * np.sum(r * r, 0)
    else:
        more = r - left[index]
        square = np.sum(left * left, 0) + share * np.sum(more * (more + 2 * left[index]), 0)
    size = np.sqrt(np.maximum(square, 0)) + np.sqrt(share * np.sum(e * e, 0))
    return float(np.max(size / problem.y_norm))


def centers_rounding(problem: Problem, Z: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For centers Z: the size of one entry of e, what `predict` adds by rounding, for every output; and a draw of
    δKᵀ(y - Kα) + ρδK_MM α, what the rounding of K does to the normal equations: entries round on their own.
    """
    index = rows_of(problem)
    X, share = problem.source.take(index), problem.n / len(index)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    exact, e = _products(problem, X, Z, rounded)
    size = np.sqrt(np.mean(e * e, 0))
    _, moved = _products(problem, X, Z, problem.y[index] - exact, transposed=True)
    return size, np.sqrt(share) * moved + problem.ridge * size * problem.rng().normal(size=alpha.shape)


def _engine(problem: Problem) -> Callable[..., np.ndarray]:
    """The host where a sample stands for many rows; few rows are looked at by the very program that predicts them."""
    on_host = devices.is_host() and problem.kernel.formula is not None
    return _on_host if on_host and problem.source.matrix and problem.n > ROWS else _on_device


def _products(
    problem: Problem, X: Any, Z: Any, V: np.ndarray, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """K(X, Z) V, or its transpose times V, from float64 entries, and what the problem's precision adds to it."""
    one = _engine(problem)
    exact = one(problem, X, Z, V, np.dtype("float64"), transposed)
    return exact, one(problem, X, Z, V, problem.dtype, transposed) - exact


def _on_device(problem: Problem, X: Any, Z: Any, V: np.ndarray, dtype: np.dtype, transposed: bool) -> np.ndarray:
    # a product of its own costs a pass, the same in blocks a Jacobian of every point
    how = None if dtype == problem.dtype or problem.kernel.takes_gradients else "blocked"
    with precision(dtype.name):
        K = product(problem.kernel, on_device(X, dtype), on_device(Z, dtype), how=how, memory=problem.memory)
        return np.asarray((K.rmatmul if transposed else K.matmul)(jnp.asarray(V, dtype)), np.float64)


def _on_host(
    problem: Problem, X: np.ndarray, Z: np.ndarray, V: np.ndarray, dtype: np.dtype, transposed: bool
) -> np.ndarray:
    """The same by NumPy's products and one small program: to compile a product for some hundred rows costs more."""
    with precision(dtype.name):
        entries = hosted(problem.kernel, X.astype(dtype), Z.astype(dtype)).block
        V, parts = V.astype(dtype), []
        width = math.ceil(len(Z) / math.ceil(len(Z) / COLUMNS))
        for first in range(0, len(Z), width):
            start = min(first, len(Z) - width)  # the last piece overlaps the one before: all have one shape
            K: Any = entries(slice(None), slice(start, start + width))
            if transposed:
                parts.append(dot(K.T, V)[first - start :])
                continue
            if dtype == np.float32:  # JAX's sums, as in `predict`, round more than those of BLAS
                K = jax.device_put(K)
            piece = V[start : start + width].copy()
            piece[: first - start] = 0
            parts.append(np.asarray(dot(K, piece)))
    return np.asarray(np.concatenate(parts) if transposed else np.sum(parts, 0), np.float64)
