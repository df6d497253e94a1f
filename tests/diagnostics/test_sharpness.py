"""Sharpness against a dense Hessian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_model import SmallModel, initial

from unlazy.diagnostics.measures.sharpness import sharpness


def squared(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_largest_eigenvalue_of_the_dense_hessian(x64, seed):
    """The value is a Ritz value: at most λ_max, within its stated error of an eigenvalue, and 1% of itself."""
    model = SmallModel(initial(seed, 4, 12, 2), np.float64)
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(20, 4)), rng.normal(size=(20, 2))
    flat, unravel = ravel_pytree(model.value)
    dense = jax.hessian(lambda v: squared(model.f(unravel(v), jnp.asarray(X)), jnp.asarray(y)))(flat)
    values = np.linalg.eigvalsh(np.asarray(dense))
    found = sharpness(model, X, y, squared)
    assert found.error <= 0.01 * found.value
    assert values[-1] - found.error - 1e-12 <= found.value <= values[-1] * (1 + 1e-12)
    exact = sharpness(model, X, y, squared, tolerance=1e-9, max_steps=60)
    assert exact.value == pytest.approx(values[-1], rel=1e-8)
    assert exact.products > found.products


def test_too_few_steps_say_so():
    model = SmallModel(initial(0, 4, 12, 2))
    found = sharpness(model, np.ones((3, 4)), np.ones((3, 2)), squared, max_steps=1)
    assert found.error > 0.01 * abs(found.value) and found.products == 1
    with pytest.raises(ValueError, match="max_steps must be a positive integer, got 0"):
        sharpness(model, np.ones((3, 4)), np.ones((3, 2)), squared, max_steps=0)
