"""Ansatz and FACT: gradients against jax.grad, powers against NumPy, FACT at a critical point in closed form."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.measures.alignment import entry_correlation
from unlazy.theory.feature_learning import feature_laws


def test_input_gradients_are_those_of_the_network(x64):
    rng = np.random.default_rng(0)
    weights = [jnp.asarray(rng.normal(size=shape)) for shape in ((4, 5), (5, 3), (3, 1))]
    X = jnp.asarray(rng.normal(size=(6, 4)))
    z1 = X @ weights[0]
    z2 = jnp.tanh(z1) @ weights[1]
    found = feature_laws.input_gradients(weights, [z1, z2], jnp.tanh)
    first = jax.grad(lambda X: jnp.sum(jnp.tanh(jnp.tanh(X @ weights[0]) @ weights[1]) @ weights[2]))(X)
    second = jax.grad(lambda h: jnp.sum(jnp.tanh(h @ weights[1]) @ weights[2]))(jnp.tanh(z1))
    np.testing.assert_allclose(found[0], first, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1], second, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[2], np.tile(weights[2].T, (6, 1)), rtol=0, atol=0)


def test_powers_of_matrices_of_several_sizes(x64):
    rng = np.random.default_rng(1)
    agops = [(lambda G: G.T @ G)(rng.normal(size=(8, k))) for k in (3, 5)]
    found = feature_laws.ansatz([jnp.asarray(M) for M in agops], [0.5, 1.0])
    for M, (root, whole) in zip(agops, found):
        np.testing.assert_allclose(root @ root, M, rtol=0, atol=1e-12 * np.abs(M).max() * len(M))
        np.testing.assert_allclose(whole, M, rtol=0, atol=1e-13 * np.abs(M).max() * len(M))


def test_fact_is_the_gram_at_a_critical_point_and_not_elsewhere(x64):
    """Ridge regression: L = mean ½|XW - Y|², whose critical point with decay λ is (XᵀX/n + λ)^{-1} XᵀY/n."""
    rng, decay = np.random.default_rng(2), 0.1
    X, Y = rng.normal(size=(30, 4)), rng.normal(size=(30, 3))
    W = np.linalg.solve(X.T @ X / 30 + decay * np.eye(4), X.T @ Y / 30)
    found = feature_laws.fact(jnp.asarray(W), jnp.asarray(X.T @ (X @ W - Y) / 30), decay)
    np.testing.assert_allclose(found, W @ W.T, rtol=0, atol=1e-12)
    away = rng.normal(size=(4, 3))
    other = feature_laws.fact(jnp.asarray(away), jnp.asarray(X.T @ (X @ away - Y) / 30), decay)
    assert float(entry_correlation(other, away @ away.T)) < 0.9


def test_correlation_of_entries_is_pearsons():
    rng = np.random.default_rng(3)
    A, B = rng.normal(size=(2, 4, 5))
    np.testing.assert_allclose(entry_correlation(A, B), np.corrcoef(A.ravel(), B.ravel())[0, 1], rtol=1e-5)
    np.testing.assert_allclose(entry_correlation(A, 3 * A + 2), 1, rtol=1e-5)
    assert float(entry_correlation(A, np.ones((4, 5)))) == 0
