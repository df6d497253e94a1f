"""Every solver finds the solution of a float64 Cholesky within the tolerance it was asked for, and says honestly
whether it did."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.solvers.method_selection import METHODS, NystromCG
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.infinite_width.architecture import MLP

KERNELS = {
    "gaussian": Gaussian(2.0),
    "laplace": Laplace(2.0),
    "matern": Matern(2.0, 1.5),
    "rational": RationalQuadratic(2.0, 1.0),
    "ntk3": NTK(MLP(3, sigma_b=0.1)),
}
N, D = 120, 5
RIDGE = 0.5


@functools.cache
def problem(outputs=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = np.sin(X[:, :2]) * [1.0, 30.0] + 0.1 * rng.normal(size=(N, 2))  # outputs of very different size
    return X, (y if outputs > 1 else y[:, 0])


@functools.cache
def oracle(name):
    """K in float64 and the coefficients by SciPy's Cholesky."""
    X, y = problem()
    with jax.enable_x64(True):
        K = np.asarray(KERNELS[name].gram(jnp.asarray(X), accurate=True))
    return K, cho_solve(cho_factor(K + RIDGE * np.eye(N)), y)


def run(name, method, y, X=None, **keywords):
    if method == "nystrom_cg":
        method = NystromCG(centers=N)  # with all points as centers its problem is the full one
    return solve(KERNELS[name], problem()[0] if X is None else X, y, RIDGE, method=method, **keywords)


@pytest.mark.slow_cases(
    "gaussian-direct",
    "gaussian-richardson",
    "ntk3-askotch",
    "ntk3-direct",
    "ntk3-eigenpro",
    "ntk3-nystrom_cg",
    "ntk3-preconditioned_cg",
    "ntk3-richardson",
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in ("gaussian", "ntk3") else pytest.mark.slow) for k in KERNELS]
)
def test_every_solver_finds_the_cholesky_solution(name, method):
    X, y = problem()
    K, alpha = oracle(name)
    tolerance = 1e-5
    solution = run(name, method, y, tolerance=tolerance)
    assert solution.converged and solution.residual <= tolerance
    assert solution.method == method and solution.stopped in ("tolerance", "exact")
    error = np.asarray(solution.predict(X)) - K @ alpha
    # ‖f - f°‖ = ‖K(K+ρ)⁻¹ r‖ ≤ ‖r‖ ≤ tolerance·‖y‖ for each output; the rest is rounding in float64
    assert np.all(np.linalg.norm(error, axis=0) <= (tolerance + 1e-10) * np.linalg.norm(y, axis=0))
    assert solution.coefficients.shape == (N, 2) and solution.steps >= 1
    assert solution.bytes > 0 and solution.seconds > 0


@pytest.mark.slow_cases("direct", "preconditioned_cg", "richardson")
@pytest.mark.parametrize("method", METHODS)
def test_one_output_keeps_its_shape_and_equals_the_column(method):
    X, y = problem(1)
    K, alpha = oracle("laplace")
    solution = run("laplace", method, y, tolerance=1e-5)
    assert solution.coefficients.shape == (N,)
    error = np.asarray(solution.predict(X[:7])) - (K @ alpha)[:7, 0]
    assert np.linalg.norm(error) <= 1.01e-5 * np.linalg.norm(y)


@pytest.mark.slow_cases("direct", "richardson")
@pytest.mark.parametrize("method", METHODS)
def test_float32_reports_its_accuracy(method):
    """In float32 a solver either reaches the tolerance against the float64 solution, or says that it did not."""
    X, y = problem()
    K, alpha = oracle("gaussian")
    solution = run(
        "gaussian", method, y, X=X.astype(np.float32), tolerance=1e-3, options=SolveOptions(precision="float32")
    )
    assert solution.coefficients.dtype == jnp.float32
    error = np.linalg.norm(np.asarray(solution.predict(X)) - K @ alpha, axis=0) / np.linalg.norm(y, axis=0)
    # rounding of the product: 2^-24·‖K‖·‖α‖/‖y‖ ≤ 2^-24·n/ridge = 1.4e-5
    assert solution.converged and np.all(error <= 1e-3 + 1.5e-5)


@pytest.mark.slow_cases("nystrom_cg", "preconditioned_cg")
@pytest.mark.parametrize("method", [m for m in METHODS if m != "direct"])
def test_a_run_cut_short_is_not_converged(method):
    _, y = problem()
    short = NystromCG(centers=40) if method == "nystrom_cg" else method
    with pytest.warns(UnlazyWarning, match="max_steps"):
        solution = run("ntk3", short, y, tolerance=1e-8, options=SolveOptions(max_steps=1))
    assert not solution.converged and solution.stopped == "steps" and solution.residual > 1e-8
    assert "NOT converged" in str(solution)


def test_nystrom_solves_its_own_problem_on_fewer_centers():
    X, y = problem()
    centers = X[::3]
    solution = run("gaussian", NystromCG(centers=centers), y, tolerance=1e-6)
    with jax.enable_x64(True):
        K = np.asarray(KERNELS["gaussian"].gram(jnp.asarray(X), jnp.asarray(centers)))
        K_mm = np.asarray(KERNELS["gaussian"].gram(jnp.asarray(centers)))
    alpha = np.linalg.solve(K.T @ K + RIDGE * K_mm, K.T @ y)
    error = np.linalg.norm(np.asarray(solution.predict(X)) - K @ alpha, axis=0)
    assert solution.converged and np.all(error <= 1.01e-6 * np.linalg.norm(y, axis=0))
    assert solution.coefficients.shape == (40, 2)


def test_the_residual_is_the_true_one():
    """What `residual` says equals ‖y - (K + ρ)α‖/‖y‖ formed here."""
    _, y = problem()
    K, _ = oracle("matern")
    for method in ("preconditioned_cg", "richardson", "eigenpro"):
        solution = run("matern", method, y, tolerance=1e-3)
        r = y - (K + RIDGE * np.eye(N)) @ np.asarray(solution.coefficients)
        true = np.max(np.linalg.norm(r, axis=0) / np.linalg.norm(y, axis=0))
        assert solution.residual == pytest.approx(true, rel=1e-3)
