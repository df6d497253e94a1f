"""The robust center of a set of points, and the digits that kernels of differences keep by subtracting it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.engines import numpy_engine
from unlazy.theory.numerics.geometry import MEDIAN_ROWS, robust_center


@pytest.mark.slow_cases("7", "2")
@pytest.mark.parametrize("n", [0, 1, 2, 7, MEDIAN_ROWS, 100])
def test_robust_center_is_the_median_of_some_rows(n):
    X = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
    X[:, 1] = 2.0  # all equal
    found = robust_center(X)
    np.testing.assert_array_equal(found, np.asarray(robust_center(jnp.asarray(X))))
    rows = X[np.linspace(0, n - 1, min(n, MEDIAN_ROWS)).astype(int)]
    if n:
        np.testing.assert_array_equal(found, np.quantile(rows, 0.5, axis=0, method="inverted_cdf"))


@pytest.mark.parametrize("kernel", [Gaussian(2.0), Laplace(2.0), ProductLaplace(2.0)], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("share", ["one row", "a fifth"])
def test_far_away_rows_do_not_lose_accuracy_elsewhere(kernel, share):
    """9999 for a missing value in one row or in many: entries of the other rows keep their accuracy."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    X[30:] = X[:30] + 0.1
    far = np.arange(60) == 7 if share == "one row" else rng.uniform(size=60) < 0.2
    X[far] = 9999.0
    with jax.enable_x64(True):
        want = np.asarray(kernel.gram(jnp.asarray(X, jnp.float64), accurate=True))[np.ix_(~far, ~far)]
    found = np.asarray(kernel.gram(jnp.asarray(X)))[np.ix_(~far, ~far)]
    # ½|x - z|² is off by some ten units of |x|², up to 20 here, which a root at 0.2 (points 0.1 apart) shows fivefold
    np.testing.assert_allclose(found, want, atol=10 * 2.0**-24 * 20 * 5)
    if kernel.formula is not None:
        left, right = numpy_engine.embed_sides(kernel, X, X)
        assert np.abs(right[~far]).max() < 10 and np.array_equal(left, right)


def test_the_center_has_no_derivative():
    X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)), jnp.float32)
    slope = jax.grad(lambda X: jnp.sum(Gaussian(1.0).gram(X, X[:3])))(X)
    moved = jax.grad(lambda X: jnp.sum(Gaussian(1.0).gram(X + 3.0, X[:3] + 3.0)))(X)
    np.testing.assert_allclose(slope, moved, atol=64 * 2.0**-24)
