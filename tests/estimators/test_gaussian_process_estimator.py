"""GaussianProcess against the solvers' closed forms, and its draws against its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_roster import data

import unlazy
from unlazy.estimators.gaussian_process import GaussianProcess
from unlazy.solvers.gaussian_process import posterior as solvers

Z = np.random.default_rng(5).normal(size=(16, 3))


def points(model, *rows):
    return [jnp.asarray(X - model.offset_) for X in rows]


def test_posterior_against_the_textbook():
    """Mean K_zX(K + s²)⁻¹y and covariance K_zz - K_zX(K + s²)⁻¹K_Xz, and log N(y; 0, K + s²), written down in NumPy."""
    X, y = data()
    model = GaussianProcess(unlazy.Gaussian(1.5)).fit(X, y)
    mean, std = model.predict(Z, return_std=True)
    _, covariance = model.predict(Z, return_cov=True)
    with jax.enable_x64(True):
        K = np.asarray(model.kernel_.gram(jnp.asarray(np.vstack([X, Z])))) * model.amplitude_[0]
    C, r = K[:32, :32] + model.noise_variance_[0] * np.eye(32), y - y.mean()
    # the condition of C is below 1e7 here: seven of sixteen digits
    np.testing.assert_allclose(mean, K[32:, :32] @ np.linalg.solve(C, r) + y.mean(), atol=1e-8)
    expected = K[32:, 32:] - K[32:, :32] @ np.linalg.solve(C, K[:32, 32:])
    np.testing.assert_allclose(covariance, expected, atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-5)
    evidence = -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(C)[1] + 32 * np.log(2 * np.pi))
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, evidence, rtol=1e-7)


@pytest.mark.slow
def test_posterior_of_the_infinite_network():
    X, y = data()
    model = GaussianProcess().fit(X, y)
    mean, covariance = model.predict(Z, return_cov=True)
    ratio = float(model.noise_variance_[0] / model.amplitude_[0])
    with jax.enable_x64(True):
        inputs, new = points(model, X, Z)
        expected = solvers.posterior(model.kernel_, inputs, jnp.asarray(y - y.mean()), new, ratio)
    np.testing.assert_allclose(mean, expected.mean + y.mean(), atol=1e-8)
    np.testing.assert_allclose(covariance, model.amplitude_[0] * np.asarray(expected.covariance), atol=1e-8)


def test_noise_maximizes_the_evidence():
    X, y = data()
    best = GaussianProcess("gaussian").fit(X, y)
    ratio = float(best.noise_variance_[0] / best.amplitude_[0])  # k(x, x) = 1
    for factor in (0.2, 5.0):
        other = GaussianProcess("gaussian", relative_noise_variance=ratio * factor).fit(X, y)
        assert other.log_marginal_likelihood_value_ <= best.log_marginal_likelihood_value_


@pytest.mark.slow
@pytest.mark.parametrize("time", [2.0, np.inf])
def test_ensemble_of_trained_networks(time):
    X, y = data()
    model = GaussianProcess("ntk_ensemble", network=unlazy.MLP(1, sigma_b=0.4), time=time).fit(X, y)
    mean, std = model.predict(Z, return_std=True)
    _, covariance = model.predict(Z, return_cov=True)
    with jax.enable_x64(True):
        inputs, new = points(model, X, Z)
        expected = solvers.ensemble(model.kernel_, model.mean_kernel_, inputs, jnp.asarray(y - y.mean()), new, time)
    np.testing.assert_allclose(mean, expected.mean + y.mean(), atol=1e-8)
    np.testing.assert_allclose(covariance, y.var() * np.asarray(expected.covariance), atol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-5)


def test_draws_have_the_moments():
    """4,000 draws: means within 4 standard errors, covariances within 4 of theirs (√2 of a variance at most)."""
    X, y = data()
    model = GaussianProcess(unlazy.Gaussian(1.0), relative_noise_variance=0.1).fit(X, y)
    mean, covariance = model.predict(Z, return_cov=True)
    draws = model.sample_y(Z, 4000, random_state=0)
    assert draws.shape == (16, 4000)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(1) - mean) < 4 * std / np.sqrt(4000)).all()
    assert (np.abs(np.cov(draws) - covariance) < 4 * np.sqrt(2 / 4000) * np.outer(std, std)).all()


def test_several_outputs():
    X, y = data()
    model = GaussianProcess("laplace").fit(X, np.stack([y, 3 * y], 1))
    mean, covariance = model.predict(Z, return_cov=True)
    assert mean.shape == (16, 2) and covariance.shape == (16, 16, 2) and model.sample_y(Z, 3).shape == (16, 2, 3)
    np.testing.assert_allclose(mean[:, 1], 3 * mean[:, 0], atol=1e-10)
    np.testing.assert_allclose(covariance[..., 1], 9 * covariance[..., 0], atol=1e-10)


def test_misuse():
    X, y = data()
    for given, message in (
        ({"kernel": 1}, "kernel must be 'nngp'"),
        ({"kernel": "nngb"}, "did you mean 'nngp'"),
        ({"relative_noise_variance": -1.0}, "relative_noise_variance must be zero"),
        ({"time": 0.0}, "time must be positive"),
        ({"kernel": "gaussian", "network": unlazy.MLP(1)}, "network applies to"),
    ):
        with pytest.raises(ValueError, match=message):
            GaussianProcess(**given).fit(X, y)
    with pytest.raises(ValueError, match="return_std or return_cov"):
        GaussianProcess("gaussian").fit(X, y).predict(X, return_std=True, return_cov=True)
