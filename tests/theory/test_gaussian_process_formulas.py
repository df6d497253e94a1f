"""Marginal likelihoods, roots and filters of a Gram matrix against SciPy, singular matrices included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from unlazy.theory.dynamics import gaussian_process
from unlazy.theory.feature_learning.single_site import layer_field

RNG = np.random.default_rng(5)
FEATURES, LABELS = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
SINGULAR = FEATURES @ FEATURES.T


def test_square_root_and_its_derivative(x64):
    A = RNG.normal(size=(5, 5))
    C, dC = A @ A.T, RNG.normal(size=(5, 5))
    dC = dC + dC.T
    root = np.real(scipy.linalg.sqrtm(C))
    np.testing.assert_allclose(gaussian_process.square_root(jnp.asarray(C)), root, atol=1e-12)
    found, change = jax.jvp(gaussian_process.square_root, (jnp.asarray(C),), (jnp.asarray(dC),))
    np.testing.assert_allclose(found, root, atol=1e-12)
    # dA A + A dA = dC; the condition of A is about 1e2
    np.testing.assert_allclose(change, scipy.linalg.solve_sylvester(root, root, dC), atol=1e-10)
    low = np.asarray(gaussian_process.square_root(jnp.asarray(SINGULAR)))
    np.testing.assert_allclose(low @ low, SINGULAR, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_log_marginal_likelihood_and_the_floor_of_its_noise(scale, noise, x64):
    """A singular matrix is given the noise of its rounding, n u tr K/n.

    Null eigenvalues are rounded to about the floor itself, so that without noise three logarithms are off by order one,
    beside a quadratic form of 1e15 that is off by the same factor; hence compared by its logarithm.
    """
    K = scale * (SINGULAR if noise == 0 else SINGULAR + np.eye(6))
    found = gaussian_process.log_marginal_likelihood(jnp.asarray(K), jnp.asarray(LABELS), jnp.asarray(scale * noise))
    if noise:
        normal = scipy.stats.multivariate_normal(np.zeros(6), K + scale * noise * np.eye(6))
        np.testing.assert_allclose(found, normal.logpdf(LABELS.T).sum(), rtol=1e-12)
        return
    floor = 2.0**-53 * np.trace(K)
    U = np.linalg.eigh(K)[1][:, :3]
    wanted = 0.5 * np.sum((U.T @ LABELS) ** 2) / floor
    assert abs(np.log(-float(found) / wanted)) < np.log(20)


def test_matrices_with_negative_eigenvalues_count_them_as_zero(x64):
    """Cholesky fails, as by rounding at low noise; the eigenvalues then are max(λ, 0) + s."""
    U = np.linalg.qr(RNG.normal(size=(6, 6)))[0]
    values, noise = np.array([3.0, 0.4, 0.02, 0.0, -0.1, -0.2]), 0.05
    K = U * values @ U.T
    normal = scipy.stats.multivariate_normal(np.zeros(6), U * (np.maximum(values, 0) + noise) @ U.T)
    found = gaussian_process.log_marginal_likelihood(jnp.asarray(K), jnp.asarray(LABELS), jnp.asarray(noise))
    np.testing.assert_allclose(found, normal.logpdf(LABELS.T).sum(), rtol=1e-12)


def test_fields_are_sums_over_their_white_sets():
    fresh, white, past = (RNG.normal(size=(7, n)) for n in (3, 4, 5))
    response, kernel = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 5))
    found = layer_field(*(jnp.asarray(a) for a in (fresh, white, response, past, kernel)))
    np.testing.assert_allclose(found, fresh + white @ response.T + past @ kernel.T, rtol=0, atol=40 * 2.0**-23)
