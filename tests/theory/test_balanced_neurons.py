"""Balanced neurons on Gaussian inputs: against quadrature in the plane, waiting risks against least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations.functions import activation
from unlazy.theory.feature_learning import balanced_neurons as bn

RNG = np.random.default_rng(0)
ANGLES = 20_000


T = 2 * np.pi * (np.arange(ANGLES) + 0.5) / ANGLES
X = np.stack([np.cos(T), np.sin(T)], 1)
"""x ∈ R² of norm one; E r² = 2 is the rest of any quadratic expectation of homogeneous functions."""


@pytest.mark.parametrize(
    "name, sigma, slope",
    [("abs", np.abs, np.sign), ("relu", lambda s: np.maximum(s, 0), lambda s: 1.0 * (s > 0))],
    ids=["abs", "relu"],
)
def test_risk_and_gradient(x64, name, sigma, slope):
    V, U = RNG.normal(size=(3, 2)), np.array([[0.6, 0.8], [-0.8, 0.6]])
    heads = np.array([0.7, 0.2])
    risk, gradient = jax.jit(lambda V: bn.risk_and_gradient(V, jnp.asarray(U), jnp.asarray(heads), activation(name)))(V)
    norms = np.linalg.norm(V, axis=1)
    off = sigma(X @ V.T) @ norms - sigma(X @ U.T) @ heads
    # kinks leave the midpoint rule off by (2π/20,000)²/8 times a jump of slopes, 1e-8 times numbers up to 10
    np.testing.assert_allclose(risk, 2 * np.mean(off**2), rtol=0, atol=1e-6)
    for v, size, found in zip(V, norms, np.asarray(gradient)):
        moves = (sigma(X @ v) / size)[:, None] * v + size * slope(X @ v)[:, None] * X
        # σ' jumps by at most 2 at two angles, each of which is off by half a cell at most
        jumps = 2 * 2 * size * np.abs(off).max() / ANGLES
        np.testing.assert_allclose(found, 2 * np.mean(off[:, None] * moves, 0), rtol=0, atol=2 * jumps)
        assert jumps < 0.01 * np.abs(found).max()


@pytest.mark.slow
def test_tiny_neurons_are_accurate(x64):
    """The pull of the target alone is homogeneous of degree one in V."""
    V, U = jnp.asarray(RNG.normal(size=(4, 3))), jnp.eye(3)[:2]
    heads = jnp.array([0.5, 0.25])
    one, two = (
        bn.risk_and_gradient(size * V, U, heads, activation("abs"))[1] / size for size in (1e-60, 1e-120)
    )  # fmt: skip
    np.testing.assert_allclose(one, two, rtol=1e-13)


@pytest.mark.parametrize("name, near, far", [("abs", 1.0, 2 / np.pi), ("relu", 0.5, 0.5 / np.pi)])
def test_plateau_risks_are_those_of_least_squares(x64, name, near, far):
    a = np.array([3.0, 1.5, 1.0, 0.2])
    L = np.linalg.cholesky((near - far) * np.eye(4) + far)  # columns of Lᵀ have the Gram matrix of the teachers
    expected = [np.sum((L.T @ a) ** 2)]
    for i in (1, 2, 3):
        best = np.linalg.lstsq(L.T[:, :i], L.T @ a, rcond=None)[0]
        expected.append(np.sum((L.T @ a - L.T[:, :i] @ best) ** 2))
    np.testing.assert_allclose(bn.plateau_risks(a, activation(name)), expected, rtol=1e-13)
