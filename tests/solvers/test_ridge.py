"""The closed forms against refits without the point or fold; the search goes downhill, and up where K is singular."""

import numpy as np
import pytest

from unlazy.solvers.ridge import coordinate_search, fit_ridge, fit_ridge_path, ridge_coefficients


def problem(n=40, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(n, 3)), rng.normal(size=(n, c))
    return np.exp(-((X[:, None] - X[None]) ** 2).sum(2) / 4), Y, rng.uniform(0.5, 3, n)


def bordered(K, Y, rho, weights, keep):
    """Coefficients (zero on the rows left out) and intercept from the bordered system, by a general solver."""
    n, keep = len(K), np.flatnonzero(keep)
    A = np.zeros((len(keep) + 1,) * 2)
    A[:-1, :-1] = K[np.ix_(keep, keep)] + np.diag(rho / weights[keep])
    A[-1, :-1] = A[:-1, -1] = 1
    found = np.linalg.solve(A, np.vstack([Y[keep], np.zeros((1, Y.shape[1]))]))
    alpha = np.zeros((n, Y.shape[1]))
    alpha[keep] = found[:-1]
    return alpha, found[-1]


@pytest.mark.parametrize("weighted", [False, True])
def test_every_point_left_out(weighted):
    K, Y, w = problem()
    weights = w if weighted else None
    used = w if weighted else np.ones(len(K))
    got = fit_ridge(K, Y, 1e-2, weights)
    alpha, b = bordered(K, Y, 1e-2, used, np.ones(len(K), bool))
    # condition below 1e4, float64: ten digits are left
    np.testing.assert_allclose(got.alpha, alpha, atol=1e-9)
    np.testing.assert_allclose(got.intercept, b, atol=1e-9)
    for i in range(0, len(K), 7):
        a, b = bordered(K, Y, 1e-2, used, np.arange(len(K)) != i)
        np.testing.assert_allclose(got.held_out[i], K[i] @ a + b, atol=1e-8)
    light, b = ridge_coefficients(K, Y, 1e-2, weights)
    np.testing.assert_allclose(light, got.alpha, atol=1e-9)
    np.testing.assert_allclose(b, got.intercept, atol=1e-9)


def test_evaluation_on_the_last_points():
    K, Y, w = problem()
    few, every = fit_ridge(K, Y, 1e-2, w, last=13), fit_ridge(K, Y, 1e-2, w)
    np.testing.assert_allclose(few.held_out, every.held_out[-13:], atol=1e-9)
    np.testing.assert_allclose(few.alpha, every.alpha, atol=1e-12)


def test_error_is_relative_and_free_of_shift_and_scale():
    K, Y, _ = problem()
    first, second = fit_ridge(K, Y, 1.0), fit_ridge(K, 7 + 1e3 * Y, 1.0)
    assert second.error == pytest.approx(first.error, rel=1e-9)
    np.testing.assert_allclose(second.held_out, 7 + 1e3 * first.held_out, rtol=1e-9)
    assert fit_ridge(K, np.ones((40, 1)), 1.0).error == 0


def test_a_matrix_that_is_not_positive_is_reported():
    K = np.ones((30, 30)) - 1e-3 * np.eye(30)
    assert fit_ridge(K, np.zeros((30, 1)), 1e-9) is None
    with pytest.raises(ValueError, match="larger ridge"):
        ridge_coefficients(K, np.zeros((30, 1)), 1e-9)


def test_factor_and_spectrum_agree():
    """One ridge by Cholesky, the same among all by eigenvectors: condition below 1e4, twelve digits are left."""
    K, Y, w = problem(c=1)
    chosen = fit_ridge_path(K, Y, w, None)
    same = fit_ridge(K, Y, chosen.ridge / np.mean(np.diag(K)), w)
    assert same.ridge == pytest.approx(chosen.ridge, rel=1e-12)
    for name in ("alpha", "intercept", "held_out", "error"):  # one output: both errors are the same
        np.testing.assert_allclose(getattr(same, name), getattr(chosen, name), rtol=1e-10, atol=1e-12)


def test_search_raises_the_ridge():
    (_, rho), value = coordinate_search(lambda h, r: np.inf if r < 1e-2 else r, (1.0, 1e-6), bandwidth=False)
    assert rho >= 1e-2 and value == rho


def test_descent_finds_a_minimum_and_stays_where_it_may_not_move():
    def bowl(h, rho):
        return 1 + (np.log2(h) - 3) ** 2 + (np.log10(rho) + 5) ** 2

    (h, rho), value = coordinate_search(bowl, (1.0, 1e-3))
    # the last steps are factors √2 and √10: half of one away at most, each way
    assert abs(np.log2(h) - 3) <= 0.25 and abs(np.log10(rho) + 5) <= 0.25 and value <= 1.13
    assert coordinate_search(bowl, (1.0, 1e-3), bandwidth=False)[0][0] == 1.0
    assert coordinate_search(bowl, (1.0, 1e-3), ridge=False)[0][1] == 1e-3
