"""Closed forms against refits without the point by a general solver, for NumPy's arrays and for JAX's."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.dynamics.leave_one_out import bordered_diagonal, gcv_score, leave_one_out_residual, with_intercept


def problem(n=12, c=2):
    rng = np.random.default_rng(0)
    X, Y, w = rng.normal(size=(n, 3)), rng.normal(size=(n, c)), rng.uniform(0.5, 3, n)
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(2) / 4)
    return K, Y, 0.1 / w


def refit(K, Y, ridge, keep, intercept):
    """α and b (zero without one) from the rows that are kept."""
    m = int(keep.sum())
    A = np.zeros((m + intercept,) * 2)
    A[:m, :m] = K[np.ix_(keep, keep)] + np.diag(ridge[keep])
    A[m:, :m], A[:m, m:] = 1, 1
    found = np.linalg.solve(A, np.vstack([Y[keep], np.zeros((intercept, Y.shape[1]))]))
    return found[:m], found[m:].sum(0)


def both(solved, ones, diagonal):
    alpha, b = with_intercept(solved, ones)
    return alpha, b, leave_one_out_residual(alpha, bordered_diagonal(diagonal, ones, ones.sum())[:, None])


def test_bordered_and_plain_are_refits(x64):
    """A has condition below 1e3 here, and so has every A without a row: twelve digits are left."""
    K, Y, ridge = problem()
    inverse = np.linalg.inv(K + np.diag(ridge))
    parts = inverse @ Y, inverse.sum(1), np.diag(inverse).copy()
    host, device = both(*parts), jax.jit(both)(*map(jnp.asarray, parts))
    plain = leave_one_out_residual(parts[0], parts[2][:, None])
    assert all(isinstance(a, np.ndarray) for a in (*host, plain))
    for a, b in zip(host, device):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    every = np.ones(len(K), bool)
    for found, expected in zip(host, refit(K, Y, ridge, every, 1)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    for i in range(len(K)):
        keep = np.arange(len(K)) != i
        for missed, intercept in ((host[2], 1), (plain, 0)):
            alpha, b = refit(K, Y, ridge, keep, intercept)
            np.testing.assert_allclose(missed[i], Y[i] - K[i, keep] @ alpha - b, rtol=0, atol=1e-11)


def test_zero_diagonal_gives_zero_residual():
    """A padded row has no entry of the inverse: zero, and no warning of a division."""
    assert leave_one_out_residual(np.zeros(2), np.array([0.0, 2.0])).tolist() == [0, 0]
    assert gcv_score(8.0, 4.0, 2.0) == 1.0
