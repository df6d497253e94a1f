"""Signed dropout: the mean gradient is the even part's, plain training equals Adam, shares of odd and even."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from unlazy.core.dataset import Data
from unlazy.networks.quadratic import second_order
from unlazy.training.descent.signed_dropout import even_part, odd_share, train_moves


@pytest.fixture
def model(x64):
    rng = np.random.default_rng(0)
    W0, X = jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray(rng.normal(size=(6, 3)))
    a = jnp.asarray([1.0, -1.0, 1.0, -1.0])
    delta, y = jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray(rng.normal(size=6))
    return second_order(W0, a, "tanh"), delta, Data(X, y)


def test_mean_over_all_signs(model):
    """Over all 2⁴ signs the function averages to its even part, and the loss to that of the even part plus the variance
    Σ_r E (a_r σ'(w_r·x) δ_r·x)²: so signed dropout is the quadratic model with one more penalty."""
    apply, delta, data = model
    signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=4)))
    values = jax.vmap(lambda z: apply(z[:, None] * delta, data.X))(signs)
    np.testing.assert_allclose(values.mean(0), even_part(apply, delta, data.X), atol=1e-13)
    alone = jnp.stack([
        apply.parts(delta * (jnp.arange(4) == r)[:, None], data.X)[1] for r in range(4)
    ])  # fmt: skip
    expected = jnp.mean((even_part(apply, delta, data.X) - data.y) ** 2) + jnp.mean(jnp.sum(alone**2, 0))
    np.testing.assert_allclose(jnp.mean((values - data.y) ** 2), expected, rtol=1e-12)


@pytest.mark.slow
def test_plain_training_is_adam(model):
    apply, delta, data = model
    rule, steps = optax.adam(optax.cosine_decay_schedule(1e-2, 5)), 5

    def loss(D):
        return jnp.mean((apply(D, data.X) - data.y) ** 2) + 0.1 * jnp.sum(D**2)

    theta, memory = delta, rule.init(delta)
    for _ in range(steps):
        updates, memory = rule.update(jax.grad(loss)(theta), memory, theta)
        theta = optax.apply_updates(theta, updates)
    found = train_moves(
        apply, delta, data, steps=steps, step_size=1e-2, key=None, penalty=lambda D: 0.1 * jnp.sum(D**2)
    )
    np.testing.assert_allclose(found.delta, theta, atol=1e-12)  # Adam divides by √v, about 1e-4 relative rounding left
    start = 0.5 * jnp.mean((apply(delta, data.X) - data.y) ** 2)
    np.testing.assert_allclose(found.losses[0], start, rtol=20 * 2.0**-24)  # six terms of float32
    assert found.losses.shape == (steps,) and not found.diverged


@pytest.mark.slow
def test_signed_training_lowers_the_even_loss_and_suppresses_the_odd_part(model):
    """500 steps on six points: the even part fits better than at the start, and the odd share falls."""
    apply, delta, data = model
    found = train_moves(apply, delta, data, steps=500, step_size=1e-2, key=jax.random.key(0))
    before, after = (jnp.mean((even_part(apply, D, data.X) - data.y) ** 2) for D in (delta, found.delta))
    assert after < before
    assert odd_share(apply, found.delta, data.X) < odd_share(apply, delta, data.X)


def test_shares_of_a_linear_and_of_an_even_function(x64):
    X, delta = jnp.ones((3, 2)), jnp.ones((4, 2))
    assert odd_share(lambda D, X: X @ D.sum(0), delta, X) == 1
    assert odd_share(lambda D, X: jnp.sum((X @ D.T) ** 2, 1), delta, X) == 0
