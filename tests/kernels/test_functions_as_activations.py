"""Kernels of networks whose activation is given as a function: what it computes counts, not its name.

Only names that users import, so that these tests run on every release.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from oracles_gaussian import bivariate_expectation
from unlazy.theory.activations.functions import ActivationFunction

X = np.array([[1.1, 0.3], [-0.2, 0.9], [1.12, 0.29]])
"""The last is close to the first, where expansions of functions with kinks converge slowly."""
KINKS = (-1.0, 0.0, 1.0)


def named(name):
    """A user function with the name of another."""

    def own(x):
        return jax.nn.softplus(x) - 0.3 * x

    own.__name__ = name
    return own


FUNCTIONS = {
    "leaky_relu": jax.nn.leaky_relu,
    "gelu by tanh": jax.nn.gelu,
    "own relu": named("relu"),
    "own sin": named("sin"),
    "own square": named("square"),
    "sign": ActivationFunction("sign", jnp.sign, kinks=(0.0,)),
    "hard_tanh": ActivationFunction("hard_tanh", jax.nn.hard_tanh, kinks=(-1.0, 1.0)),
}


def expected(function, q12, q11, q22):
    """E φ(a)φ(b) of that very function, by quadrature between its kinks, and where b, given a, passes them."""
    spread = np.sqrt(q22 - q12**2 / q11)
    passed = [k * q11 / q12 + c * spread for k in KINKS for c in (-6, -3, -1, 0, 1, 3, 6)]
    return bivariate_expectation(lambda u: np.asarray(function(jnp.asarray(u))), q12, q11, q22, (*KINKS, *passed))


@pytest.mark.slow  # test_every_activation has some of them in the fast suite
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nngp_and_ntk_are_those_of_the_function(name, x64):
    function = FUNCTIONS[name]
    network = unlazy.MLP(1, function, 1.1, 0.3, scale_input=False)
    steps = name == "sign"  # it has no NTK
    grams = [unlazy.NNGP(network).gram(jnp.asarray(X))] if steps else unlazy.nngp_and_ntk(network, jnp.asarray(X))
    slope = jax.jit(lambda u: jax.vmap(jax.grad(function))(u.ravel()).reshape(u.shape))
    Q = 1.21 * X @ X.T + 0.09
    for i, j in ((0, 1), (0, 2), (1, 2)):
        q = Q[i, j], Q[i, i], Q[j, j]
        found = [1.21 * expected(function, *q) + 0.09]
        if not steps:
            found.append(found[0] + Q[i, j] * 1.21 * expected(slope, *q))
        # numbers of order 1; 1e-9: rounding of expansions of 128 terms and of the panels
        np.testing.assert_allclose([K[i, j] for K in grams], found, rtol=0, atol=1e-9)


def test_a_function_is_used_as_given():
    """Functions are equal only if they are the same object."""

    def own(x):
        return jnp.tanh(x)

    assert unlazy.MLP(1, own).activation.function is own
    assert unlazy.Custom(own).function is own
    assert unlazy.MLP(1, own) == unlazy.MLP(1, own) and hash(unlazy.MLP(1, own)) == hash(unlazy.MLP(1, own))
    assert unlazy.MLP(1, lambda x: jnp.tanh(x)) != unlazy.MLP(1, lambda x: jnp.tanh(x))


def test_a_function_is_compiled_once():
    traces = []

    def product(x, z):
        traces.append(1)
        return jnp.vdot(x, z)

    unlazy.Custom(product).gram(X)
    count = len(traces)
    unlazy.Custom(product).gram(X)
    assert len(traces) == count
