"""Where the host does not compute, vectors stay on the device in float64: the same answers, and nothing crosses."""

import jax
import numpy as np
import pytest

from unlazy.core import devices
from unlazy.kernels.radial import Laplace
from unlazy.solvers.methods import conjugate_gradients, eigenpro, preconditioned_cg
from unlazy.solvers.methods.eigenpro import EigenPro
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.methods.preconditioned_cg import PreconditionedCG
from unlazy.solvers.solve import SolveOptions, solve

N, RIDGE = 160, 0.1
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]).astype(float)


@pytest.fixture
def fake_gpu(monkeypatch):
    """A device that says it is not the host; its arrays are JAX's, wherever they lie."""
    monkeypatch.setattr(devices, "is_host", lambda: False)


@pytest.mark.slow_cases("float32-method1", "float64-method1", "float32-method0")
@pytest.mark.parametrize("method", [PreconditionedCG(rank=30), NystromCG(centers=60)])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_conjugate_gradients_keep_their_vectors_on_the_device(method, precision, request, monkeypatch):
    keywords = {"method": method, "tolerance": 1e-4, "options": SolveOptions(precision=precision)}
    here = solve(Laplace(2.0), X, Y, RIDGE, **keywords)
    request.getfixturevalue("fake_gpu")
    seen, moved = [], conjugate_gradients._update_solution
    monkeypatch.setattr(conjugate_gradients, "_update_solution", lambda *a: seen.extend(a) or moved(*a))
    there = solve(Laplace(2.0), X, Y, RIDGE, **keywords)
    assert seen and all(isinstance(a, jax.Array) and a.dtype == np.float64 for a in seen)
    assert here.converged and there.converged and abs(here.steps - there.steps) <= 1
    # both lie within the tolerance of one solution
    apart = np.linalg.norm(np.asarray(here.predict(X)) - np.asarray(there.predict(X)), axis=0)
    assert np.all(apart <= 2e-4 * np.linalg.norm(Y, axis=0))


def test_the_preconditioner_on_the_device_is_the_one_on_the_host(fake_gpu):
    """(F Fᵀ + ρ)⁻¹ r in float64: F in float64 too, so that both are off by roundings times the condition, ‖FᵀF‖/ρ."""
    F, r = RNG.normal(size=(N, 20)), RNG.normal(size=(N, 2))
    with jax.enable_x64(True):
        there = preconditioned_cg._device_preconditioner(jax.numpy.asarray(F), RIDGE)(jax.numpy.asarray(r))
    condition = np.linalg.norm(F, 2) ** 2 / RIDGE
    exact = np.linalg.solve(F @ F.T + RIDGE * np.eye(N), r)
    bound = 10 * N * 2.0**-53 * condition * np.linalg.norm(r) / RIDGE
    assert np.linalg.norm(np.asarray(there) - exact) <= bound
    assert np.linalg.norm(preconditioned_cg._host_preconditioner(F, RIDGE)(r) - exact) <= bound


@pytest.mark.slow_cases("60000")
@pytest.mark.parametrize("memory", ["1GiB", 60_000])
def test_an_epoch_of_eigenpro_is_the_formula(memory):
    """Two epochs against NumPy: α_b += η r, α_s -= η Q A_sb r, batches in the same order; K stored, or by blocks."""
    from unlazy.solvers.callbacks import SolverCallback
    from unlazy.solvers.problem import make_problem

    with jax.enable_x64(True):
        problem = make_problem(Laplace(2.0), X, Y, RIDGE, memory)
        problem = type(problem)(**{**problem.__dict__, "dtype": np.dtype("float64")})
        fit = EigenPro(sample=50, batch=40, rank=5).solve(problem, SolverCallback(1e-12, 2))
        rng = problem.rng()
        order = rng.permutation(N)
        points = jax.numpy.asarray(X[order], float)
        pre = eigenpro.EigenProPreconditioner(problem, points[:50], 5)
        eta = eigenpro.MARGIN / pre.batch_eigenvalue(problem, points, 40, rng)
    A = np.asarray(X[order], float)
    A = np.exp(-np.linalg.norm(A[:, None] - A, axis=2) / 2.0) + RIDGE * np.eye(N)
    Q = (pre.vectors * pre.weights) @ pre.vectors.T
    alpha, y = np.zeros_like(Y), Y[order]
    for _ in range(2):
        for start in rng.permutation(np.arange(0, N, 40)):
            b = slice(start, start + 40)
            r = y[b] - A[b] @ alpha
            alpha[b] += eta * r
            alpha[:50] -= eta * Q @ A[:50, b] @ r
    # 8 batches, each a sum of N numbers of the size of α
    np.testing.assert_allclose(fit.coefficients[order], alpha, rtol=0, atol=1e-11 * np.abs(alpha).max())
