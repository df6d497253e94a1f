"""One description: per-layer values, names with suggestions, precision in a scope."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.activations import ACTIVATIONS, activation
from unlazy.core.architecture import MLP
from unlazy.core.precision import default_float, precision


def test_per_layer_values():
    assert MLP(2, sigma_w=1.5).sigma_w == (1.5, 1.5, 1.5) and MLP(1, sigma_b=[0.0, 1.0]).sigma_b == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 2"):
        MLP(2, sigma_w=[1.0, 2.0])
    with pytest.raises(ValueError, match="depth"):
        MLP(0)


def test_unknown_activation_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'relu'"):
        MLP(1, "rellu")
    with pytest.raises(ValueError, match="takes no parameter"):
        activation("relu", 0.3)
    assert MLP(1, jnp.tanh).activation.function is jnp.tanh


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_dtype_and_match_plain_numpy_where_simple(name):
    x = jnp.linspace(-2, 2, 9, dtype=jnp.float32)
    value = activation(name)(x)
    assert value.dtype == jnp.float32 and value.shape == x.shape and bool(jnp.isfinite(value).all())
    plain = {
        "relu": lambda z: np.maximum(z, 0),
        "truncated_relu": lambda z: np.clip(z, 0, 1),
        "hermite": lambda z: (z * z - 1) / 2**0.5,
    }
    if name in plain:
        # a handful of float32 operations on numbers below 4: a few units of 2^-23 · 4
        np.testing.assert_allclose(value, plain[name](np.asarray(x, np.float64)), atol=4 * 2**-22)


def test_precision_is_scoped():
    before = default_float()
    with precision("float64"):
        assert default_float() == jnp.float64
    assert default_float() == before and not jax.config.jax_enable_x64
    with pytest.raises(ValueError, match="float16"), precision("float16"):
        pass
