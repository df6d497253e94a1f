"""Least nuclear norm: certificates that another program confirms, exact recovery, padding, misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.solvers.convex.nuclear_norm import minimum_frobenius_norm, minimum_nuclear_norm


def problem(n=24, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, d)), rng.normal(size=d)
    return jnp.asarray(X), jnp.asarray((X @ w) ** 2), np.outer(w, w)


def objective(M, X, y, mu):
    misfit = np.einsum("ni,ij,nj->n", X, M, X) - y
    return np.abs(np.linalg.eigvalsh(M)).sum() + misfit @ misfit / (2 * mu)


def proximal_gradient(X, y, mu, steps):
    """The textbook method in NumPy: gradient step, then shrink the eigenvalues; accelerated."""
    G = np.square(X @ X.T)
    eta = mu / np.linalg.eigvalsh(G)[-1]
    M = P = np.zeros((X.shape[1],) * 2)
    t = 1.0
    for _ in range(steps):
        e, V = np.linalg.eigh(P - eta / mu * (X.T * (np.einsum("ni,ij,nj->n", X, P, X) - y)) @ X)
        new = (V * (np.sign(e) * np.maximum(np.abs(e) - eta, 0))) @ V.T
        s = (1 + np.sqrt(1 + 4 * t * t)) / 2
        M, P, t = new, new + (t - 1) / s * (new - M), s
    return M


@pytest.mark.slow
@pytest.mark.parametrize("mu", [1.0, 30.0])
def test_no_other_method_finds_a_better_objective(x64, mu):
    """gap ≤ 1e-6 says: at most 1e-6 of the objective above the optimum, so above any matrix at all."""
    X, y, _ = problem()
    y = y + jax.random.normal(jax.random.key(1), y.shape)
    fit = minimum_nuclear_norm(X, y, misfit_weight=mu)
    assert fit.converged and fit.gap <= 1e-6
    mine = objective(np.asarray(fit.M), np.asarray(X), np.asarray(y), mu)
    np.testing.assert_allclose(fit.objective, mine, rtol=1e-12)
    other = objective(proximal_gradient(np.asarray(X), np.asarray(y), mu, 3000), np.asarray(X), np.asarray(y), mu)
    assert mine <= other * (1 + 1e-6)
    assert abs(mine / other - 1) < 1e-5  # 3,000 accelerated steps are themselves that close


@pytest.mark.slow
def test_interpolation_finds_the_rank_one_matrix_and_certifies_it(x64):
    """n = 5d points: the planted matrix is the minimizer; a gap of 1e-6 and strong convexity near it leave √1e-6."""
    X, y, M = problem(n=30, d=6)
    fit = minimum_nuclear_norm(X, y)
    assert fit.gap <= 1e-6 and fit.misfit < 1e-12
    np.testing.assert_allclose(fit.M, M, atol=1e-3 * np.abs(M).max())


@pytest.mark.slow
def test_padding_changes_nothing(x64):
    X, y, _ = problem(n=20)
    rows = jnp.arange(32) < 20
    padded = jnp.where(rows[:, None], jnp.pad(X, ((0, 12), (0, 0))), 7.0)
    labels = jnp.where(rows, jnp.pad(y, (0, 12)), -3.0)
    for method in (lambda *a, **k: minimum_nuclear_norm(*a, **k).M, minimum_frobenius_norm):
        whole, cut = method(padded, labels, weights=rows.astype(float)), method(X, y)
        # both stop at the first certificate below 1e-6: differences are rounding, amplified by the steps
        np.testing.assert_allclose(whole, cut, atol=1e-7 * float(jnp.abs(cut).max()))


@pytest.mark.parametrize("n", [12, 24])
def test_least_frobenius_norm_is_the_pseudo_inverse(x64, n):
    """d(d+1)/2 = 21 unknowns. The lift of 1e-13 costs that times the condition of K, at most 1e6 here."""
    X, y, _ = problem(n=n)
    i, j = np.triu_indices(6)
    scale = np.where(i == j, 1, np.sqrt(2))
    A = np.asarray(X)[:, i] * np.asarray(X)[:, j] * scale
    expected = np.zeros((6, 6))
    expected[i, j] = expected[j, i] = np.linalg.lstsq(A, np.asarray(y), rcond=None)[0] / scale
    np.testing.assert_allclose(minimum_frobenius_norm(X, y), expected, atol=1e-6 * np.abs(expected).max())


def test_misuse_raises(x64):
    X, y, _ = problem()
    with pytest.raises(ValueError, match="misfit_weight must be zero"):
        minimum_nuclear_norm(X, y, misfit_weight=-1.0)
