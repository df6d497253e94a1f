"""Nyström regression on M centers: (K_nMᵀ K_nM + ρ K_MM)α = K_nMᵀ y by preconditioned conjugate gradients.

With K_MM = TᵀT and K_nMᵀK_nM ≈ (n/M) K_MM², H ≈ Tᵀ(n/M TTᵀ + ρI)T = (AT)ᵀ(AT): in the variables β = A T α the matrix
is close to the identity, and a few passes over the data suffice. This is the problem of Falkon: Rudi, Carratino and
Rosasco (2017). A pass reads the data in blocks, so they may exceed memory; it costs n·M per step and M² memory.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.arrays import Matrix, dot
from unlazy.core.threads import prefetch
from unlazy.products import KernelOperator, product
from unlazy.products.engines.blocked import gram_numpy
from unlazy.products.engines.sharded import device_mesh, local_row_ranges, sharded_operator_from_reader
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.error_estimate import can_check, nystrom_rounding, sample_rows
from unlazy.solvers.methods.base import Method, positive_integer_or_none
from unlazy.solvers.methods.conjugate_gradients import conjugate_gradients
from unlazy.solvers.methods.nystrom_factors import (
    LIVE_MATRICES,
    LIVE_SHARDED_MATRICES,
    MIN_RELATIVE_RIDGE,
    ChangeOfVariables,
    ShardedChangeOfVariables,
    change_of_variables_class,
)
from unlazy.solvers.problem import FittedCoefficients, Problem, add_scaled, predict, to_dtype, to_float64
from unlazy.solvers.sources import finite_floats

MAX_CENTERS = 32_768
"""Largest default number of centers."""
CACHED_ROWS = 256
"""Rows of a stored K that are used twice while in the cache."""
BLOCK_BYTES = 2**26
"""Bytes of inputs per block if they do not fit in memory: a GPU multiplies a block by 32,768 centers in about 30 ms,
and a disk reads one in 30 ms, so overhead is small and only the first block of a pass is waited for."""
HOST_BLOCK_BYTES = 2**24
"""The same on the CPU: larger arrays are newly mapped pages each time, which cost as much as filling them."""
RITZ_MARGIN = 1.5
"""The smallest Ritz value approaches λ_min from above; error bounds divide it by this."""
LIVE_BLOCKS = 6
"""Blocks alive at once: one is read, one is prepared, one is multiplied, each with the intermediates of the kernel."""


def _read_centers(centers: Any) -> Any:
    """Converter that accepts a positive integer, rows of inputs, or None."""
    if centers is None or isinstance(centers, int | np.integer):
        return positive_integer_or_none("centers")(centers)
    array = finite_floats("centers", np.asarray(centers))
    if array.ndim != 2 or not array.size:
        raise ValueError(f"centers must be a number or rows of inputs, got shape {array.shape}")
    return array


class NystromCG(Method):
    """Conjugate gradients on a subset of the points (Nyström centers), as in Falkon.

    Parameters
    ----------
    centers : int or array of shape (m, d), optional
        Number of centers, drawn from the points without replacement, or the centers themselves. By default 20√n, as
        memory allows.

    References
    ----------
    Rudi, Carratino and Rosasco (2017), FALKON: an optimal large scale kernel method.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, NystromCG, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=1e-3, method=NystromCG(centers=30)).predict(X[:5]).shape
    (5,)
    """

    name = "nystrom_cg"
    default_max_steps = 500
    uses_centers = True
    centers: int | Float[np.ndarray, "m d"] | None = eqx.field(default=None, converter=_read_centers)

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α of ridge regression on M centers: drawn from the points without replacement, or given as rows."""
        problem = problem.with_resolvable_ridge(MIN_RELATIVE_RIDGE)
        notes, seen = problem.notes, [1.0]
        if isinstance(self.centers, np.ndarray):
            rows = self.centers
        else:
            M = default_centers(problem) if self.centers is None else self.centers
            rows = problem.source.take(np.sort(problem.rng().choice(problem.n, min(M, problem.n), replace=False)))
        Z = jnp.asarray(rows, problem.dtype)
        M, callback.centers = Z.shape[0], Z
        spread = change_of_variables_class(problem, M) is ShardedChangeOfVariables
        square = LIVE_SHARDED_MATRICES * M * M * 8 // problem.n_device_memories if spread else LIVE_MATRICES * M * M * 8
        passes = DataPasses(problem, Z, problem.memory - square)
        change = change_of_variables_class(problem, M)(problem, rows)

        def apply(beta: Any) -> Any:
            v = change.forward(beta)
            return change.backward(add_scaled(passes.normal(v), change.K_matmul(v), problem.ridge))

        b = change.backward(passes.right_hand_side())

        def measure(norms: np.ndarray, smallest: float) -> float:
            seen[0] = smallest
            # ‖f - f°‖ = ‖K_nM B (BᵀHB)⁻¹ r‖ ≤ ‖r‖/√λ_min(BᵀHB), with λ_min from the Ritz values
            return float(np.max(norms / problem.y_norm) / np.sqrt(smallest / RITZ_MARGIN))

        beta, residual, steps, stopped, _ = conjugate_gradients(
            apply, b, lambda r: r, measure, change.forward, callback
        )
        alpha = np.asarray(change.forward(to_float64(beta)))
        residual += _rounding_error(problem, rows, alpha, change, seen[0])  # they may point in the same direction
        notes += (f"{M} centers, K {passes.engine}",)
        used = square + passes.bytes
        return FittedCoefficients(alpha, residual, steps, stopped, used, notes, rows, problem.ridge)

    def compare_with_full(self, problem: Problem, fit: FittedCoefficients, tolerance: float) -> FittedCoefficients:
        """Add the estimated distance from full regression to the residual.

        Half of the centers give f', and the error of f is at most ‖f - f'‖/(√2 - 1) if it decreases as 1/√M or faster.
        """
        half = problem.rng().permutation(len(fit.centers))[: max(1, len(fit.centers) // 2)]  # type: ignore[arg-type]
        rows = fit.centers[np.sort(half)]  # type: ignore[index]
        coarse = NystromCG(rows).solve(problem, SolverCallback(tolerance, _half_max_steps(fit.steps)))
        index = sample_rows(problem)
        X = problem.source.take(index)
        fine, rough = (
            predict(problem.kernel, X, jnp.asarray(f.centers, problem.dtype), f.coefficients, problem.memory)
            for f in (fit, coarse)
        )
        scale = np.sqrt(problem.n / len(index)) / (np.sqrt(2) - 1) / problem.y_norm
        off = float(np.max(np.linalg.norm(fine - rough, axis=0) * scale))
        note = (
            f"{len(fit.centers)} of {problem.n} points are centers: predictions differ from full "  # type: ignore[arg-type]
            f"regression by about {off:.2g} of the labels (estimated from half as many)"
        )
        stopped = "centers" if off > tolerance else fit.stopped
        return fit._replace(residual=float(np.hypot(fit.residual, off)), notes=(*fit.notes, note), stopped=stopped)


def _half_max_steps(steps: int) -> int:
    """Maximum number of steps for half of the centers, which need about as many.

    That fit is a check and must not cost more than what it checks, for example if the tolerance is out of reach.
    """
    return min(NystromCG.default_max_steps, max(2 * steps, 10))


def _rounding_error(
    problem: Problem, Z: np.ndarray, alpha: np.ndarray, change: "ChangeOfVariables", smallest: float
) -> float:
    """Contribution of rounding to the relative error of the predictions.

    It consists of e in `predict`; e again in the normal equations, where ‖K_nM H⁻¹ K_nMᵀ‖ ≤ 1; and there also the
    rounding of K_nMᵀ and K_MM and the jitter, measured like a residual.
    """
    checked = problem.dtype == np.float32 or can_check(problem)
    size, moved = nystrom_rounding(problem, Z, alpha) if checked else (np.zeros(1), 0.0)
    g = np.asarray(change.backward(to_float64(moved + problem.ridge * change.jitter * alpha)))
    return float(np.max((2 * np.sqrt(problem.n) * size + np.sqrt(np.sum(g * g, 0) / smallest)) / problem.y_norm))


def default_centers(problem: Problem) -> int:
    """20√n, the order that preserves the statistical error (Rudi et al. 2017), as memory allows."""
    fits = int(np.sqrt(problem.memory / 2 / (LIVE_MATRICES * 8)))
    return int(max(1, min(problem.n, 20 * np.sqrt(problem.n), fits, MAX_CENTERS)))


class DataPasses:
    """K_nMᵀ(K_nM v) and K_nMᵀ y.

    K is stored on the CPU if it fits, one operator if the inputs fit, and otherwise computed block by block from the
    source. Sums over many rows are float64: B amplifies their rounding errors.
    """

    def __init__(self, problem: Problem, Z: jax.Array, budget: int):
        self.problem, self.Z, self.budget = problem, Z, max(budget, 2)
        n, row = problem.n, problem.source.d * problem.dtype.itemsize
        self.K: np.ndarray | None = None
        self.operator: KernelOperator | None = None
        block = HOST_BLOCK_BYTES if devices.is_host() else BLOCK_BYTES
        self.rows = _even_block_rows(n, int(max(1, min(n, block // row, self.budget // (8 * row)))))
        self.bytes = LIVE_BLOCKS * self.rows * row
        fits_memory = problem.source.array is not None or n * row <= self.budget // 4 * problem.n_device_memories
        single_host_device = devices.is_host() and devices.count() == 1
        if single_host_device and fits_memory and n * Z.shape[0] * problem.dtype.itemsize <= self.budget:
            self.K, self.engine = gram_numpy(problem.kernel, problem.X(), Z), "stored"
            self.bytes = self.K.nbytes
        elif fits_memory:
            if problem.is_sharded:
                self.operator = problem.sharded_operator(Z, self.budget)
            else:
                self.operator = product(problem.kernel, problem.X(), Z, passes=100, memory=self.budget)
            self.engine, self.bytes = self.operator.engine, self.operator.bytes
        else:
            self.engine = "by blocks from the source"

    def normal(self, v: Matrix) -> Matrix:
        """K_nMᵀ(K_nM v)."""
        if self.K is not None:
            v = v.astype(self.K.dtype)
            return self._stored(lambda rows, K: dot(K, v), v.shape[1])
        return self._sum(lambda K, _: K.normal(to_dtype(v, K.dtype)), v.shape[1])

    def right_hand_side(self) -> Matrix:
        """K_nMᵀ y."""
        y = self.problem.y
        if self.K is not None:
            return self._stored(lambda rows, K: y[rows].astype(K.dtype), y.shape[1])
        return self._sum(lambda K, rows: K.rmatmul(y[rows].astype(K.dtype)), y.shape[1])

    def _stored(self, left: Callable[[slice, np.ndarray], np.ndarray], c: int) -> np.ndarray:
        """Σ K_bᵀ left_b: a block is read from memory once and is still in the cache when its transpose is needed."""
        total = np.zeros((c, self.Z.shape[0]))
        for start in range(0, self.problem.n, CACHED_ROWS):
            rows = slice(start, start + CACHED_ROWS)
            total += dot(left(rows, self.K[rows]).T, self.K[rows])  # type: ignore[index]
        return total.T

    def _sum(self, part: Callable[[KernelOperator, slice], jax.Array], c: int) -> Any:
        """Sum of `part` over all blocks of K."""
        if self.operator is not None:
            return to_float64(part(self.operator, slice(None)))
        total = to_float64(np.zeros((self.Z.shape[0], c)))
        for rows, K in self._blocks():
            total = add_scaled(total, to_float64(part(K, rows)), 1.0)
            del K  # otherwise it would live until the next block arrives
        return total

    def _blocks(self) -> Iterator[tuple[slice, KernelOperator]]:
        """Iterate over blocks of K; the next block is read and validated while this one is multiplied.

        For a GPU it is also transferred ahead. On the CPU, whose cores are busy, it is prepared where it is used,
        while in the cache.
        """
        problem, starts = self.problem, range(0, self.problem.n, self.rows)
        blocks = [slice(start, min(start + self.rows, problem.n)) for start in starts]

        def read(rows: slice) -> tuple[slice, np.ndarray]:
            return rows, np.asarray(problem.source.rows(rows.start, rows.stop), problem.dtype)

        def ready(block: tuple[slice, np.ndarray]) -> tuple[slice, KernelOperator]:
            return block[0], product(problem.kernel, block[1], self.Z, memory=self.budget // 2)

        if problem.is_sharded:
            return self._sharded_blocks(blocks)
        return (
            map(ready, prefetch(read, blocks))
            if devices.is_host()
            else prefetch(lambda rows: ready(read(rows)), blocks)
        )

    def _sharded_blocks(self, blocks: list[slice]) -> Iterator[tuple[slice, KernelOperator]]:
        """The same over several devices: only this process's shares of a block are read ahead.

        They are transferred to devices in the calling thread, since all processes must do that in the same order.
        """
        problem, Z, mesh = self.problem, np.asarray(self.Z), device_mesh()

        def shares(rows: slice) -> tuple[slice, dict[tuple[int, int], np.ndarray]]:
            wanted = local_row_ranges(rows.stop - rows.start, mesh)
            return rows, {(a, b): problem.rows(rows.start + a, rows.start + b, Z) for a, b in wanted}

        for rows, found in prefetch(shares, blocks):
            size = rows.stop - rows.start
            yield (
                rows,
                sharded_operator_from_reader(
                    problem.kernel, lambda *ends, found=found: found[ends], size, Z, memory=self.budget // 2
                ),
            )


def _even_block_rows(n: int, most: int) -> int:
    """Rows per block, between most/2 and `most`, equal for all blocks if n allows.

    Otherwise the last block would need its own compiled program.
    """
    fewest = math.ceil(n / most)
    return next((n // k for k in range(fewest, 2 * fewest) if n % k == 0), most)
