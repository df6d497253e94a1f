"""M of the points as centres: (K_nMᵀ K_nM + ρ K_MM)α = K_nMᵀ y by preconditioned conjugate gradients.

With K_MM = TᵀT and K_nMᵀK_nM ≈ (n/M) K_MM², H ≈ Tᵀ(n/M TTᵀ + ρI)T = (AT)ᵀ(AT): in the variables β = A T α the matrix
is near the identity and a few passes over the data suffice. Falkon's problem: Rudi, Carratino and Rosasco (2017).
A pass reads the data by blocks, so they may be larger than memory; cost n·M a step, memory M².
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.blas import dtrsm, strsm

from unlazy.core.precision import rounding
from unlazy.products import Product, product
from unlazy.products.dense import fill
from unlazy.products.pairs import HIGHEST
from unlazy.solvers.conjugate_gradients import conjugate_gradients
from unlazy.solvers.problem import Fit, Problem
from unlazy.solvers.watch import Watch

MATRICES = 4
"""M × M matrices alive at once: K_MM, T, A and a workspace."""
MOST_CENTRES = 32_768
BLOCK_BYTES = 2**28
"""Inputs read at a time where they do not fit."""


def solve(problem: Problem, watch: Watch, centres: int | np.ndarray | None = None) -> Fit:
    """α of ridge regression on M centres: drawn from the points without repeats, or given as rows."""
    notes, Z = problem.notes, None
    if centres is not None and not isinstance(centres, int | np.integer):
        Z = jnp.asarray(centres, problem.dtype)
    M = default_centres(problem) if centres is None else int(centres) if Z is None else Z.shape[0]
    if Z is None:
        index = np.sort(problem.rng().choice(problem.n, min(M, problem.n), replace=False))
        Z = jnp.asarray(problem.source.take(index), problem.dtype)
    M, watch.centres = Z.shape[0], Z
    square = MATRICES * M * M * problem.dtype.itemsize
    passes = Passes(problem, Z, problem.memory - square)
    change = Change(problem, Z)

    def apply(beta: np.ndarray) -> np.ndarray:
        v = change.forward(beta)
        return change.backward(passes.normal(v) + problem.ridge * change.K_times(v))

    b = change.backward(passes.right_side())

    def measure(r: np.ndarray, smallest: float) -> float:
        # ‖f - f°‖ = ‖K_nM B (BᵀHB)⁻¹ r‖ ≤ ‖r‖/√λ_min(BᵀHB), with λ_min from the Ritz values
        return float(np.max(np.linalg.norm(r, axis=0) / problem.y_norm) / np.sqrt(smallest))

    beta, residual, steps, stopped = conjugate_gradients(apply, b, lambda r: r, measure, change.forward, watch)
    notes += (f"{M} centres, K {passes.how}", *change.notes)
    return Fit(change.forward(beta), residual, steps, stopped, square + passes.bytes, notes, np.asarray(Z))


def default_centres(problem: Problem) -> int:
    """20√n, of the order at which the statistical error is kept (Rudi et al. 2017), as memory allows."""
    fits = int(np.sqrt(problem.memory / 2 / (MATRICES * problem.dtype.itemsize)))
    return int(max(1, min(problem.n, 20 * np.sqrt(problem.n), fits, MOST_CENTRES)))


class Passes:
    """K_nMᵀ(K_nM v) and K_nMᵀ y: one product where the inputs fit, else block after block from the source."""

    def __init__(self, problem: Problem, Z: jax.Array, budget: int):
        self.problem, self.Z, self.budget = problem, Z, max(budget, 1)
        row = problem.source.d * problem.dtype.itemsize
        self.whole: Product | None = None
        if problem.source.whole is not None or problem.n * row <= self.budget // 4:
            self.whole = product(problem.kernel, problem.X(), Z, passes=100, memory=self.budget)
        self.rows = int(max(1, min(problem.n, BLOCK_BYTES // row, self.budget // (8 * row))))
        self.how = self.whole.how if self.whole is not None else "by blocks from the source"
        self.bytes = self.whole.bytes if self.whole is not None else 2 * self.rows * row

    def normal(self, v: np.ndarray) -> np.ndarray:
        return self._sum(lambda K, _: K.normal(jnp.asarray(v, K.dtype)), v.shape[1])

    def right_side(self) -> np.ndarray:
        y = self.problem.y
        return self._sum(lambda K, rows: K.rmatmul(jnp.asarray(y[rows], K.dtype)), y.shape[1])

    def _sum(self, part: Callable[[Product, slice], jax.Array], c: int) -> np.ndarray:
        if self.whole is not None:
            return np.asarray(part(self.whole, slice(None)), np.float64)
        total = np.zeros((self.Z.shape[0], c))
        for start, X in self.problem.source.blocks(self.rows):
            K = product(self.problem.kernel, jnp.asarray(X, self.Z.dtype), self.Z, memory=self.budget // 2)
            total += np.asarray(part(K, slice(start, start + X.shape[0])), np.float64)
        return total


class Change:
    """α = B β with B = T⁻¹A⁻¹. On the CPU by triangular solves of BLAS (in JAX they are 30 times slower for one
    column); on a GPU by inverses, formed once."""

    def __init__(self, problem: Problem, Z: jax.Array):
        self.dtype, self.notes = problem.dtype, ()
        self.on_cpu = jax.default_backend() == "cpu"
        M = Z.shape[0]
        self.K = fill(problem.kernel, Z) if self.on_cpu else problem.kernel.gram(Z)
        unit = 4 * rounding(problem.dtype) * float(abs(self.K).sum(0).max())
        for _ in range(8):
            try:
                T = self._factor(self.K, unit)
                break
            except LinAlgError:
                unit *= 10
        else:
            raise ValueError("the kernel between the centres is not positive: is it a kernel, are its entries finite?")
        # the ridge that A sees is not below its own rounding; H itself keeps the true one
        ridge = max(problem.ridge, unit * M / problem.n)
        self.T, self.A = T, self._factor(self._outer(T) * (problem.n / M), ridge)
        if not self.on_cpu:
            eye = jnp.eye(M, dtype=self.dtype)
            self.T, self.A = (jax.scipy.linalg.solve_triangular(F, eye, lower=False) for F in (self.T, self.A))

    def _factor(self, K, diagonal: float):  # type: ignore[no-untyped-def]
        """Upper U with UᵀU = K + diagonal·I."""
        if self.on_cpu:
            K = np.array(K, order="F")
            K[np.diag_indices_from(K)] += diagonal
            return cholesky(K, lower=False, overwrite_a=True, check_finite=False)
        U = jnp.linalg.cholesky(K + diagonal * jnp.eye(K.shape[0], dtype=K.dtype)).T
        if not bool(jnp.isfinite(U[-1, -1])):
            raise LinAlgError
        return U

    def _outer(self, T):  # type: ignore[no-untyped-def]
        return T @ T.T if self.on_cpu else jnp.matmul(T, T.T, precision=HIGHEST)

    def forward(self, beta: np.ndarray) -> np.ndarray:
        """B β."""
        return self._solve(self.T, self._solve(self.A, beta))

    def backward(self, v: np.ndarray) -> np.ndarray:
        """Bᵀ v."""
        return self._solve(self.A, self._solve(self.T, v, True), True)

    def K_times(self, v: np.ndarray) -> np.ndarray:
        if self.on_cpu:
            return (self.K @ v.astype(self.dtype)).astype(np.float64)
        return np.asarray(jnp.matmul(self.K, jnp.asarray(v, self.dtype), precision=HIGHEST), np.float64)

    def _solve(self, F, v: np.ndarray, transposed: bool = False) -> np.ndarray:  # type: ignore[no-untyped-def]
        if self.on_cpu:
            trsm = strsm if self.dtype == np.float32 else dtrsm
            return trsm(1.0, F, np.asfortranarray(v, self.dtype), trans_a=int(transposed)).astype(np.float64)
        return np.asarray(
            jnp.matmul(F.T if transposed else F, jnp.asarray(v, self.dtype), precision=HIGHEST), np.float64
        )
