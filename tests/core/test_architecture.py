"""MLP descriptions: per-layer values, suggestions for misspelled names, scoped precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.arrays import default_float, precision
from unlazy.theory.activations.functions import ACTIVATIONS, ActivationFunction, activation
from unlazy.theory.infinite_width.architecture import MLP


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


def test_activations_are_compared_by_function_not_by_name():
    def relu(x):
        return jnp.where(x > 1, x, 0)

    mine = activation(relu)
    assert mine.name == "relu" and mine != activation("relu") and mine.kinks == ()
    assert activation(jax.nn.leaky_relu).parameter == 0.01
    assert activation(functools.partial(jax.nn.leaky_relu, negative_slope=0.2)).parameter == 0.2
    assert activation(jax.nn.relu6).kinks == (0.0, 6.0)
    # equal when functions and parameters are, whatever the name
    assert ActivationFunction("a", jnp.tanh) == ActivationFunction("b", jnp.tanh) == activation("tanh")
    assert activation(jax.nn.gelu) == activation(functools.partial(jax.nn.gelu, approximate=True))
    assert activation(jax.nn.gelu) != activation(functools.partial(jax.nn.gelu, approximate=False))
    with pytest.raises(ValueError, match="Python scalar"):
        activation(functools.partial(jax.nn.elu, alpha=jnp.ones(2)))


def test_functions_are_used_as_given():
    """Two lambdas are two functions, even with the same code: what they refer to may change."""

    def made(value):
        return lambda x: jnp.tanh(value * x)

    function = made(2.0)
    assert activation(function) == activation(function) and activation(function).function is function
    assert activation(made(2.0)) != activation(made(2.0))


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_an_array_gives_one_sigma_per_matrix(array):
    network = MLP(2, "relu", sigma_w=array([1.0, 2.0, 3.0]), sigma_b=array([0.0, 0.5, 1.0]))
    assert [float(s) for s in network.sigma_w] == [1.0, 2.0, 3.0] and all(np.ndim(s) == 0 for s in network.sigma_b)
    assert MLP(2, sigma_w=array(1.5)).sigma_w[2] == 1.5
    with pytest.raises(ValueError, match=r"sigma_w must be one value or 3 .* got 2"):
        MLP(2, sigma_w=array([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"sigma_b .* shape \(3, 3\)"):
        MLP(2, sigma_b=array(np.ones((3, 3))))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        MLP(1, sigma_w=(array([1.0, 2.0]), 1.0))


def test_traced_sigmas_are_accepted():
    widths = jax.jit(lambda s: MLP(2, sigma_w=s).sigma_w[1] + MLP(2, sigma_w=s[0]).sigma_w[2])
    assert float(widths(jnp.array([1.0, 2.0, 3.0]))) == 3.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), np.float32(-2), jnp.array([1.0, jnp.nan])])
@pytest.mark.parametrize("what", ["sigma_w", "sigma_b"])
def test_invalid_network_parameters_are_rejected(what, value):
    with pytest.raises(ValueError, match=f"{what} must be finite and at least 0"):
        MLP(1, **{what: value})
    if np.ndim(value) == 0:
        with pytest.raises(ValueError, match="residual must be finite"):
            MLP(1, residual=value)


def test_long_list_of_names_is_truncated():
    from unlazy.core.errors import MAX_LISTED, did_you_mean

    message = did_you_mean("zzz", [f"x{j}" for j in range(1000)])
    assert message.endswith(f" and {1000 - MAX_LISTED} more") and message.count(",") == MAX_LISTED - 1
