"""Randomly pivoted Cholesky: a partial factor of K, the same in memory and on the device, that ends when it should."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers.methods.pivoted_cholesky import randomly_pivoted_cholesky


def points(n=150, d=3):
    return np.random.default_rng(0).normal(size=(n, d))


@pytest.mark.parametrize("stored", [True, False])
def test_the_factor_is_a_partial_cholesky(x64, stored):
    X = jnp.asarray(points())
    K = np.asarray(Gaussian(2.0).gram(X))
    F, left = randomly_pivoted_cholesky(Gaussian(2.0), X, 47, np.random.default_rng(1), K if stored else None)
    rest = K - np.asarray(F) @ np.asarray(F).T
    assert F.shape[1] <= 47
    assert np.allclose(np.diag(rest), left, atol=1e-10)
    assert np.linalg.eigvalsh(rest)[0] > -1e-10  # what is left is positive
    # the mean over draws is within a small factor of the best rank-k error; one draw within 20 times it
    best = np.linalg.eigvalsh(K)[: -F.shape[1]].sum()
    assert np.trace(rest) <= 20 * best + 1e-10


def test_both_methods_draw_the_same_factor(x64):
    X = jnp.asarray(points())
    K = np.asarray(Laplace(2.0).gram(X))
    a, _ = randomly_pivoted_cholesky(Laplace(2.0), X, 60, np.random.default_rng(1), K)
    b, _ = randomly_pivoted_cholesky(Laplace(2.0), X, 60, np.random.default_rng(1))
    assert a.shape == (150, 60) and np.allclose(a, b, atol=1e-10)


def test_duplicates_stop_at_the_rank_of_the_kernel(x64):
    X = jnp.asarray(np.concatenate([points(30)] * 4))
    F, left = randomly_pivoted_cholesky(Laplace(2.0), X, 100, np.random.default_rng(1))
    assert F.shape[1] == 30 and left.max() < 1e-6
