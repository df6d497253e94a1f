"""The change of variables α = B β that makes Nyström's normal equations easy (solvers.methods.nystrom_cg), and where
its factors live: in the host's memory, on a card, or spread over devices."""

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
from unlazy.core.linalg import dot
from unlazy.core.precision import precision, rounding
from unlazy.products.engines.dense import fill
from unlazy.products.engines.pairs import Matrix
from unlazy.products.engines.sharded import mesh_of
from unlazy.solvers.methods.triangular_solves import UpperFactor, lower_of_outer, upper_factor
from unlazy.solvers.problem import Problem
from unlazy.solvers.sharded.factors import SpreadFactor, spread_factor, spread_gram, spread_outer
from unlazy.solvers.sharded.factors import times as spread_times

MATRICES = 4
"""M × M matrices alive at once: K_MM, T, A and a workspace."""
SPREAD = 0.25
"""Part of a device's memory budget beyond which these are spread over all devices: applying them then costs a word
between devices, and computing them does twice the work."""
SPREAD_MATRICES = 6
"""Spread ones alive at once: K_MM, one inverse, and while the other is made its matrix, factor and a workspace."""
LEAST_RIDGE = 1e-8
"""Ridge over λ_max at least: H squares the condition, so that ρκ for the smallest direction κ of K_MM must stay above
the rounding of λ_max² in float64."""


class Change(abc.ABC):
    """α = B β with B = T⁻¹A⁻¹, where TᵀT = K_MM + jitter·I and AᵀA = (n/M) TTᵀ + ρI."""

    jitter: float

    @abc.abstractmethod
    def __init__(self, problem: Problem, Z: Matrix): ...

    @abc.abstractmethod
    def forward(self, beta: Any) -> Any:
        """B β."""

    @abc.abstractmethod
    def backward(self, v: Any) -> Any:
        """Bᵀ v."""

    @abc.abstractmethod
    def K_times(self, v: Any) -> Any:
        """TᵀT v = (K_MM + jitter·I) v: the jitter is rounding to K, and without it centers that coincide make H
        singular."""


class ChangeOnCPU(Change):
    """By BLAS (triangular solves of one column are 30 times slower in JAX), in float64: with float32 factors the
    residual stops falling at 1e-3 instead of 1e-4."""

    def __init__(self, problem: Problem, Z: Matrix):
        self.K = fill(problem.kernel, jnp.asarray(Z, problem.dtype))
        T, self.jitter = _jittered(_upper, self.K, problem, float(np.abs(self.K).sum(0).max()))
        self.T, self.A = T, _upper(dot(T, T.T) * (problem.n / Z.shape[0]), problem.ridge)

    def forward(self, beta: np.ndarray) -> np.ndarray:
        return dtrsm(1.0, self.T, dtrsm(1.0, self.A, np.asfortranarray(beta)))

    def backward(self, v: np.ndarray) -> np.ndarray:
        return dtrsm(1.0, self.A, dtrsm(1.0, self.T, np.asfortranarray(v), trans_a=1), trans_a=1)

    def K_times(self, v: np.ndarray) -> np.ndarray:
        return dot(self.K, v.astype(self.K.dtype)).astype(np.float64) + self.jitter * v


class ChangeOnGPU(Change):
    """By blocks of products (solvers.methods.triangular_solves), in float64 too: cards made for computing have fast
    float64 units, and with float32 factors the true residual stops falling ten times higher."""

    def __init__(self, problem: Problem, Z: Matrix):
        K = problem.kernel.gram(jnp.asarray(Z, problem.dtype))
        with precision("float64"):
            self.K = K.astype(jnp.float64)
            self.T, self.jitter = _jittered(_upper_factor, self.K, problem, float(jnp.abs(self.K).sum(0).max()))
            self.A = _upper_factor(lower_of_outer(self.T.U) * (problem.n / Z.shape[0]), problem.ridge)

    def forward(self, beta: Matrix) -> jax.Array:
        with precision("float64"):
            return self.T.solve(self.A.solve(jnp.asarray(beta)))

    def backward(self, v: Matrix) -> jax.Array:
        with precision("float64"):
            return self.A.solve_transposed(self.T.solve_transposed(jnp.asarray(v)))

    def K_times(self, v: Matrix) -> jax.Array:
        with precision("float64"):
            return dot(self.K, jnp.asarray(v)) + self.jitter * v


class ChangeSpread(Change):
    """By rows over devices (solvers.sharded.factors), where M × M matrices are too large for one of them."""

    def __init__(self, problem: Problem, Z: Matrix):
        self.mesh, M = mesh_of(), len(Z)

        def factor(K: jax.Array, diagonal: float) -> SpreadFactor:
            found = spread_factor(K, M, diagonal, self.mesh)
            if found is None:
                raise LinAlgError
            return found

        points = np.asarray(Z, problem.dtype)
        with precision("float64"):
            self.K = spread_gram(problem.kernel, points, self.mesh)
            norm = float(jnp.max(jnp.sum(jnp.abs(self.K), 1)))
            T, self.jitter = _jittered(factor, self.K, problem, norm, M)
            squared = spread_outer(T.L, M, problem.n / M, self.mesh)
            self.T, T = eqx.tree_at(lambda f: f.L, T, None), None  # the inverses are enough
            self.A = eqx.tree_at(lambda f: f.L, factor(squared, problem.ridge), None)

    def forward(self, beta: np.ndarray) -> np.ndarray:
        with precision("float64"):
            return self.T.solve_transposed(self.A.solve_transposed(beta))

    def backward(self, v: np.ndarray) -> np.ndarray:
        with precision("float64"):
            return self.A.solve(self.T.solve(v))

    def K_times(self, v: np.ndarray) -> np.ndarray:
        with precision("float64"):
            return spread_times(self.K, v, self.mesh) + self.jitter * v


def change_for(problem: Problem, M: int) -> type[Change]:
    """Where the factors live: on one device, and with several of them over all where one has no room."""
    if problem.spreads and problem.memory * SPREAD < MATRICES * M * M * 8:
        return ChangeSpread
    return ChangeOnCPU if devices.is_host() else ChangeOnGPU


def _upper(K: np.ndarray, diagonal: float) -> np.ndarray:
    """U with UᵀU = K + diagonal·I, in float64."""
    K = np.array(K, np.float64, order="F")
    K[np.diag_indices_from(K)] += diagonal
    return cholesky(K, lower=False, overwrite_a=True, check_finite=False)


def _upper_factor(K: jax.Array, diagonal: float) -> UpperFactor:
    factor = upper_factor(K, jnp.asarray(diagonal, K.dtype))
    if not bool(jnp.isfinite(factor.U[-1, -1])):
        raise LinAlgError
    return factor


def _jittered(
    factor: Callable[[Any, float], Any], K: Any, problem: Problem, norm: float, M: int | None = None
) -> tuple[Any, float]:
    """The factor of K plus the least jitter that makes it positive, and that jitter.

    H = K_nMᵀK_nM + ρK_MM: where ρ·jitter stays above the rounding of (n/M)‖K‖² in float64, no direction is lost.
    """
    least = rounding(np.float64) * problem.n / (M or K.shape[0]) * norm / problem.ridge
    jitter = max(4 * rounding(problem.dtype), min(0.1 * LEAST_RIDGE, least)) * norm
    for _ in range(8):
        try:
            return factor(K, jitter), jitter
        except LinAlgError:
            jitter *= 10
    raise ValueError("the kernel between the centers is not positive: is it a kernel, are its entries finite?")
