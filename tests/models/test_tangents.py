"""Rows of Jacobians and products with many vectors, against JAX's own derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from unlazy.models import as_model
from unlazy.models.tangents import tangent_map

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
TOLERANCE = 1e-12
"""Float64, a few hundred terms."""


@pytest.fixture(scope="module")
def mlp():
    network = eqx.nn.MLP(3, 2, 5, 1, activation=jnp.tanh, key=jax.random.key(0))
    return as_model(network, dtype="float64")


@pytest.fixture(scope="module")
def jacobian(mlp):
    """By JAX, (points, outputs, parameters)."""
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(mlp.in_precision(mlp.params))
        return np.asarray(jax.jacrev(lambda theta: mlp.function(unravel(theta), jnp.asarray(X)))(flat))


def test_rows_are_those_of_the_jacobian(mlp, jacobian):
    U = RNG.normal(size=(7, 4, 2))
    found = np.asarray(tangent_map(mlp).rows(X, U))
    expected = np.einsum("mkc,mcp->mkp", U, jacobian).reshape(28, -1)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_products_are_those_of_the_jacobian(mlp, jacobian):
    tangents = tangent_map(mlp)
    U, T = RNG.normal(size=(20, 7, 2)), RNG.normal(size=(20, tangents.size))
    J = jacobian.reshape(14, -1)
    np.testing.assert_allclose(tangents.pull(X, U), U.reshape(20, 14) @ J, atol=TOLERANCE)
    moved = tangents.push(X, tangents.to_device(T))
    np.testing.assert_allclose(moved.reshape(20, 14), T @ J.T, atol=TOLERANCE)
    np.testing.assert_allclose(tangents.contract(tangents.to_device(T), tangents.to_device(J)), T @ J.T, atol=TOLERANCE)


def test_some_layers(mlp, jacobian):
    names = list(mlp.layers(mlp.params))
    tangents = tangent_map(mlp, [names[1]])
    assert tangents.size == 5 * 2 + 2
    found = np.asarray(tangents.rows(X, np.broadcast_to(np.eye(2), (7, 2, 2))))
    np.testing.assert_allclose(found, jacobian.reshape(14, -1)[:, -12:], atol=TOLERANCE)
    # other layers stay as they are
    moved = tangents.moved(tangents.random(1, 0), 0)
    before, after = (mlp.layers(params)[names[0]] for params in (mlp.params, moved))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after)))
    with pytest.raises(ValueError, match="no layer has the name 'head'"):
        tangent_map(mlp, ["head"])


def test_moved_parameters_are_on_the_tangent(mlp):
    """A central difference has the error h² of its third derivative."""
    tangents, h = tangent_map(mlp), 1e-4
    moves = tangents.random(3, 1)
    there, back = (mlp.apply(tangents.moved(moves, 2, sign * h), X) for sign in (1, -1))
    np.testing.assert_allclose((there - back) / (2 * h), tangents.push(X, moves)[2], atol=1e-5)


def test_directions_of_the_model(mlp):
    tangents = tangent_map(mlp)
    direction = mlp.random_direction(mlp.params, 3)
    found = tangents.push(X, tangents.from_params(direction))[0]
    np.testing.assert_allclose(found, mlp.jvp(mlp.params, direction, X), atol=TOLERANCE)
