"""The fits that experiments share: tiles, kernels, the linearized network, risk outside jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.dataset import Data
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.lab.experiments import _baselines as fits
from unlazy.tasks.index_models import quadratic_plus

D = 5


@pytest.fixture
def sample(x64):
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((64, D)), rng.standard_normal((200, D))
    weights = jnp.asarray(np.arange(64) < 40, jnp.float64)
    train = Data(jnp.asarray(X), jnp.asarray(X[:, 0] ** 2), weights)
    return fits.BaselineSample(train, 40, Data(jnp.asarray(V), jnp.asarray(V[:, 0] ** 2)))


def test_tiles_equal_the_gram_matrix(x64, monkeypatch):
    monkeypatch.setattr(fits, "TILE", 16)
    rng = np.random.default_rng(0)
    X, Z, kernel = rng.standard_normal((37, D)), rng.standard_normal((20, D)), NTK(fits.WITH_BIAS)
    np.testing.assert_allclose(fits.tiled_gram(kernel, X, Z), kernel.gram(jnp.asarray(X), jnp.asarray(Z)), rtol=1e-12)


def test_kernels_see_a_bias_coordinate(x64):
    """NTK(x/√d, 1) of one hidden layer without biases equals the kernel used here at x."""
    from unlazy.theory.infinite_width.architecture import MLP

    X = jnp.asarray(np.random.default_rng(1).standard_normal((6, D)))
    lifted = jnp.concatenate([X / jnp.sqrt(D), jnp.ones((6, 1))], 1)
    plain = NTK(MLP(1, "relu", sigma_w=(1.0, 2**0.5), scale_input=False))
    np.testing.assert_allclose(NTK(fits.WITH_BIAS).gram(X), plain.gram(lifted), rtol=1e-10)


def test_kernel_ridge_is_the_best_solve(sample):
    def gram(X, Z):
        return np.exp(-0.5 * ((X[:, None] - Z[None]) ** 2).sum(-1) / D)

    X, y = (np.asarray(part) for part in sample.exact)
    V, v = np.asarray(sample.validation.X), np.asarray(sample.validation.y)
    candidates = [gram(V, X) @ np.linalg.solve(gram(X, X) + r * np.eye(40), y) for r in fits.KERNEL_RIDGES]
    best = min(candidates, key=lambda f: np.mean((f - v) ** 2))
    # Condition at most 40/1e-6: solutions good to 4e7 × 1e-16 × size.
    np.testing.assert_allclose(fits.kernel_ridge(gram, sample)(V), best, atol=1e-7)


def test_linearized_network_is_ridge_on_the_tangent_features(sample, monkeypatch):
    """Against ridge regression on explicit gradients of a symmetric network of 2·width neurons."""
    width, seen = 8, {}
    monkeypatch.setattr(fits, "kernel_ridge", lambda gram, s: seen.setdefault("gram", gram))
    fits.linearized_ridge(jax.random.key(0), sample, width=width)
    f = fits.random_features(jax.random.key(0), width, D)

    def network(theta, x):  # NTK parametrization; heads ±1 in mirrored pairs share gradients up to sign
        a, W, b = theta
        return a @ jax.nn.relu(W @ x / jnp.sqrt(D) + b) / jnp.sqrt(width)

    theta = (jnp.ones(width), f.W * jnp.sqrt(D), f.b)
    X = sample.train.X[:7]
    rows = jax.vmap(lambda x: jnp.concatenate([g.ravel() for g in jax.grad(network)(theta, x)]))(X)
    np.testing.assert_allclose(seen["gram"](np.asarray(X), np.asarray(X)), rows @ rows.T, rtol=1e-6)  # float32 counts


def test_risk_outside_jit_is_the_tasks_own(x64):
    task = quadratic_plus(D, 4)
    expected = task.population_risk(lambda X: X[:, 1], jax.random.key(0))
    mean, error = fits.risk(task, lambda X: jnp.asarray(np.asarray(X)[:, 1]), jax.random.key(0))
    np.testing.assert_allclose([mean, error], [expected.mean, expected.error], rtol=1e-9)


def test_samples_are_nested_and_validation_is_fresh(x64):
    task = quadratic_plus(D, 4)
    small, large = (fits.draw(task, jax.random.key(0), n) for n in (10, 100))
    np.testing.assert_array_equal(small.exact[0], large.exact[0][:10])
    assert small.validation.n == fits.VALIDATION and float(small.train.weights.sum()) == 10
    assert not np.any(np.isclose(small.validation.X[:10], small.exact[0]).all(1))


def test_interval_of_a_median_contains_it_and_shrinks():
    values = np.random.default_rng(0).normal(size=400)
    middle, low, high = fits.median_with_interval(values)
    few = fits.median_with_interval(values[:20])
    assert low <= middle <= high and high - low < few[2] - few[1]
