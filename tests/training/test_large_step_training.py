"""One step on the first layer: the gradient against jax.grad, the head against its normal equations."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from unlazy.training.one_step.large_step import first_layer_gradient, ridge_readout


def test_gradient_is_that_of_the_loss_at_zero_output(x64):
    """With heads as two equal halves of opposite sign f = 0, and jax.grad sees the same loss."""
    keys = jax.random.split(jax.random.key(0), 3)
    W = jax.random.normal(keys[0], (3, 5))
    W, heads = jnp.concatenate([W, W]), jnp.array([1.0, -1.0, 0.5, -1.0, 1.0, -0.5])
    X, y = jax.random.normal(keys[1], (7, 5)), jax.random.normal(keys[2], (7,))
    expected = jax.grad(lambda W: jnp.mean((erf(X @ W.T) @ heads - y) ** 2) / 2)(W)
    np.testing.assert_allclose(first_layer_gradient(erf, W, heads, X, y), expected, rtol=0, atol=1e-13)


def test_head_solves_its_normal_equations(x64):
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(20, 6)), rng.normal(size=20)
    expected = np.linalg.lstsq(np.vstack([F, np.sqrt(2.5) * np.eye(6)]), np.append(y, np.zeros(6)), rcond=None)[0]
    np.testing.assert_allclose(ridge_readout(jnp.asarray(F), jnp.asarray(y), 2.5), expected, rtol=0, atol=1e-12)
