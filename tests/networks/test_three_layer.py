"""Frozen first layers: orthonormal Hermite features, exact representation of He_4, whitening, the data norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.networks.three_layer import HermiteFeatures, data_norm, random_first_layer, second_moment
from unlazy.theory.activations import hermite

EPS = np.finfo(float).eps


@pytest.mark.slow
def test_features_are_orthonormal(x64):
    """Gauss–Hermite with 4 nodes per side is exact to degree 7 in each variable; products of features have degree 6."""
    features = HermiteFeatures(3, 3)
    z, w = hermite.gauss_hermite(4)
    grid = np.stack(np.meshgrid(z, z, z, indexing="ij"), -1).reshape(-1, 3)
    weights = np.einsum("i,j,k->ijk", w, w, w).ravel()
    G = features(jnp.asarray(grid))
    assert G.shape[1] == features.size == 11
    np.testing.assert_allclose((G.T * weights) @ G, np.eye(11), atol=1e-12)


@pytest.mark.slow
def test_he4_is_a_quadratic_of_degree_two_features(x64):
    """h_4 = (h_2² - 2√2 h_2 - 1)/√6 along any unit β, with h_2(β·x) = Σ_α c_α(β) h_α(x)."""
    d, rng = 4, np.random.default_rng(0)
    beta = rng.normal(size=d)
    beta /= np.linalg.norm(beta)
    X = jnp.asarray(rng.normal(size=(50, d)))
    G = HermiteFeatures(d, 2, 3.0)(X)
    i, j = np.triu_indices(d)
    w = np.where(i == j, beta[i] ** 2, np.sqrt(2) * beta[i] * beta[j])  # in the order of the features
    h2, constant = G[:, 1:] @ w, G[:, 0] / 3
    expected = hermite.series(X @ beta, [0, 0, 0, 0, 1.0])
    np.testing.assert_allclose((h2**2 - 2 * np.sqrt(2) * h2 * constant - constant**2) / np.sqrt(6), expected,
                               atol=200 * EPS * float(jnp.abs(expected).max() + 10))  # fmt: skip


@pytest.mark.slow
def test_whitened_layers_have_unit_covariance(x64):
    X = jax.random.normal(jax.random.key(0), (400, 3))
    layer = random_first_layer(jax.random.key(1), 3, 12, "square").whitened(X, 10)  # quadratics of 3 inputs: 10
    G = layer(X)
    # condition of Σ̂ on the kept directions, below 1e6 here, times rounding
    np.testing.assert_allclose(second_moment(G), np.eye(10), atol=1e6 * EPS)
    with pytest.raises(ValueError, match="keep must lie between 1 and the 13 features"):
        layer.whitened(X, 40)


def test_data_norm_is_the_norm_of_the_root(x64):
    rng = np.random.default_rng(0)
    W, G = jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(rng.normal(size=(30, 4)))
    covariance = second_moment(G)
    s, U = np.linalg.eigh(covariance)
    root = (U * np.sqrt(s)) @ U.T
    expected = np.sum(np.linalg.norm(np.asarray(W) @ root, axis=1) ** 4)
    np.testing.assert_allclose(data_norm(W, covariance), expected, rtol=1e-12)
    # its gradient is 4 (w_rᵀΣ̂w_r) Σ̂ w_r
    gradient = 4 * jnp.sum((W @ covariance) * W, 1)[:, None] * (W @ covariance)
    np.testing.assert_allclose(jax.grad(data_norm)(W, covariance), gradient, rtol=1e-12)
