"""Quadratic models: the same values as the general expansion, parts of the right parity, derivatives by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.networks import quadratic_expansion
from unlazy.networks.quadratic import QuadraticNetwork, fourth_power_norm, second_order

EPS = np.finfo(float).eps


@pytest.fixture
def parts(x64):
    rng = np.random.default_rng(0)
    W0, delta, X = (jnp.asarray(rng.normal(size=s)) for s in ((7, 4), (7, 4), (5, 4)))
    a = jnp.asarray(rng.choice([-1.0, 1.0], 7))
    return W0, delta, X, a


@pytest.mark.parametrize("name", ["softplus", "tanh", "square"])
def test_equal_to_the_expansion_of_the_network(parts, name):
    """Sums of 7 products of size below 20: rounding of a few hundred units."""
    W0, delta, X, a = parts
    model = second_order(W0, a, name)

    def network(W, X):
        return model.activation(X @ W.T) @ a

    expected = quadratic_expansion(network, W0)(W0 + delta, X)
    np.testing.assert_allclose(model(delta, X), expected, atol=500 * EPS * float(jnp.abs(expected).max()))
    if name == "square":
        np.testing.assert_allclose(model(delta, X), network(W0 + delta, X), atol=1000 * EPS * 20)


def test_linear_part_is_odd_the_rest_even(parts):
    W0, delta, X, a = parts
    model = second_order(W0, a, "softplus")
    plus, minus = model(delta, X), model(-delta, X)
    size = 200 * EPS * float(jnp.abs(plus).max() + jnp.abs(minus).max())
    np.testing.assert_allclose(model.even(delta, X), (plus + minus) / 2, atol=size)
    np.testing.assert_allclose(model.linear(delta, X) - model.parts(delta, X)[0], (plus - minus) / 2, atol=size)


def test_gradient_against_central_differences(parts):
    """(f(δ + hv) - f(δ - hv))/2h has no h² term for a quadratic: rounding over h is all that is left."""
    W0, delta, X, a = parts
    model, v, h = second_order(W0, a, "tanh"), jnp.ones_like(W0), 1e-4
    slope = jax.jvp(lambda D: model(D, X), (delta,), (v,))[1]
    difference = (model(delta + h * v, X) - model(delta - h * v, X)) / (2 * h)
    np.testing.assert_allclose(slope, difference, atol=200 * EPS * 20 / h)


def test_quadratic_network_is_a_matrix_and_its_decay_bounds_the_nuclear_norm(x64):
    network = QuadraticNetwork(6)
    W, X = network.init(jax.random.key(0), 4), jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    M = network.matrix(W)
    np.testing.assert_allclose(network(W, X), jnp.einsum("ni,ij,nj->n", X, M, X), atol=1e-14)
    assert float(jnp.sum(W**2)) >= float(jnp.abs(jnp.linalg.eigvalsh(M)).sum())
    np.testing.assert_allclose(fourth_power_norm(W), np.sum(np.linalg.norm(W, axis=1) ** 4), rtol=1e-13)


def test_a_kinked_activation_is_rejected(x64):
    with pytest.raises(ValueError, match="no second derivative"):
        second_order(jnp.ones((2, 3)), jnp.ones(2), "relu")
