"""What a solution says of its error is what its predictions are off by; where float32 cannot, float64 does; a small
budget does not change the problem."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers import method_selection
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.solve import SolveOptions, solve

N, D = 300, 5


def data(n=N, noise=0.1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D))
    return X, np.sin(X[:, 0]) + noise * rng.normal(size=n)


def gram(A, B, bandwidth, power=2):
    squares = np.maximum(np.sum(A * A, 1)[:, None] + np.sum(B * B, 1) - 2 * A @ B.T, 0)
    return np.exp(-squares / (2 * bandwidth**2)) if power == 2 else np.exp(-np.sqrt(squares) / bandwidth)


def true_error(solution, X, y, bandwidth, ridge):
    K = gram(X, X, bandwidth)
    fitted = K @ np.linalg.solve(K + ridge * np.eye(len(X)), y)
    return np.linalg.norm(np.asarray(solution.predict(X), float) - fitted) / np.linalg.norm(y)


@pytest.fixture
def small(monkeypatch):
    """Every problem counts as large, so that iterations in float32 are what is chosen."""
    monkeypatch.setattr(method_selection, "FLOAT64_DIRECT_MAX_N", 10)


@pytest.mark.slow_cases("3.0-0.0003", "3.0-0.1", "10.0-7.5e-05")
@pytest.mark.parametrize("bandwidth, ridge", [(3.0, 0.1), (3.0, 3e-4), (10.0, 1e-3), (10.0, 7.5e-5)])
def test_no_jump_where_small_problems_end(small, monkeypatch, bandwidth, ridge):
    """The last two are the first release's cliff, direct at n = 4,000 and worse than zero at 4,001: its bandwidth and
    ridge, and its λ_max/ridge."""
    X, y = data()
    for way in ("a factorization", "iteration"):  # of float64
        if way == "iteration":
            monkeypatch.setattr(method_selection, "CPU_DIRECT_MAX_N", 10)
        solution = solve(Gaussian(bandwidth), X, y, ridge)
        # K has condition λ_max/ridge ≤ 300/7.5e-5; the oracle is off by 1e-16 of that
        error = true_error(solution, X, y, bandwidth, ridge)
        assert solution.converged and error <= min(1e-3, 1.1 * solution.residual + 1e-9)


SLOW = [pytest.param(method, marks=pytest.mark.slow) for method in ("direct", "richardson", "eigenpro")]


@pytest.mark.slow_cases("askotch")
@pytest.mark.parametrize("method", ["preconditioned_cg", "nystrom_cg", "askotch", *SLOW])
def test_the_error_of_a_float32_run_is_not_understated(small, method):
    """Ridges where rounding matters: 2^-24·λ_max = 1.8e-5 of them. The estimate is from N rows, all of them here, so
    what is left is that e and r are added as if they were independent: at most √2."""
    X, y = data()
    options = SolveOptions(precision="float32", max_steps=300 if method == "richardson" else None)
    used = NystromCG(centers=N) if method == "nystrom_cg" else method
    for ridge in (3e-2, 1e-3, 1e-4):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnlazyWarning)
                solution = solve(Gaussian(6.0), X, y, ridge, method=used, options=options)
        except ValueError as refused:
            assert "worse than predicting zero" in str(refused)
            continue
        error = true_error(solution, X, y, 6.0, solution.ridge)
        assert error <= np.sqrt(2) * solution.residual + 1e-9, (method, ridge, error, solution.residual)
        assert not (solution.converged and error > 1.5e-3)


def test_float32_falls_back_to_float64(small, monkeypatch, tmp_path):
    X, y = data()
    monkeypatch.setattr(method_selection, "FLOAT32_RIDGE_ROUNDINGS", 0)  # no warning beforehand
    monkeypatch.setattr(method_selection, "CPU_DIRECT_MAX_N", 10)
    kept = Checkpoint(tmp_path / "run", every=0)
    solution = solve(Gaussian(10.0), X, y, 1e-4, options=SolveOptions(checkpoint=kept))
    assert solution.converged and solution.coefficients.dtype == np.float64
    assert any("float64, since preconditioned_cg in float32" in note for note in solution.notes)
    assert true_error(solution, X, y, 10.0, 1e-4) <= 1e-3
    asked = "float32"
    try:
        with pytest.warns(UnlazyWarning, match="float64"):
            assert not solve(Gaussian(10.0), X, y, 1e-4, options=SolveOptions(precision=asked)).converged
    except ValueError as refused:
        assert "worse than predicting zero" in str(refused)


@pytest.mark.slow
def test_a_small_budget_solves_the_same_problem(small, monkeypatch):
    X, y = data()
    budget = 250_000  # K takes 360,000 bytes in float32
    solution = solve(Laplace(3.0), X, y, 1e-2, options=SolveOptions(memory=budget))
    K = gram(X, X, 3.0, 1)
    fitted = K @ np.linalg.solve(K + 1e-2 * np.eye(N), y)
    error = np.linalg.norm(np.asarray(solution.predict(X), float) - fitted) / np.linalg.norm(y)
    assert solution.converged and error <= 1e-3 and "in every pass" in solution.why
    assert solution.centers.shape[0] == N
    with pytest.raises(ValueError, match="allow that with memory="):
        solve(Laplace(3.0), X, y, 1e-2, options=SolveOptions(memory=10_000))
    # where there are too many points, other centers are announced with their distance from what was asked
    for limit in ("CPU_RECOMPUTE_MAX_N", "GPU_RECOMPUTE_MAX_N"):
        monkeypatch.setattr(method_selection, limit, 10)
    with pytest.warns(UnlazyWarning, match="number of centers is the limit"):
        few = solve(Laplace(3.0), X, y, 1e-2, options=SolveOptions(memory=60_000))
    error = np.linalg.norm(np.asarray(few.predict(X), float) - fitted) / np.linalg.norm(y)
    assert not few.converged and few.stopped == "centers" and "full regression" in few.notes[-1]
    assert error / 3 <= few.residual and few.centers.shape[0] < N


def test_changing_the_metric_or_a_row_changes_the_problem(tmp_path):
    """Arrays that print alike: the middle of a matrix is left out of its text."""
    from unlazy.kernels.metric import with_metric

    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(150, 40)), rng.normal(size=150)
    L, other = jnp.eye(40), jnp.eye(40).at[20, 20].set(2.0)
    keywords = {"method": "richardson", "options": SolveOptions(max_steps=2, checkpoint=tmp_path / "run")}
    with pytest.warns(UnlazyWarning):
        solve(with_metric(Gaussian(5.0), L), X, y, 0.5, **keywords)
    with pytest.raises(ValueError, match="different kernel"):
        solve(with_metric(Gaussian(5.0), other), X, y, 0.5, **keywords)
    X[77, 3] += 1e-9
    with pytest.raises(ValueError, match="different data"):
        solve(with_metric(Gaussian(5.0), L), X, y, 0.5, **keywords)
