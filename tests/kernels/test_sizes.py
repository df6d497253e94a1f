"""Gram matrices of every size: whole below a million entries, by tiles above; both against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from unlazy.kernels.radial import Gaussian


@pytest.mark.slow_cases("1000", "1300")
@pytest.mark.parametrize("n", [3, 700, 1000, 1024, 1025, 1300])
def test_gram_of_any_size(n):
    X = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
    K = np.asarray(jax.block_until_ready(Gaussian(2.0).gram(jnp.asarray(X))))
    exact = np.exp(-cdist(X.astype(np.float64), X.astype(np.float64), "sqeuclidean") / 8)
    # |x|² stays below 40: rounding of three such terms in float32, over 2·bandwidth², changes k ≤ 1 by as much
    assert np.abs(K - exact).max() < 3 * 40 * 5 * np.finfo(np.float32).eps / 8
    assert np.array_equal(K, K.T) and np.all(np.diag(K) == 1)
