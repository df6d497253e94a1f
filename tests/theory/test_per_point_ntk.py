"""Blocks with per-point precomputation: the same kernels as entry by entry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from oracles_networks import Function, tangent_kernel
from unlazy.theory.activations import chebyshev_interpolation, duals, mehler, numeric_duals
from unlazy.theory.activations.functions import activation
from unlazy.theory.infinite_width import fully_connected, per_point_ntk
from unlazy.theory.infinite_width.architecture import MLP

NETWORKS = {
    "relu": MLP(3, "relu", np.linspace(1.0, 1.45, 4), np.linspace(0.1, 0.3, 4)),
    "leaky_relu": MLP(3, "leaky_relu", 1.3, 0.2, residual=0.7),
    "gelu": MLP(2, "gelu", 1.3, 0.3, residual=0.5),
    "tanh": MLP(2, "tanh", 0.9, 0.3),
}
WEIGHTS = {2: (1.0, 0.5, 2.0), 3: (1.0, 2.0, 0.5, 1.5)}


def _points(n, m):
    """Norms up to 1 or so, two points alike, two opposite, one nearly another."""
    rng = np.random.default_rng(1)
    X, Z = (rng.normal(size=(k, 5)) * rng.uniform(0.3, 1, (k, 1)) / np.sqrt(5) for k in (n, m))
    Z[0], Z[1], Z[2] = X[0], -X[1], X[2] * (1 + 1e-7)
    return jnp.asarray(X), jnp.asarray(Z)


def _products(X, Z):
    return X @ Z.T, jnp.sum(X * X, 1)[:, None], jnp.sum(Z * Z, 1)[None]


def _by_rows(network, weights, X, Z):
    products = _products(X, Z)
    sides = [per_point_ntk.per_point_terms(jnp.sum(P * P, 1), network, weights is not None) for P in (X, Z)]
    return per_point_ntk.nngp_and_tangent(products, *sides, network, weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_equals_entry_by_entry_evaluation(name, x64):
    network = NETWORKS[name]
    weights = WEIGHTS[network.depth]
    X, Z = _points(140, 7)  # so many that tanh's series are interpolated, 32 nodes
    ours = jax.jit(functools.partial(_by_rows, network, weights))(X, Z)
    assert per_point_ntk.is_supported(network)
    entry = jax.jit(lambda X, Z: fully_connected.nngp_and_tangent(*_products(X, Z), network, weights))(X, Z)
    # the same sums in another order, some hundred roundings; at the nearly equal pair u itself is only good to 1e-16,
    # its root, which the kinked ones see, to 1e-8
    for found, expected in zip(ours, entry):
        scale = float(jnp.max(jnp.abs(expected)))
        off = np.abs(np.asarray(found - expected)) / scale
        assert np.delete(off, 2, 1).max() < 1e-13
        assert off.max() < (3e-8 if "relu" in name else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_gradients_are_those_of_the_entries(name, x64):
    network = NETWORKS[name]
    X, Z = _points(5, 4)
    Z = Z.at[:3].add(0.1)  # kinked kernels have no gradient at coincident points

    def summed(of):
        return jax.jit(jax.grad(lambda X, Z: jnp.sum(jnp.sin(of(X, Z)[1])), (0, 1)))

    weights = WEIGHTS[network.depth]
    ours = summed(functools.partial(_by_rows, network, weights))(X, Z)
    theirs = summed(lambda X, Z: fully_connected.nngp_and_tangent(*_products(X, Z), network, weights))(X, Z)
    for found, expected in zip(ours, theirs):
        # tanh: the loops end where 1e-17 of the value is left, of derivatives that is 1e-15 with 128 terms
        np.testing.assert_allclose(found, expected, atol=1e-12 * float(jnp.max(jnp.abs(expected))))


@pytest.mark.slow
def test_interpolation_in_the_norm_is_accurate_or_not_used(x64):
    phi = activation("softplus")
    of = functools.partial(mehler._columns, phi, True)
    for spread in (7.9, 30.0):
        roots = jnp.geomspace(0.5, 0.5 * spread, 200)
        found, expected = jax.jit(functools.partial(chebyshev_interpolation.interpolate, of))(roots), jax.jit(of)(roots)
        for a, b in zip(found, expected):
            size = np.sqrt(np.asarray(expected[1][:, :1])) if a is found[0] else np.asarray(b)
            # 4 units are read off the last of 32 coefficients, which sum up
            assert np.abs(np.asarray(a - b) / size).max() < 64 * 2.2e-16
    zero = jax.jit(functools.partial(chebyshev_interpolation.interpolate, of))(jnp.linspace(0, 1, 200))
    np.testing.assert_allclose(zero[1][0], [np.log(2) ** 2, 0.25], rtol=1e-12)


@pytest.mark.slow
def test_interpolation_is_rejected_if_it_does_not_converge():
    # the sine of 40 x has E φ² = (1 - exp(-3200 s²))/2, flat but for s near 0: 16 nodes over a factor 7 do not see it
    of = functools.partial(mehler._squares, activation("sin", 40.0), False)
    roots = jnp.geomspace(0.004, 0.028, 100).astype(jnp.float32)
    np.testing.assert_allclose(chebyshev_interpolation.interpolate(of, roots)[1], of(roots)[1], rtol=2e-6)


def test_gelu_of_huge_variances_is_relu():
    # E φφ of GELU and of ReLU differ by 1/q relative, and nothing on the way is as large as Σ²
    q11, q22, q12 = jnp.float32(1e36), jnp.float32(4e36), jnp.float32(1e36)
    gelu, relu = activation("gelu"), activation("relu")
    np.testing.assert_allclose(duals.dual(q12, q11, q22, gelu), duals.dual(q12, q11, q22, relu), rtol=1e-6)
    np.testing.assert_allclose(
        duals.dual_derivative(q12, q11, q22, gelu), duals.dual_derivative(q12, q11, q22, relu), rtol=1e-6
    )


def test_mean_square_is_the_dual_of_equal_points():
    q = jnp.asarray([0.3, 1.0, 3.0])
    for derivative, formula in ((False, duals.dual), (True, duals.dual_derivative)):
        own = numeric_duals.mean_square(activation("tanh"), jnp.sqrt(q), derivative)
        np.testing.assert_allclose(own, formula(q, q, q, activation("tanh")), rtol=64 * 2.0**-24)


@pytest.mark.slow
@pytest.mark.parametrize("name, phi", [
    ("relu", Function(lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), (0.0,))),
    ("gelu", Function(lambda x: x * ndtr(x), lambda x: ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))),
])  # fmt: skip
def test_blocks_against_quadrature(name, phi, x64):
    """Σ alone, and Σ with the tangent kernel weighted differently for weights and biases, with skips."""
    sigma_w, sigma_b = (1.1, 1.3, 0.9), (0.3, 0.2, 0.4)
    network = MLP(2, name, sigma_w, sigma_b, residual=0.5)
    weights, bias_weights = (1.0, 0.5, 2.0), (0.3, 1.5, 0.7)
    X, Z = (np.random.default_rng(k).normal(size=(k, 3)) / np.sqrt(3) for k in (2, 3))
    products = [jnp.asarray(v) for v in (X @ Z.T, np.sum(X * X, 1)[:, None], np.sum(Z * Z, 1)[None])]

    @functools.partial(jax.jit, static_argnums=0)
    def by_rows(tangent):
        sides = [per_point_ntk.per_point_terms(jnp.asarray(np.sum(P * P, 1)), network, tangent) for P in (X, Z)]
        given = (weights, bias_weights) if tangent else (None,)
        return per_point_ntk.nngp_and_tangent(tuple(products), *sides, network, *given)

    (sigma, theta), (alone, none) = by_rows(True), by_rows(False)
    for i, j in np.ndindex(2, 3):
        pair = float(X[i] @ Z[j]), float(X[i] @ X[i]), float(Z[j] @ Z[j])
        wanted = tangent_kernel(phi, pair, sigma_w, sigma_b, 0.5, weights, bias_weights)
        # the quadrature is off by 2e-11 where it is worst
        np.testing.assert_allclose([sigma[i, j], theta[i, j]], wanted, rtol=1e-9)
        np.testing.assert_allclose(alone[i, j], wanted[0], rtol=1e-9)
    assert none.shape == (2, 3) and not np.any(none)


@pytest.mark.parametrize("name", ["gelu", "erf", "tanh"])
def test_the_number_of_values_per_point_is_about_that_of_the_terms(name):
    phi = activation(name)
    terms = jax.eval_shape(lambda q: duals.per_point_terms(phi, q, True)[1], jnp.ones(5))
    values = sum(leaf.size for leaf in jax.tree.leaves(terms)) / 5
    assert 0.9 * values < duals.per_point_term_count(phi) < 1.4 * values
