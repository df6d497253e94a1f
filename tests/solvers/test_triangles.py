"""Blocked triangular work against NumPy in float64, and the GPU's change of variables against the CPU's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unlazy.core.precision import rounding
from unlazy.kernels.radial import Gaussian
from unlazy.solvers import nystrom_cg, triangles
from unlazy.solvers.problem import make


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(triangles, "BLOCK", 16)
    jax.clear_caches()  # the block is read while tracing
    yield
    jax.clear_caches()


def _positive(M: int) -> np.ndarray:
    A = np.random.default_rng(0).normal(size=(M, 2 * M))
    return A @ A.T / (2 * M)


@pytest.mark.parametrize("M", [7, 32, 45])
def test_factor_and_solves(small_blocks, M):
    K = _positive(M)
    v = np.random.default_rng(1).normal(size=(M, 2))
    with jax.enable_x64(True):
        lower = jnp.asarray(np.tril(K))  # only the lower triangle may be read
        factor = triangles.upper_factor(lower, jnp.asarray(0.1))
        U = np.asarray(factor.U)
        solved, transposed = factor.solve(jnp.asarray(v)), factor.solve_transposed(jnp.asarray(v))
        outer = np.asarray(triangles.lower_of_outer(factor.U))
    expected = np.linalg.cholesky(K + 0.1 * np.eye(M)).T
    # backward errors of M roundings, amplified by the condition of U (squared for the factor itself): below 50 here
    tolerance = 50**2 * M * rounding(np.float64)
    np.testing.assert_allclose(U, expected, atol=tolerance)
    np.testing.assert_allclose(np.asarray(solved), np.linalg.solve(expected, v), atol=tolerance)
    np.testing.assert_allclose(np.asarray(transposed), np.linalg.solve(expected.T, v), atol=tolerance)
    np.testing.assert_allclose(np.tril(outer), np.tril(expected @ expected.T), atol=tolerance)


def test_both_changes_of_variables_are_one(small_blocks):
    """B and Bᵀ of the GPU's way, run here in float64 sums of a float32 kernel's entries, against BLAS."""
    rng = np.random.default_rng(2)
    X, Z = rng.normal(size=(60, 3)), rng.normal(size=(40, 3))
    problem = make(Gaussian(1.0), X, rng.normal(size=60), 5.0)
    v = rng.normal(size=(40, 1))
    cpu = nystrom_cg.ChangeOnCPU(problem, jnp.asarray(Z, jnp.float32))
    with jax.enable_x64(True):
        gpu = nystrom_cg.ChangeOnGPU(problem, jnp.asarray(Z, jnp.float64))
        ours = [gpu.forward(v), gpu.backward(v), gpu.K_times(v)]
    # the entries differ by float32 rounding of K_MM (one unit of its norm); T⁻¹ amplifies it by the condition number
    condition = np.linalg.cond(np.asarray(gpu.T.U)) * np.linalg.cond(np.asarray(gpu.A.U))
    for mine, theirs in zip(ours, [cpu.forward(v), cpu.backward(v), cpu.K_times(v)], strict=True):
        scale = np.linalg.norm(theirs) * condition
        np.testing.assert_allclose(mine, theirs, atol=40 * rounding(np.float32) * scale)
    assert np.linalg.norm(ours[0] - v) > 0.1 * np.linalg.norm(v)


def test_a_matrix_that_is_not_positive_is_refused(small_blocks):
    with pytest.raises(nystrom_cg.LinAlgError):
        nystrom_cg._upper_factor(-jnp.eye(20), 0.5)
