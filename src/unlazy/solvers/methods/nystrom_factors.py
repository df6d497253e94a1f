"""Change of variables α = B β that preconditions the Nyström normal equations (solvers.methods.nystrom_cg).

Its factors are stored in host memory, on a GPU, or sharded over devices.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.blas import dtrsm

from unlazy.core import devices
from unlazy.core.arrays import Matrix, dot, precision, unit_roundoff
from unlazy.products.engines.blocked import gram_numpy
from unlazy.products.engines.sharded import device_mesh
from unlazy.solvers.methods.triangular_solves import UpperFactor, lower_of_outer, upper_factor
from unlazy.solvers.problem import Problem
from unlazy.solvers.sharded.factors import ShardedFactor, sharded_factor, sharded_gram, sharded_matmul, sharded_outer

LIVE_MATRICES = 4
"""M × M matrices alive at once: K_MM, T, A and a workspace."""
SHARDING_THRESHOLD = 0.25
"""Share of the memory budget of a device above which the factors are sharded over all devices: applying them then
requires communication, and computing them twice the work."""
LIVE_SHARDED_MATRICES = 6
"""Sharded matrices alive at once: K_MM, one inverse, and while the other is computed its matrix, factor and a
workspace."""
MIN_RELATIVE_RIDGE = 1e-8
"""Lower bound of ridge/λ_max: H squares the condition number, so ρκ for the smallest eigenvalue κ of K_MM must stay
above the rounding of λ_max² in float64."""


class ChangeOfVariables(abc.ABC):
    """α = B β with B = T⁻¹A⁻¹, where TᵀT = K_MM + jitter·I and AᵀA = (n/M) TTᵀ + ρI."""

    jitter: float

    @abc.abstractmethod
    def __init__(self, problem: Problem, Z: Matrix): ...

    @abc.abstractmethod
    def forward(self, beta: Matrix) -> Matrix:
        """B β."""

    @abc.abstractmethod
    def backward(self, v: Matrix) -> Matrix:
        """Bᵀ v."""

    @abc.abstractmethod
    def K_matmul(self, v: Matrix) -> Matrix:
        """TᵀT v = (K_MM + jitter·I) v: without the jitter, near-duplicate centers make H singular."""


class CPUChangeOfVariables(ChangeOfVariables):
    """Factors in float64 with BLAS: triangular solves with one column are 30 times slower in JAX.

    With float32 factors the residual stops decreasing at 1e-3 instead of 1e-4.
    """

    def __init__(self, problem: Problem, Z: Matrix):
        self.K = gram_numpy(problem.kernel, jnp.asarray(Z, problem.dtype))
        T, self.jitter = _factor_with_jitter(_upper, self.K, problem, float(np.abs(self.K).sum(0).max()))
        self.T, self.A = T, _upper(dot(T, T.T) * (problem.n / Z.shape[0]), problem.ridge)

    def forward(self, beta: Matrix) -> np.ndarray:
        return dtrsm(1.0, self.T, dtrsm(1.0, self.A, np.asfortranarray(beta)))

    def backward(self, v: Matrix) -> np.ndarray:
        return dtrsm(1.0, self.A, dtrsm(1.0, self.T, np.asfortranarray(v), trans_a=1), trans_a=1)

    def K_matmul(self, v: Matrix) -> np.ndarray:
        return dot(self.K, np.asarray(v, self.K.dtype)).astype(np.float64) + self.jitter * np.asarray(v)


class GPUChangeOfVariables(ChangeOfVariables):
    """Factors in float64 with blockwise products (solvers.methods.triangular_solves).

    Data-center GPUs have fast float64 units; with float32 factors the true residual stops decreasing ten times higher.
    """

    def __init__(self, problem: Problem, Z: Matrix):
        K = problem.kernel.gram(jnp.asarray(Z, problem.dtype))
        with precision("float64"):
            self.K = K.astype(jnp.float64)
            self.T, self.jitter = _factor_with_jitter(
                _upper_factor, self.K, problem, float(jnp.abs(self.K).sum(0).max())
            )
            self.A = _upper_factor(lower_of_outer(self.T.U) * (problem.n / Z.shape[0]), problem.ridge)

    def forward(self, beta: Matrix) -> jax.Array:
        with precision("float64"):
            return self.T.solve(self.A.solve(jnp.asarray(beta)))

    def backward(self, v: Matrix) -> jax.Array:
        with precision("float64"):
            return self.A.solve_transposed(self.T.solve_transposed(jnp.asarray(v)))

    def K_matmul(self, v: Matrix) -> jax.Array:
        with precision("float64"):
            return dot(self.K, jnp.asarray(v)) + self.jitter * v


class ShardedChangeOfVariables(ChangeOfVariables):
    """Factors sharded by rows over devices (solvers.sharded.factors), for M × M matrices too large for one device."""

    def __init__(self, problem: Problem, Z: Matrix):
        self.mesh, M = device_mesh(), len(Z)

        def factor(K: jax.Array, diagonal: float) -> ShardedFactor:
            found = sharded_factor(K, M, diagonal, self.mesh)
            if found is None:
                raise LinAlgError
            return found

        points = np.asarray(Z, problem.dtype)
        with precision("float64"):
            self.K = sharded_gram(problem.kernel, points, self.mesh)
            norm = float(jnp.max(jnp.sum(jnp.abs(self.K), 1)))
            T, self.jitter = _factor_with_jitter(factor, self.K, problem, norm, M)
            squared = sharded_outer(T.L, M, problem.n / M, self.mesh)
            self.T, T = eqx.tree_at(lambda f: f.L, T, None), None  # the inverses suffice
            self.A = eqx.tree_at(lambda f: f.L, factor(squared, problem.ridge), None)

    def forward(self, beta: Matrix) -> np.ndarray:
        with precision("float64"):
            return self.T.solve_transposed(self.A.solve_transposed(np.asarray(beta)))

    def backward(self, v: Matrix) -> np.ndarray:
        with precision("float64"):
            return self.A.solve(self.T.solve(np.asarray(v)))

    def K_matmul(self, v: Matrix) -> np.ndarray:
        with precision("float64"):
            return sharded_matmul(self.K, np.asarray(v), self.mesh) + self.jitter * np.asarray(v)


def change_of_variables_class(problem: Problem, M: int) -> type[ChangeOfVariables]:
    """The class for the factors: on one device, or sharded over several if one device has too little memory."""
    if problem.is_sharded and problem.memory * SHARDING_THRESHOLD < LIVE_MATRICES * M * M * 8:
        return ShardedChangeOfVariables
    return CPUChangeOfVariables if devices.is_host() else GPUChangeOfVariables


def _upper(K: np.ndarray, diagonal: float) -> np.ndarray:
    """U with UᵀU = K + diagonal·I, in float64."""
    K = np.array(K, np.float64, order="F")
    K[np.diag_indices_from(K)] += diagonal
    return cholesky(K, lower=False, overwrite_a=True, check_finite=False)


def _upper_factor(K: jax.Array, diagonal: float) -> UpperFactor:
    """The same on a GPU; raises LinAlgError if the matrix is not positive definite."""
    factor = upper_factor(K, jnp.asarray(diagonal, K.dtype))
    if not bool(jnp.isfinite(factor.U[-1, -1])):
        raise LinAlgError
    return factor


def _factor_with_jitter(
    factor: Callable[[Any, float], Any], K: Any, problem: Problem, norm: float, M: int | None = None
) -> tuple[Any, float]:
    """Factor of K plus the smallest jitter that makes it positive definite, and that jitter.

    H = K_nMᵀK_nM + ρK_MM: if ρ·jitter stays above the rounding of (n/M)‖K‖² in float64, no direction is lost.
    """
    least = unit_roundoff(np.float64) * problem.n / (M or K.shape[0]) * norm / problem.ridge
    jitter = max(4 * unit_roundoff(problem.dtype), min(0.1 * MIN_RELATIVE_RIDGE, least)) * norm
    for _ in range(8):
        try:
            return factor(K, jitter), jitter
        except LinAlgError:
            jitter *= 10
    raise ValueError(
        "the Gram matrix of the centers is not positive definite: the kernel is not positive semi-definite, or its "
        "entries are not finite"
    )
