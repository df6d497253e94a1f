"""solvers.gaussian_process.posterior against NumPy, SciPy's multivariate normal, finite differences and sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.stats import multivariate_normal

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.base import Kernel
from unlazy.solvers.gaussian_process import posterior as gp

N, M, D = 8, 5, 2


class Exponential(Kernel):
    """amplitude · exp(-|x - z|/scale)."""

    scale: float | Float[Array, ""] = 1.0
    amplitude: float | Float[Array, ""] = 1.0

    def gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        other = X if Z is None else Z
        squares = jnp.sum(jnp.square(X[:, None] - other[None]), -1)
        distance = jnp.sqrt(jnp.where(squares == 0, 1, squares))
        return self.amplitude * jnp.exp(-jnp.where(squares == 0, 0, distance) / self.scale)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.diagonal(self.gram(X))


@pytest.fixture
def data(x64):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(s)) for s in ((N, D), (N, 2), (M, D)))


def test_posterior_is_conditioning_the_joint_normal(data):
    X, y, Z = data
    kernel, noise = Exponential(), np.array([0.0, 0.3])
    got = gp.posterior(kernel, X, y, Z, noise)
    K, K_zx, K_zz = (np.asarray(k) for k in (kernel.gram(X), kernel.gram(Z, X), kernel.gram(Z)))
    for k, variance in enumerate(noise):
        P = np.linalg.inv(K + variance * np.eye(N))
        np.testing.assert_allclose(got.mean[k], K_zx @ P @ y, atol=1e-12)
        np.testing.assert_allclose(got.covariance[k], K_zz - K_zx @ P @ K_zx.T, atol=1e-12)
    np.testing.assert_allclose(got.std[1], np.sqrt(np.diag(got.covariance[1])))
    # trained random features reach the noiseless posterior at t = ∞, and start from the prior
    features = gp.trained_random_features(kernel, X, y, Z, [0.0, jnp.inf])
    np.testing.assert_allclose(features.covariance[1], got.covariance[0], atol=1e-12)
    np.testing.assert_allclose(features.mean[1], got.mean[0], atol=1e-12)
    np.testing.assert_allclose(features.covariance[0], gp.prior(kernel, Z).covariance, atol=1e-14)


def test_ensemble_covariance_against_trained_draws(data):
    """Each draw starts at f₀ ~ GP(0, Σ) and is trained by Runge-Kutta steps of df/dt = -Θ(f - y) [K11]."""
    X, y, Z = data
    nngp, ntk, time, draws, steps = Exponential(2.0, 0.5), Exponential(1.0), 1.5, 10000, 40
    got = gp.ensemble(nngp, ntk, X, y[:, 0], Z, time)
    rng = np.random.default_rng(2)
    both = jnp.concatenate([Z, X])
    f = rng.multivariate_normal(np.zeros(M + N), np.asarray(nngp.gram(both)), size=draws, method="cholesky").T
    T, target, h = np.asarray(ntk.gram(both, X)), np.asarray(y)[:, :1], time / steps

    def velocity(f):
        return -T @ (f[M:] - target)

    for _ in range(steps):
        a = velocity(f)
        b = velocity(f + h / 2 * a)
        c = velocity(f + h / 2 * b)
        f = f + h / 6 * (a + 2 * b + 2 * c + velocity(f + h * c))
    bias = 1e-4  # (λh)^4 λt/120 with λ ≤ 8, h = 0.04: 1e-3·0.1, and e^{-λt} kills it further
    expected = np.asarray(got.covariance)
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / draws)
    assert np.all(np.abs(np.cov(f[:M]) - expected) < 4 * error + bias)
    assert np.all(np.abs(f[:M].mean(1) - got.mean) < 4 * got.std / np.sqrt(draws) + bias)


def test_draws_have_the_right_mean_and_covariance_also_when_singular(data):
    X, y, Z = data
    Z = Z.at[1].set(Z[0])  # coincident points: Cholesky would fail
    process = gp.posterior(Exponential(), X, y, Z, 0.1)
    draws = np.asarray(process.sample(jax.random.key(0), 20000))
    assert draws.shape == (20000, M, 2)
    np.testing.assert_allclose(draws[:, 0] - process.mean[0], draws[:, 1] - process.mean[1], atol=1e-7)
    centered = draws[..., 0] - np.asarray(process.mean)[:, 0]
    expected = np.asarray(process.covariance)
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 20000)
    assert np.all(np.abs(centered.T @ centered / 20000 - expected) < 4 * error)
    assert abs(np.mean(centered[:, 0] * (draws[:, 0, 1] - process.mean[0, 1]))) < 4 * expected[0, 0] / np.sqrt(20000)
    path = gp.posterior(Exponential(), X, y, Z, jnp.array([0.1, 1.0]))
    assert path.sample(jax.random.key(0), 3).shape == (3, 2, M, 2)
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        process.sample(jax.random.key(0), 0)


def test_evidence_and_its_gradient(data):
    X, y, _ = data

    def evidence(scale, noise, y=y):
        return gp.log_marginal_likelihood(Exponential(scale), X, y, noise)

    K = np.asarray(Exponential(1.3).gram(X)) + 0.2 * np.eye(N)
    expected = multivariate_normal(np.zeros(N), K).logpdf(np.asarray(y).T).sum()
    np.testing.assert_allclose(evidence(1.3, 0.2), expected, rtol=1e-13)
    gradient = jax.grad(evidence, argnums=(0, 1, 2))(1.3, 0.2, y)
    h = 1e-5  # central differences: h² + 1e-15/h ~ 1e-10
    for k, at in enumerate([(h, 0.0), (0.0, h)]):
        difference = (evidence(1.3 + at[0], 0.2 + at[1]) - evidence(1.3 - at[0], 0.2 - at[1])) / (2 * h)
        np.testing.assert_allclose(gradient[k], difference, rtol=1e-7)
    np.testing.assert_allclose(gradient[2], -np.linalg.solve(K, np.asarray(y)), rtol=1e-11)


def test_a_singular_kernel_in_float32_gives_numbers_and_a_note():
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.standard_normal((N, D)), jnp.float32)
    X = X.at[1].set(X[0])
    y = jnp.asarray(rng.standard_normal(N), jnp.float32)
    value, gradient = jax.value_and_grad(lambda s: gp.log_marginal_likelihood(Exponential(s), X, y))(1.0)
    assert np.isfinite(value) and np.isfinite(gradient)
    with pytest.warns(UnlazyWarning, match="singular"):
        process = gp.posterior(Exponential(), X, y, X)
    assert process.notes and np.all(np.isfinite(process.std))
    assert np.all(np.isfinite(process.sample(jax.random.key(1), 2)))
