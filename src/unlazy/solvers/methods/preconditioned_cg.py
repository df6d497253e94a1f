"""All points as centers: (K + ρI)α = y by conjugate gradients with a randomly pivoted Cholesky preconditioner.

K ≈ F Fᵀ of rank k gives P = F Fᵀ + ρI, whose inverse is (I - F (FᵀF + ρI)⁻¹ Fᵀ)/ρ. A pass over K per step; the number
of steps depends on what F leaves out, not on n. Díaz, Epperly, Frangella, Tropp and Webber (2023).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from unlazy.core import devices
from unlazy.core.linalg import dot
from unlazy.core.precision import precision
from unlazy.products import Product
from unlazy.products.engines.base import Stored
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.float64_vectors import Operator, in_float64, times
from unlazy.solvers.methods.base import Method, count
from unlazy.solvers.methods.conjugate_gradients import Home, conjugate_gradients
from unlazy.solvers.methods.pivoted_cholesky import randomly_pivoted_cholesky
from unlazy.solvers.methods.triangular_solves import UpperFactor, upper_factor
from unlazy.solvers.problem import Fit, Problem
from unlazy.solvers.sharded.cholesky import spread_cholesky, spread_preconditioner

ROWS = 8192
"""Rows of F in float64 at a time."""
OWN_RANK = 20
"""Columns of a kernel whose entries take gradients: each costs about half a pass over K, forward through all points,
not 1/n of one."""


class PreconditionedCG(Method):
    """All points as centers; `rank` columns of K precondition, 5√n or so unless given, 20 where K is never formed.

    >>> solve(kernel, X, y, ridge=1e-3, method=PreconditionedCG(rank=20)).predict(Z).shape
    (5,)
    """

    name = "preconditioned_cg"
    most_steps = 1000
    rank: int | None = eqx.field(default=None, static=True, converter=count("rank"))

    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """α of full kernel ridge regression."""
        problem = problem.mended()
        if problem.spreads:
            return self._spread(problem, watch)
        X = problem.X()
        rank = default_rank(problem) if self.rank is None else min(self.rank, problem.n)
        factor_bytes = problem.n * rank * problem.dtype.itemsize
        K = problem.product(X, problem.memory - 3 * factor_bytes)
        precondition, rank = preconditioner(problem, X, rank, K)

        def apply(P: Any) -> Any:
            return _ridged(P, times(K, P), problem.ridge)

        def accurate(P: np.ndarray) -> np.ndarray:
            return K.accurate(P) + problem.ridge * P

        alpha, residual, steps, stopped, left = conjugate_gradients(
            apply, problem.y, precondition, lambda norms, _: float(np.max(norms / problem.y_norm)), lambda x: x, watch,
            accurate if devices.is_host() else None,  # elsewhere a product has no more digits to give
        )  # fmt: skip
        return Fit(
            alpha,
            residual,
            steps,
            stopped,
            K.bytes + factor_bytes,
            (*problem.notes, f"K {K.how}, rank {rank}"),
            ridge=problem.ridge,
            left=left,
        )

    def _spread(self, problem: Problem, watch: Watch) -> Fit:
        """The same with rows over devices: K goes around a ring, F and the vectors of the iteration stay where their
        rows are, and what comes to the host is a few numbers a step."""
        rank = default_rank(problem) if self.rank is None else min(self.rank, problem.n)
        K = problem.spread(budget=problem.memory)
        F = spread_cholesky(K, rank, problem.rng())
        precondition = spread_preconditioner(K, F, problem.ridge)

        def apply(P: jax.Array) -> jax.Array:
            low = P.astype(K.dtype)
            with precision(problem.dtype.name):
                product = K.times(low)
            return product.astype(P.dtype) + problem.ridge * P

        with precision("float64"):
            alpha, residual, steps, stopped, left = conjugate_gradients(
                apply, problem.y, precondition, lambda norms, _: float(np.max(norms / problem.y_norm)), K.gathered,
                watch, home=Home(K.spread, K.gathered),
            )  # fmt: skip
        notes = (*problem.notes, f"K {K.how} over {K.mesh.devices.size} devices, rank {F.shape[1]}")
        return Fit(alpha, residual, steps, stopped, F.nbytes, notes, ridge=problem.ridge, left=left)


def default_rank(problem: Problem) -> int:
    """5√n up to 1,000, as memory allows: the factor, n k², then costs no more than some 25 passes over K. At
    n = 20,000, Gaussian, rank 400, 700, 1,000, 1,500 took 12.7, 10.2, 11.8, 13.8 CPU-seconds in all."""
    n = problem.n
    fits = problem.memory // 4 // (3 * n * problem.dtype.itemsize)
    most = OWN_RANK if problem.kernel.takes_gradients else 1000
    return int(min(n, max(10, min(5 * np.sqrt(n), most, fits))))


@in_float64
def _ridged(P: Any, KP: Any, ridge: Any) -> Any:
    return KP + ridge * P


def preconditioner(problem: Problem, X: jax.Array, rank: int, K: Product) -> tuple[Operator, int]:
    """r → (F Fᵀ + ρI)⁻¹ r, and the rank of F. The k × k system is factored in float64: its condition is that of K/ρ."""
    on_cpu = devices.is_host()
    at_hand = np.asarray(K.K) if isinstance(K, Stored) and on_cpu else None
    F, _ = randomly_pivoted_cholesky(problem.kernel, X, rank, problem.rng(), at_hand)
    # NumPy's products of a tall F with a few columns need no compilation
    apply = _on_host(np.asarray(F), problem.ridge) if on_cpu else _on_card(jnp.asarray(F), problem.ridge)
    return apply, F.shape[1]


def _on_host(F: np.ndarray, ridge: float) -> Operator:
    core = _gram64(F)
    core[np.diag_indices_from(core)] += ridge
    factor = cho_factor(core, lower=True, check_finite=False)

    def apply(r: np.ndarray) -> np.ndarray:
        inner = dot(r.T.astype(F.dtype), F).astype(np.float64).T
        weights = cho_solve(factor, inner, check_finite=False)
        return (r - dot(F, weights.astype(F.dtype)).astype(np.float64)) / ridge

    return apply


def _on_card(F: jax.Array, ridge: float) -> Operator:
    """The same with the factor's inverse by blocks (solvers.methods.triangular_solves), and nothing of it on the
    host."""
    with precision("float64"):
        core = sum(_outer64(F[start : start + ROWS]) for start in range(0, F.shape[0], ROWS))
        factor = upper_factor(core, jnp.asarray(ridge, jnp.float64))

    def apply(r: jax.Array) -> jax.Array:
        with precision("float64"):
            return _woodbury(F, factor, r, ridge)

    return apply


@jax.jit
def _outer64(part: jax.Array) -> jax.Array:
    part = part.astype(jnp.float64)
    return dot(part.T, part)


@jax.jit
def _woodbury(F: jax.Array, factor: UpperFactor, r: jax.Array, ridge: Any) -> jax.Array:
    inner = dot(r.T.astype(F.dtype), F).astype(r.dtype).T
    weights = factor.solve(factor.solve_transposed(inner))
    return (r - dot(F, weights.astype(F.dtype)).astype(r.dtype)) / ridge


def _gram64(F: np.ndarray) -> np.ndarray:
    """FᵀF accumulated in float64, a few rows at a time."""
    n, k = F.shape
    total = np.zeros((k, k))
    for start in range(0, n, ROWS):
        part = F[start : start + ROWS].astype(np.float64)
        total += dot(part.T, part)
    return total
