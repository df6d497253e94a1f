"""Full kernel ridge regression (K + ρI)α = y by conjugate gradients with a randomly pivoted Cholesky preconditioner.

K ≈ F Fᵀ of rank k gives P = F Fᵀ + ρI, whose inverse is (I - F (FᵀF + ρI)⁻¹ Fᵀ)/ρ. Each step is one pass over K; the
number of steps depends on the error of the approximation F Fᵀ, not on n. Díaz, Epperly, Frangella, Tropp and Webber
(2023).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from unlazy.core import devices
from unlazy.core.arrays import dot, precision
from unlazy.products import KernelOperator
from unlazy.products.engines.base import StoredOperator
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.methods.base import Method, positive_integer_or_none
from unlazy.solvers.methods.conjugate_gradients import VectorPlacement, conjugate_gradients
from unlazy.solvers.methods.pivoted_cholesky import randomly_pivoted_cholesky
from unlazy.solvers.methods.triangular_solves import UpperFactor, upper_factor
from unlazy.solvers.problem import FittedCoefficients, Operator, Problem, add_scaled, kernel_matmul
from unlazy.solvers.sharded.cholesky import sharded_cholesky, sharded_preconditioner

FLOAT64_CHUNK_ROWS = 8192
"""Rows of F converted to float64 at a time."""
GRADIENT_KERNEL_RANK = 20
"""Rank for kernels whose entries require gradients: each column costs about half a pass over K, forward through all
points, not 1/n of one."""


class PreconditionedCG(Method):
    """Conjugate gradients on all points, preconditioned by randomly pivoted Cholesky.

    Parameters
    ----------
    rank : int, optional
        Rank of the preconditioner. By default about 5√n, up to 1,000, and 20 for kernels whose entries require
        gradients.

    References
    ----------
    Díaz, Epperly, Frangella, Tropp and Webber (2023), Robust, randomized preconditioning for kernel ridge regression.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, PreconditionedCG, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=1e-3, method=PreconditionedCG(rank=20)).predict(X[:5]).shape
    (5,)
    """

    name = "preconditioned_cg"
    default_max_steps = 1000
    rank: int | None = eqx.field(default=None, static=True, converter=positive_integer_or_none("rank"))

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α of full kernel ridge regression."""
        problem = problem.with_resolvable_ridge()
        if problem.is_sharded:
            return self._solve_sharded(problem, callback)
        X = problem.X()
        rank = default_rank(problem) if self.rank is None else min(self.rank, problem.n)
        factor_bytes = problem.n * rank * problem.dtype.itemsize
        K = problem.product(X, problem.memory - 3 * factor_bytes)
        precondition, rank = preconditioner(problem, X, rank, K)

        def apply(P: Any) -> Any:
            return add_scaled(kernel_matmul(K, P), P, problem.ridge)

        def accurate(P: np.ndarray) -> np.ndarray:
            return K.matmul_float64(P) + problem.ridge * P

        alpha, residual, steps, stopped, left = conjugate_gradients(
            apply, problem.y, precondition, lambda norms, _: float(np.max(norms / problem.y_norm)), lambda x: x,
            callback, accurate if devices.is_host() else None,  # on a GPU there is no more accurate product
        )  # fmt: skip
        return FittedCoefficients(
            alpha,
            residual,
            steps,
            stopped,
            K.bytes + factor_bytes,
            (*problem.notes, f"K {K.engine}, rank {rank}"),
            ridge=problem.ridge,
            residual_vector=left,
        )

    def _solve_sharded(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """The same with rows sharded over devices.

        K is computed around a ring of devices; F and the vectors of the iteration stay where their rows are, and only
        a few numbers per step reach the host.
        """
        rank = default_rank(problem) if self.rank is None else min(self.rank, problem.n)
        K = problem.sharded_operator(budget=problem.memory)
        F = sharded_cholesky(K, rank, problem.rng())
        precondition = sharded_preconditioner(K, F, problem.ridge)

        def apply(P: jax.Array) -> jax.Array:
            low = P.astype(K.dtype)
            with precision(problem.dtype.name):
                product = K.matmul_sharded(low)
            return product.astype(P.dtype) + problem.ridge * P

        with precision("float64"):
            alpha, residual, steps, stopped, left = conjugate_gradients(
                apply, problem.y, precondition, lambda norms, _: float(np.max(norms / problem.y_norm)), K.gather,
                callback, placement=VectorPlacement(K.shard, K.gather),
            )  # fmt: skip
        notes = (*problem.notes, f"K {K.engine} over {K.mesh.devices.size} devices, rank {F.shape[1]}")
        return FittedCoefficients(
            alpha, residual, steps, stopped, F.nbytes, notes, ridge=problem.ridge, residual_vector=left
        )


def default_rank(problem: Problem) -> int:
    """5√n up to 1,000, as memory allows: the factorization, n k², then costs at most about 25 passes over K.

    At n = 20,000 with a Gaussian kernel, ranks 400, 700, 1,000 and 1,500 took 12.7, 10.2, 11.8 and 13.8 CPU-seconds.
    """
    n = problem.n
    fits = problem.memory // 4 // (3 * n * problem.dtype.itemsize)
    most = GRADIENT_KERNEL_RANK if problem.kernel.requires_gradients else 1000
    return int(min(n, max(10, min(5 * np.sqrt(n), most, fits))))


def preconditioner(problem: Problem, X: jax.Array, rank: int, K: KernelOperator) -> tuple[Operator, int]:
    """Return r → (F Fᵀ + ρI)⁻¹ r, and the rank of F.

    The k × k system is factorized in float64: its condition number is that of K/ρ.
    """
    on_cpu = devices.is_host()
    at_hand = np.asarray(K.K) if isinstance(K, StoredOperator) and on_cpu else None
    F, _ = randomly_pivoted_cholesky(problem.kernel, X, rank, problem.rng(), at_hand)
    # NumPy products of a tall F with a few columns need no compilation
    apply = (
        _host_preconditioner(np.asarray(F), problem.ridge)
        if on_cpu
        else _device_preconditioner(jnp.asarray(F), problem.ridge)
    )
    return apply, F.shape[1]


def _host_preconditioner(F: np.ndarray, ridge: float) -> Operator:
    """Preconditioner for NumPy vectors."""
    core = _gram64(F)
    core[np.diag_indices_from(core)] += ridge
    factor = cho_factor(core, lower=True, check_finite=False)

    def apply(r: np.ndarray) -> np.ndarray:
        inner = dot(r.T.astype(F.dtype), F).astype(np.float64).T
        weights = cho_solve(factor, inner, check_finite=False)
        return (r - dot(F, weights.astype(F.dtype)).astype(np.float64)) / ridge

    return apply


def _device_preconditioner(F: jax.Array, ridge: float) -> Operator:
    """The same on a GPU, by blockwise triangular solves (solvers.methods.triangular_solves)."""
    with precision("float64"):
        core = sum(
            _outer64(F[start : start + FLOAT64_CHUNK_ROWS]) for start in range(0, F.shape[0], FLOAT64_CHUNK_ROWS)
        )
        factor = upper_factor(core, jnp.asarray(ridge, jnp.float64))

    def apply(r: jax.Array) -> jax.Array:
        with precision("float64"):
            return _woodbury(F, factor, r, ridge)

    return apply


@jax.jit
def _outer64(part: jax.Array) -> jax.Array:
    """FᵀF of some rows in float64."""
    part = part.astype(jnp.float64)
    return dot(part.T, part)


@jax.jit
def _woodbury(F: jax.Array, factor: UpperFactor, r: jax.Array, ridge: Any) -> jax.Array:
    """(F Fᵀ + ρI)⁻¹ r by the Woodbury identity."""
    inner = dot(r.T.astype(F.dtype), F).astype(r.dtype).T
    weights = factor.solve(factor.solve_transposed(inner))
    return (r - dot(F, weights.astype(F.dtype)).astype(r.dtype)) / ridge


def _gram64(F: np.ndarray) -> np.ndarray:
    """FᵀF accumulated in float64, a few rows at a time."""
    n, k = F.shape
    total = np.zeros((k, k))
    for start in range(0, n, FLOAT64_CHUNK_ROWS):
        part = F[start : start + FLOAT64_CHUNK_ROWS].astype(np.float64)
        total += dot(part.T, part)
    return total
