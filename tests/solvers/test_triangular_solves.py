"""Blocked triangular work against NumPy in float64, and the GPU's change of variables against the CPU's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.arrays import unit_roundoff
from unlazy.kernels.radial import Gaussian
from unlazy.solvers.methods import nystrom_factors, triangular_solves
from unlazy.solvers.problem import make_problem


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(triangular_solves, "BLOCK", 16)
    jax.clear_caches()  # the block is read while tracing
    yield
    jax.clear_caches()


def _positive(M: int) -> np.ndarray:
    A = np.random.default_rng(0).normal(size=(M, 2 * M))
    return A @ A.T / (2 * M)


@pytest.mark.slow_cases("7")
@pytest.mark.parametrize("M", [7, 32, 45])
def test_factor_and_solves(small_blocks, M):
    K = _positive(M)
    v = np.random.default_rng(1).normal(size=(M, 2))
    with jax.enable_x64(True):
        lower = jnp.asarray(np.tril(K))  # only the lower triangle may be read
        factor = triangular_solves.upper_factor(lower, jnp.asarray(0.1))
        U = np.asarray(factor.U)
        solved, transposed = factor.solve(jnp.asarray(v)), factor.solve_transposed(jnp.asarray(v))
        outer = np.asarray(triangular_solves.lower_of_outer(factor.U))
    expected = np.linalg.cholesky(K + 0.1 * np.eye(M)).T
    # backward errors of M roundings, amplified by the condition of U (squared for the factor itself): below 50 here
    tolerance = 50**2 * M * unit_roundoff(np.float64)
    np.testing.assert_allclose(U, expected, atol=tolerance)
    np.testing.assert_allclose(np.asarray(solved), np.linalg.solve(expected, v), atol=tolerance)
    np.testing.assert_allclose(np.asarray(transposed), np.linalg.solve(expected.T, v), atol=tolerance)
    np.testing.assert_allclose(np.tril(outer), np.tril(expected @ expected.T), atol=tolerance)


def test_both_changes_of_variables_are_one(small_blocks):
    """B, Bᵀ and K_MM v of the GPU's way against BLAS: float64 on the same float32 entries."""
    rng = np.random.default_rng(2)
    X, Z = rng.normal(size=(60, 3)), jnp.asarray(rng.normal(size=(40, 3)), jnp.float32)
    problem = make_problem(Gaussian(1.0), X, rng.normal(size=60), 5.0)
    v = rng.normal(size=(40, 1))
    cpu, gpu = nystrom_factors.CPUChangeOfVariables(problem, Z), nystrom_factors.GPUChangeOfVariables(problem, Z)
    # the two Grams may differ in the last float32 digit of an entry; T⁻¹A⁻¹ amplifies it by the condition numbers
    condition = np.linalg.cond(cpu.T) * np.linalg.cond(cpu.A)
    entries = 40 * 2 * unit_roundoff(np.float32) * np.max(np.abs(np.asarray(gpu.K) - cpu.K) > 0)
    for mine, theirs in [
        (gpu.forward(v), cpu.forward(v)), (gpu.backward(v), cpu.backward(v)), (gpu.K_matmul(v), cpu.K_matmul(v)),
    ]:  # fmt: skip
        mine = np.asarray(mine)
        assert mine.dtype == np.float64
        # K_matmul on the CPU is float32's product: 40 of its roundings
        tolerance = condition * (entries + 40 * unit_roundoff(np.float64)) + 40 * unit_roundoff(np.float32)
        np.testing.assert_allclose(mine, theirs, atol=tolerance * np.linalg.norm(theirs))
    assert np.linalg.norm(np.asarray(gpu.forward(v)) - v) > 0.1 * np.linalg.norm(v)


def test_a_matrix_that_is_not_positive_definite_is_rejected(small_blocks):
    with pytest.raises(nystrom_factors.LinAlgError):
        nystrom_factors._upper_factor(-jnp.eye(20), 0.5)
