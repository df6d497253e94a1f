"""solvers.gaussian_process.posterior against NumPy, SciPy's multivariate normal, finite differences and sampling."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.stats import multivariate_normal

from unlazy.core.arrays import precision
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.base import Kernel
from unlazy.kernels.radial import Gaussian
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_draws_have_the_right_mean_and_covariance_also_when_singular(data):
    X, y, Z = data
    Z = Z.at[1].set(Z[0])  # coincident points: Cholesky would fail
    process = gp.posterior(Exponential(), X, y, Z, 0.1)
    draws = np.asarray(process.sample(20000, key=jax.random.key(0)))
    assert draws.shape == (20000, M, 2)
    np.testing.assert_allclose(draws[:, 0] - process.mean[0], draws[:, 1] - process.mean[1], atol=1e-7)
    centered = draws[..., 0] - np.asarray(process.mean)[:, 0]
    expected = np.asarray(process.covariance)
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 20000)
    assert np.all(np.abs(centered.T @ centered / 20000 - expected) < 4 * error)
    assert abs(np.mean(centered[:, 0] * (draws[:, 0, 1] - process.mean[0, 1]))) < 4 * expected[0, 0] / np.sqrt(20000)
    path = gp.posterior(Exponential(), X, y, Z, jnp.array([0.1, 1.0]))
    assert path.sample(3, key=jax.random.key(0)).shape == (3, 2, M, 2)
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        process.sample(0, key=jax.random.key(0))


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert np.all(np.isfinite(process.sample(2, key=jax.random.key(1))))


def _small_noise_problem(n=400):
    """Rows and labels in float32 whose noise variance, 1e-6, is below the rounding of K: n 2^-24 = 2e-5."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 2)).astype(np.float32)
    return X, (np.sin(3 * X[:, 0]) + 1e-3 * rng.standard_normal(n)).astype(np.float32)


def _gaussian_gram(A, B):
    return np.exp(-((A[:, None].astype(float) - B[None].astype(float)) ** 2).sum(-1) / (2 * 0.5**2))


@pytest.mark.slow
def test_float32_evidence_sees_a_small_noise():
    """Sums are float64: K is off by 2^-53 n = 4e-14 and its condition is 4e8, so the error is 2e-5 of a derivative at
    most; the results are rounded to float32."""
    X, y = _small_noise_problem()
    A = _gaussian_gram(X, X) + 1e-6 * np.eye(len(X))
    solved = np.linalg.solve(A, y.astype(float))
    value = -0.5 * y @ solved - 0.5 * np.linalg.slogdet(A)[1] - len(X) / 2 * np.log(2 * np.pi)
    slope = 0.5 * (solved @ solved - np.trace(np.linalg.inv(A)))

    def evidence(noise, X=X):
        return gp.log_marginal_likelihood(Gaussian(0.5), X, y, noise)

    for found in (evidence(1e-6), jax.jit(evidence)(1e-6)):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, value, rtol=2e-5)
    np.testing.assert_allclose(jax.grad(evidence)(1e-6), slope, rtol=1e-4)
    np.testing.assert_allclose(jax.jvp(evidence, (1e-6,), (1.0,))[1], slope, rtol=1e-4)
    assert jax.grad(evidence, 1)(1e-6, jnp.asarray(X)).shape == X.shape


@pytest.mark.slow
def test_second_derivatives_of_float32_evidence():
    X, y = _small_noise_problem(30)

    def evidence(h):
        return gp.log_marginal_likelihood(Gaussian(h), X, y, 1e-2)

    with precision("float64"):
        expected = jax.hessian(lambda h: gp.log_marginal_likelihood(Gaussian(h), X.astype(float), y, 1e-2))(0.5)
    np.testing.assert_allclose(jax.hessian(evidence)(0.5), expected, rtol=1e-5)  # rounded to float32 twice


def test_float32_posterior_of_a_small_noise():
    """Variances are at least 1e-6/n and differences of numbers of size 1, whose error in float64 is 4e-14 · 4e8 of a
    posterior variance: 2e-5; in float32 they were 0 or ten times too large."""
    X, y = _small_noise_problem()
    Z = np.random.default_rng(4).standard_normal((20, 2)).astype(np.float32)
    A, B = _gaussian_gram(X, X) + 1e-6 * np.eye(len(X)), _gaussian_gram(Z, X)
    variance = 1 - np.sum(B * np.linalg.solve(A, B.T).T, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlazyWarning)  # K is singular in float64 too
        found = gp.posterior(Gaussian(0.5), X, y, Z, 1e-6)
        same = gp.condition(Gaussian(0.5), jnp.asarray(X), y, 1e-6)
    assert found.std.dtype == found.mean.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(found.std, float) ** 2, variance, rtol=1e-4)
    np.testing.assert_allclose(found.mean, B @ np.linalg.solve(A, y.astype(float)), atol=1e-5)
    np.testing.assert_allclose(same.predict(jnp.asarray(Z)), found.mean, atol=1e-6)


@pytest.mark.slow
def test_results_that_overflow_float32_are_an_error():
    """A prior variance of 1e39 is finite in float64, in which posteriors are computed, but not in float32."""
    X = np.arange(6, dtype=np.float32).reshape(3, 2)
    huge = 1e20**0.5 * Gaussian(1.0)
    assert np.isfinite(gp.posterior(huge, X, X[:, 0], X + 9, 1.0).covariance).all()
    with pytest.raises(ValueError, match="overflow float32"):
        gp.posterior(Gaussian(1.0) * 1e30 * 1e9, X, X[:, 0], X + 9, 1e30)
