"""Error estimate of predictions: float64 entries of K from differences of inputs, with all centers.

A run knows its residual for the K that it computed. The result of `predict` differs from that by the rounding of the
entries, the coefficients and the sums, each multiplied by ‖α‖, which is large if the ridge is small. Therefore rows of
K are recomputed in float64, in another way than the solver computes them, so that the estimate does not share its
errors: all rows if that is fast, and otherwise those with the largest coefficients and a random sample.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core import devices
from unlazy.core.arrays import dot, precision
from unlazy.products import product
from unlazy.products.engines.numpy_engine import difference_entries, entry_table, numpy_operator
from unlazy.solvers.problem import Problem, on_device

SAMPLE_ROWS = 256
"""Rows drawn: a norm estimated from them has a standard error of 1/√(2·256), 4%."""
ALL_ROWS_COST = 2**27
"""Coordinates of pairs up to which all rows are compared: a few tenths of a second."""
DIFFERENCE_COST = 2**30
"""Coordinates of pairs up to which every entry is computed from differences; beyond, those of close points are."""
BLOCK_ENTRIES = 2**21
"""Entries evaluated at once."""
CONFIDENCE = 2.0
"""Standard errors added to a sum that is estimated from a sample."""
REFERENCE_ROUNDING = 4 * 2.0**-52
"""Rounding error of a product of float64 entries relative to Σ_j |K_ij α_j|: formulas and sums are accurate to a few
units, and errors of a formula may add up."""
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
    index, share = _compared_rows(problem, alpha)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    X, Z = problem.source.take(index), problem.source.rows(0, problem.n)
    exact, allowance = _reference(problem, X, Z, rounded)
    e = _rounded(problem, X, Z, rounded) - exact
    r = problem.y[index] - exact - problem.ridge * rounded[index]
    if left is None:
        square = _estimated_sum(r * r, share)
    else:
        more = r - left[index]
        square = np.sum(left * left, 0) + _estimated_sum(more * (more + 2 * left[index]), share)
    squares = (square, _estimated_sum(e * e, share), _estimated_sum(allowance**2, share))
    size = sum(np.sqrt(np.maximum(s, 0)) for s in squares)
    return float(np.max(size / problem.y_norm))


def can_check(problem: Problem) -> bool:
    """Whether float64 entries can be computed in a second way, and at little cost."""
    kernel = problem.kernel
    return problem.source.is_matrix and not (kernel.expensive or kernel.requires_gradients)


def _compared_rows(problem: Problem, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows to compare, and how many rows each of them stands for.

    Errors are multiplied by coefficients, and twins have large ones: half of a sample is the rows with the largest.
    """
    n = problem.n
    count = min(n, max(SAMPLE_ROWS, ALL_ROWS_COST // (n * problem.source.d)))
    if count == n:
        return np.arange(n), np.ones(n)
    order = np.argsort(-np.max(np.abs(alpha) / problem.y_norm, 1), kind="stable")
    largest, others = np.split(order, [count // 2])
    drawn = np.random.default_rng(problem.seed + 1).choice(others, count - count // 2, replace=False)
    index = np.concatenate([largest, drawn])
    share = np.where(np.arange(count) < len(largest), 1.0, len(others) / len(drawn))
    up = np.argsort(index)
    return index[up], share[up]


def _estimated_sum(values: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Upper estimate of the sum over all rows, for every output: two standard errors above the weighted sum."""
    drawn = values[share > 1]
    error = 0.0
    if len(drawn) > 1:
        error = share.max() * np.sqrt(len(drawn) * np.var(drawn, 0, ddof=1) * (1 - 1 / share.max()))
    return np.sum(share[:, None] * values, 0) + CONFIDENCE * error


def nystrom_rounding(problem: Problem, Z: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounding errors for centers Z.

    Returns the size of one entry of e, the rounding error of `predict`, for every output; and a random draw of
    δKᵀ(y - Kα) + ρδK_MM α, the effect of the rounding of K on the normal equations: entries round independently.
    """
    index = sample_rows(problem)
    X, share = problem.source.take(index), problem.n / len(index)
    rounded = alpha.astype(problem.dtype).astype(np.float64)
    exact, allowance = _reference(problem, X, Z, rounded)
    e = np.abs(_rounded(problem, X, Z, rounded) - exact) + allowance
    size = np.sqrt(np.mean(e * e, 0))
    left = problem.y[index] - exact
    moved = _rounded(problem, X, Z, left, True) - _reference(problem, X, Z, left, True)[0]
    return size, np.sqrt(share) * moved + problem.ridge * size * problem.rng().normal(size=alpha.shape)


def _product_function(problem: Problem) -> Callable[..., np.ndarray]:
    """NumPy if a sample represents many rows; with few rows the same program as in `predict`."""
    few = problem.n <= SAMPLE_ROWS and problem.dtype == np.float32
    return _on_host if _has_table(problem) and problem.kernel.formula is not None and not few else _on_device


def _has_table(problem: Problem) -> bool:
    """Whether NumPy can evaluate the kernel."""
    return devices.is_host() and problem.source.is_matrix and entry_table(problem.kernel) is not None


def _rounded(problem: Problem, X: Any, Z: Any, V: np.ndarray, transposed: bool = False) -> np.ndarray:
    """K(X, Z) V or K(X, Z)ᵀ V in the problem's precision."""
    return _product_function(problem)(problem, X, Z, V, problem.dtype, transposed)


def _reference(
    problem: Problem, X: Any, Z: Any, V: np.ndarray, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """K(X, Z) V or K(X, Z)ᵀ V from float64 entries of differences of inputs, and an allowance for its rounding."""
    if not can_check(problem):
        exact = _on_device(problem, X, Z, V, np.dtype("float64"), transposed)
        return exact, np.zeros_like(exact)
    with precision("float64"):
        entries = _reference_entries(problem, X, Z)
        n, m = len(X), len(Z)
        width = min(m, CPU_COLUMN_BLOCK)
        rows = max(1, BLOCK_ENTRIES // width)
        total, sizes = (np.zeros((m if transposed else n, V.shape[1])) for _ in range(2))
        for i in range(0, n, rows):
            for j in range(0, m, width):
                left, right = slice(i, min(i + rows, n)), slice(j, min(j + width, m))
                K = entries(left, right)
                K, out, columns = (K.T, right, left) if transposed else (K, left, right)
                total[out] += dot(K, V[columns])
                sizes[out] += dot(np.abs(K), np.abs(V[columns]))
    return total, REFERENCE_ROUNDING * sizes


def _reference_entries(problem: Problem, X: np.ndarray, Z: np.ndarray) -> Callable[[slice, slice], np.ndarray]:
    """Function that evaluates a block of K from differences of inputs."""
    kernel = problem.kernel
    A, B = X.astype(np.float64), Z.astype(np.float64)
    if not _has_table(problem):
        return lambda rows, columns: np.asarray(kernel.gram(A[rows], B[columns], accurate=True), np.float64)
    K = numpy_operator(kernel, A, B)
    if len(A) * len(B) * A.shape[1] > DIFFERENCE_COST:
        return K.block
    return lambda rows, columns: difference_entries(kernel, K.left[rows], K.right[columns])


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
