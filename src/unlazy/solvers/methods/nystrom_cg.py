"""M of the points as centers: (K_nMᵀ K_nM + ρ K_MM)α = K_nMᵀ y by preconditioned conjugate gradients.

With K_MM = TᵀT and K_nMᵀK_nM ≈ (n/M) K_MM², H ≈ Tᵀ(n/M TTᵀ + ρI)T = (AT)ᵀ(AT): in the variables β = A T α the matrix
is near the identity and a few passes over the data suffice. Falkon's problem: Rudi, Carratino and Rosasco (2017).
A pass reads the data by blocks, so they may be larger than memory; cost n·M per step, memory M².
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
from unlazy.core.linalg import dot
from unlazy.core.threads import ahead
from unlazy.products import Product, product
from unlazy.products.engines.dense import fill
from unlazy.products.engines.sharded import mesh_of, own_ranges, sharded_rows
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.error_estimate import centers_rounding, rows_of
from unlazy.solvers.float64_vectors import in_float64, narrow, wide
from unlazy.solvers.methods.base import Method, count
from unlazy.solvers.methods.conjugate_gradients import conjugate_gradients
from unlazy.solvers.methods.nystrom_factors import (
    LEAST_RIDGE,
    MATRICES,
    SPREAD_MATRICES,
    Change,
    ChangeSpread,
    change_for,
)
from unlazy.solvers.problem import Fit, Problem, predict
from unlazy.solvers.sources import finite_floats

MOST_CENTERS = 32_768
CACHED_ROWS = 256
"""Rows of a stored K that are used twice while in the cache."""
BLOCK_BYTES = 2**26
"""Inputs read at a time where they do not fit: a card multiplies a block by 32,768 centers in some 30 ms, a disk reads
one in 30, so that calls cost little; and only the first block of a pass is waited for."""
HOST_BLOCK_BYTES = 2**24
"""The same where the host computes: larger arrays are pages anew from the system each time, which costs as much as to
fill them."""
BLOCKS = 6
"""Blocks alive at once: one is read, one is being made ready, one multiplied, each with what the kernel makes of it."""


def _read(centers: Any) -> Any:
    """A number, rows of inputs, or None."""
    if centers is None or isinstance(centers, int | np.integer):
        return count("centers")(centers)
    array = finite_floats("centers", np.asarray(centers))
    if array.ndim != 2 or not array.size:
        raise ValueError(f"centers are a number or rows of inputs, got shape {array.shape}")
    return array


class NystromCG(Method):
    """Some points as centers: `centers` of them drawn without repeats (20√n unless given), or rows.

    >>> solve(kernel, X, y, ridge=1e-3, method=NystromCG(centers=30)).predict(Z).shape
    (5,)
    """

    name = "nystrom_cg"
    most_steps = 500
    restricts = True
    centers: int | Float[np.ndarray, "m d"] | None = eqx.field(default=None, converter=_read)

    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """α of ridge regression on M centers: drawn from the points without repeats, or given as rows."""
        problem = problem.mended(LEAST_RIDGE)
        notes, seen = problem.notes, [1.0]
        if isinstance(self.centers, np.ndarray):
            rows = self.centers
        else:
            M = default_centers(problem) if self.centers is None else self.centers
            rows = problem.source.take(np.sort(problem.rng().choice(problem.n, min(M, problem.n), replace=False)))
        Z = jnp.asarray(rows, problem.dtype)
        M, watch.centers = Z.shape[0], Z
        spread = change_for(problem, M) is ChangeSpread
        square = SPREAD_MATRICES * M * M * 8 // problem.memories if spread else MATRICES * M * M * 8
        passes = Passes(problem, Z, problem.memory - square)
        change = change_for(problem, M)(problem, rows)

        def apply(beta: Any) -> Any:
            v = change.forward(beta)
            return change.backward(_ridged(passes.normal(v), change.K_times(v), problem.ridge))

        b = change.backward(passes.right_side())

        def measure(norms: np.ndarray, smallest: float) -> float:
            seen[0] = smallest
            # ‖f - f°‖ = ‖K_nM B (BᵀHB)⁻¹ r‖ ≤ ‖r‖/√λ_min(BᵀHB), with λ_min from the Ritz values
            return float(np.max(norms / problem.y_norm) / np.sqrt(smallest))

        beta, residual, steps, stopped, _ = conjugate_gradients(apply, b, lambda r: r, measure, change.forward, watch)
        alpha = np.asarray(change.forward(wide(beta)))
        residual = float(np.hypot(residual, _rounding(problem, rows, alpha, change, seen[0])))
        notes += (f"{M} centers, K {passes.how}",)
        used = square + passes.bytes
        return Fit(alpha, residual, steps, stopped, used, notes, rows, problem.ridge)

    def against_full(self, problem: Problem, fit: Fit, tolerance: float) -> Fit:
        """The fit with the distance of its problem, M centers that nobody asked for, from full regression.

        Half of the centers give f', and the error of f is at most ‖f - f'‖/(√2 - 1) where it falls as 1/√M or faster.
        """
        half = problem.rng().permutation(len(fit.centers))[: max(1, len(fit.centers) // 2)]  # type: ignore[arg-type]
        rows = fit.centers[np.sort(half)]  # type: ignore[index]
        coarse = NystromCG(rows).solve(problem, Watch(tolerance, _steps_of_half(fit.steps)))
        index = rows_of(problem)
        X = problem.source.take(index)
        fine, rough = (
            predict(problem.kernel, X, jnp.asarray(f.centers, problem.dtype), f.coefficients, problem.memory)
            for f in (fit, coarse)
        )
        scale = np.sqrt(problem.n / len(index)) / (np.sqrt(2) - 1) / problem.y_norm
        off = float(np.max(np.linalg.norm(fine - rough, axis=0) * scale))
        note = (
            f"{len(fit.centers)} of {problem.n} points are centers: predictions differ from those of full "  # type: ignore[arg-type]
            f"regression by about {off:.2g} of the labels (estimated from half as many)"
        )
        stopped = "centers" if off > tolerance else fit.stopped
        return fit._replace(residual=float(np.hypot(fit.residual, off)), notes=(*fit.notes, note), stopped=stopped)


def _steps_of_half(steps: int) -> int:
    """The most for half of the centers, which take about as many; their fit is a check, and must not cost more than
    what it checks, as with few steps allowed and a tolerance out of reach."""
    return min(NystromCG.most_steps, max(2 * steps, 10))


def _rounding(problem: Problem, Z: np.ndarray, alpha: np.ndarray, change: "Change", smallest: float) -> float:
    """What rounding adds to the relative error of predictions: e in `predict`; e again in the normal equations, where
    ‖K_nM H⁻¹ K_nMᵀ‖ ≤ 1; and there the rounding of K_nMᵀ and K_MM and the jitter, measured as a residual is."""
    size, moved = centers_rounding(problem, Z, alpha) if problem.dtype == np.float32 else (np.zeros(1), 0.0)
    g = np.asarray(change.backward(wide(moved + problem.ridge * change.jitter * alpha)))
    return float(np.max(np.sqrt(2 * problem.n * size**2 + np.sum(g * g, 0) / smallest) / problem.y_norm))


def default_centers(problem: Problem) -> int:
    """20√n, of the order at which the statistical error is kept (Rudi et al. 2017), as memory allows."""
    fits = int(np.sqrt(problem.memory / 2 / (MATRICES * 8)))
    return int(max(1, min(problem.n, 20 * np.sqrt(problem.n), fits, MOST_CENTERS)))


class Passes:
    """K_nMᵀ(K_nM v) and K_nMᵀ y: stored on the CPU where it fits, one product where the inputs fit, else block after
    block from the source. Sums over many rows are kept in float64: B amplifies what rounding leaves in them."""

    def __init__(self, problem: Problem, Z: jax.Array, budget: int):
        self.problem, self.Z, self.budget = problem, Z, max(budget, 2)
        n, row = problem.n, problem.source.d * problem.dtype.itemsize
        self.K: np.ndarray | None = None
        self.whole: Product | None = None
        block = HOST_BLOCK_BYTES if devices.is_host() else BLOCK_BYTES
        self.rows = _even(n, int(max(1, min(n, block // row, self.budget // (8 * row)))))
        self.bytes = BLOCKS * self.rows * row
        held = problem.source.whole is not None or n * row <= self.budget // 4 * problem.memories
        alone = devices.is_host() and devices.count() == 1
        if alone and held and n * Z.shape[0] * problem.dtype.itemsize <= self.budget:
            self.K, self.how = fill(problem.kernel, problem.X(), Z), "stored"
            self.bytes = self.K.nbytes
        elif held:
            if problem.spreads:
                self.whole = problem.spread(Z, self.budget)
            else:
                self.whole = product(problem.kernel, problem.X(), Z, passes=100, memory=self.budget)
            self.how, self.bytes = self.whole.how, self.whole.bytes
        else:
            self.how = "by blocks from the source"

    def normal(self, v: Any) -> Any:
        if self.K is not None:
            v = v.astype(self.K.dtype)
            return self._stored(lambda rows, K: dot(K, v), v.shape[1])
        return self._sum(lambda K, _: K.normal(narrow(v, K.dtype)), v.shape[1])

    def right_side(self) -> Any:
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

    def _sum(self, part: Callable[[Product, slice], jax.Array], c: int) -> Any:
        if self.whole is not None:
            return wide(part(self.whole, slice(None)))
        total = wide(np.zeros((self.Z.shape[0], c)))
        for rows, K in self._blocks():
            total = _added(total, wide(part(K, rows)))
            del K  # or it would live until the next is there
        return total

    def _blocks(self) -> Iterator[tuple[slice, Product]]:
        """Block after block of K, the next one read and looked at while this one is multiplied, and put on a card too;
        on the host, whose cores are busy anyway, it is prepared where it is used, while in the cache."""
        problem, starts = self.problem, range(0, self.problem.n, self.rows)
        blocks = [slice(start, min(start + self.rows, problem.n)) for start in starts]

        def read(rows: slice) -> tuple[slice, np.ndarray]:
            return rows, np.asarray(problem.source.rows(rows.start, rows.stop), problem.dtype)

        def ready(block: tuple[slice, np.ndarray]) -> tuple[slice, Product]:
            return block[0], product(problem.kernel, block[1], self.Z, memory=self.budget // 2)

        if problem.spreads:
            return self._spread_blocks(blocks)
        return map(ready, ahead(read, blocks)) if devices.is_host() else ahead(lambda rows: ready(read(rows)), blocks)

    def _spread_blocks(self, blocks: list[slice]) -> Iterator[tuple[slice, Product]]:
        """The same over several devices: this process's shares of a block are read ahead, and no others; to put them on
        devices is left to the caller's thread, since all processes must do that in one order."""
        problem, Z, mesh = self.problem, np.asarray(self.Z), mesh_of()

        def shares(rows: slice) -> tuple[slice, dict[tuple[int, int], np.ndarray]]:
            wanted = own_ranges(rows.stop - rows.start, mesh)
            return rows, {(a, b): problem.rows(rows.start + a, rows.start + b, Z) for a, b in wanted}

        for rows, found in ahead(shares, blocks):
            size = rows.stop - rows.start
            yield (
                rows,
                sharded_rows(problem.kernel, lambda *ends, found=found: found[ends], size, Z, memory=self.budget // 2),
            )


def _even(n: int, most: int) -> int:
    """Rows of a block, at most `most` and at least half of them, the same for all blocks where n allows: the last one
    would otherwise be a program of its own."""
    fewest = math.ceil(n / most)
    return next((n // k for k in range(fewest, 2 * fewest) if n % k == 0), most)


@in_float64
def _ridged(normal: Any, K_v: Any, ridge: Any) -> Any:
    return normal + ridge * K_v


@in_float64
def _added(total: Any, part: Any) -> Any:
    return total + part
