"""Expansions around the start: exact for polynomials in θ, error of the right order else; closed-form training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.networks import Network, linearize, quadratic_expansion, tangent_kernel, trained_linearization
from unlazy.theory.infinite_width.architecture import MLP

EPS = np.finfo(float).eps


@pytest.fixture
def X(x64):
    return jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))


def build(c=1):
    network = Network(MLP(2, "tanh", 1.3, 0.4, width=6, outputs=c), 3)
    return network, network.init(jax.random.key(0))


@pytest.mark.slow_cases("linearize-1")
@pytest.mark.parametrize("expand, order", [(linearize, 1), (quadratic_expansion, 2)])
def test_error_has_the_order_after_the_last_term(X, expand, order):
    """|f(θ_0 + tδ) - expansion| ~ t^{order+1}: halving t divides it by 2^{order+1}, up to O(t)."""
    network, start = build()
    move = network.init(jax.random.key(9))
    model = expand(network, start)
    errors = []
    both = jax.jit(lambda p: (network(p, X), model(p, X)))
    for t in (2e-2, 1e-2):
        exact, expanded = both(jax.tree.map(lambda p, m, t=t: np.asarray(p) + t * np.asarray(m), start, move))
        errors.append(np.abs(np.asarray(exact) - np.asarray(expanded)).max())
    assert abs(np.log2(errors[0] / errors[1]) - (order + 1)) < 0.2
    # the same sums of 3, 6 and 6 terms, differentiated or not, in whatever order a device takes
    np.testing.assert_allclose(model(start, X), network(start, X), rtol=0, atol=2 * (3 + 6 + 6) * EPS)


def test_quadratic_expansion_is_exact_for_a_quadratic_function(X):
    """f = θ₁θ₂ x is its own second-order expansion."""

    def apply(params, x):
        return params[0] * params[1] * x[:, 0]

    start, end = (jnp.array(1.0), jnp.array(-2.0)), (jnp.array(0.3), jnp.array(4.0))
    found = quadratic_expansion(apply, start)(end, X)
    np.testing.assert_allclose(found, apply(end, X), atol=20 * EPS)


@pytest.mark.slow
def test_the_tangent_kernel_of_the_linearization_never_moves(X):
    network, start = build()
    model, moved = linearize(network, start), network.init(jax.random.key(9))
    K = tangent_kernel(network, start, X)
    found = tangent_kernel(model, moved, X)
    np.testing.assert_allclose(found, K, atol=300 * EPS * float(K.max()))


@pytest.mark.slow
@pytest.mark.parametrize("c", [1, 2])
def test_closed_form_parameters_equal_gradient_descent(X, c):
    """θ after s steps on ½Σ(f_lin - y)² in closed form [K3] against the steps themselves, layer-wise rates included."""
    network, start = build(c)
    model = linearize(network, start)
    y = jax.random.normal(jax.random.key(5), (5,) if c == 1 else (5, c))
    rates = (1.0, 0.5, 2.0)
    K = tangent_kernel(network, start, X, rates=rates).reshape(5 * c, 5 * c)
    eta, steps = 1 / float(jnp.linalg.eigvalsh(K)[-1]), 40
    gradient = jax.jit(jax.grad(lambda p: 0.5 * jnp.sum((model(p, X) - y) ** 2)))
    params = start
    for _ in range(steps):
        params = tuple(
            jax.tree.map(lambda p, g, r=r: p - eta * r * g, a, b) for a, b, r in zip(params, gradient(params), rates)
        )
    closed = trained_linearization(network, start, X, y, step_size=eta, steps=steps, rates=rates)
    # each of 40 steps adds rounding of a sum of about 60 products of size 1
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(closed)):
        np.testing.assert_allclose(a, b, rtol=0, atol=40 * 60 * EPS)


@pytest.mark.slow
def test_trained_to_the_end_interpolates(X):
    network, start = build()
    y = jnp.arange(5.0)
    end = trained_linearization(network, start, X, y, time=float("inf"))
    K = tangent_kernel(network, start, X)
    # residual of a solve: condition of K times rounding
    allowed = 50 * EPS * float(jnp.linalg.cond(K)) * 4
    np.testing.assert_allclose(linearize(network, start)(end, X), y, rtol=0, atol=allowed)


def test_only_one_training_mode_at_a_time(X):
    network, start = build()
    with pytest.raises(ValueError, match="either time, or step_size and steps"):
        trained_linearization(network, start, X, jnp.arange(5.0), time=1.0, step_size=0.1, steps=3)
