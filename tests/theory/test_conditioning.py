"""Conditioning of the Jacobian [L4]: bounds against dense Jacobians, rank limits against ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations.functions import activation
from unlazy.theory.dynamics import conditioning


def jacobian(W, a, X, name):
    """J of Σ a_j σ(w_j·x) in NumPy's order: row i holds a_j σ'(w_j·x_i) x_i."""
    slope = jax.vmap(jax.vmap(jax.grad(activation(name))))(X @ W.T)
    return np.asarray((slope * a)[:, :, None] * X[:, None, :]).reshape(len(X), -1)


@pytest.mark.parametrize("name", conditioning.CURVATURE)
def test_curvature_is_the_largest_second_derivative(x64, name):
    """On a grid of step 1e-3 the maximum is missed by at most |σ''''| 1e-6/8 (or |σ'''| 1e-3 at a border): 1e-5."""
    grid = jnp.linspace(-6, 6, 12001)
    found = jnp.max(jnp.abs(jax.vmap(jax.grad(jax.grad(activation(name))))(grid)))
    np.testing.assert_allclose(conditioning.CURVATURE[name], found, rtol=1e-5)


@pytest.mark.parametrize("name", conditioning.CURVATURE)
def test_jacobian_change_is_below_its_bound_but_close(x64, name):
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.3, 3.0):
        W, move = jnp.asarray(rng.normal(size=(7, 4))), jnp.asarray(scale * rng.normal(size=(7, 4)))
        a, X = jnp.asarray(rng.choice([-1.0, 2.0], 7)), jnp.asarray(rng.normal(size=(9, 4)))
        change = np.linalg.norm(jacobian(W + move, a, X, name) - jacobian(W, a, X, name), 2)
        bound = float(conditioning.jacobian_change_bound(X, a, move, conditioning.CURVATURE[name]))
        assert change <= bound


def test_the_bound_is_attained(x64):
    """One neuron, one point, σ = square, δ along x: the change is |σ''| |a| ‖x‖² ‖δ‖ exactly."""
    X, a = jnp.array([[1.0, 2.0]]), jnp.array([3.0])
    W, move = jnp.array([[0.5, -1.0]]), 0.7 * X
    change = np.linalg.norm(jacobian(W + move, a, X, "square") - jacobian(W, a, X, "square"), 2)
    bound = conditioning.jacobian_change_bound(X, a, move, 2.0)
    np.testing.assert_allclose(change, bound, rtol=1e-14)


@pytest.mark.parametrize("name, width", [("softplus", 3), ("tanh", 5), ("square", 2), ("square", 4), ("square", 6)])
def test_rank_limit_is_the_rank(x64, name, width):
    """Of more generic points than can matter; narrow square networks included."""
    rng = np.random.default_rng(1)
    W, X = jnp.asarray(rng.normal(size=(width, 4))), jnp.asarray(rng.normal(size=(40, 4)))
    J = jacobian(W, jnp.ones(width), X, name)
    assert np.linalg.matrix_rank(J, tol=1e-9 * np.linalg.norm(J, 2)) == conditioning.rank_limit(width, 4, name)


def test_rate_and_distance_of_a_linear_problem(x64):
    """Gradient descent on ½‖Jθ - r‖²: the slowest direction decays at 2ησ²(1 + ησ²/2 + …); θ ends within ‖r‖/σ_min."""
    J = jnp.diag(jnp.array([1.0, 0.1]))
    r = jnp.array([1.0, 1.0])
    eta = 0.1
    theta = jnp.zeros(2)
    losses = []
    for _ in range(2000):
        losses.append(float(jnp.sum((J @ theta - r) ** 2)))
        theta = theta - eta * J.T @ (J @ theta - r)
    measured = np.log(losses[1500] / losses[1501])
    np.testing.assert_allclose(measured, conditioning.loss_rate(eta, jnp.array(0.1)), rtol=1e-3)  # ησ² = 1e-3
    assert jnp.linalg.norm(theta) <= conditioning.distance_bound(r, jnp.array(0.1))
    W = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    assert float(conditioning.smallest_singular_scale(W, jnp.array([1.0, -2.0, 1.0]))) == pytest.approx(2 * 2 * 2)
