"""Finite networks: values against NumPy, derivatives against finite differences, initializations at zero output."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.layers.protocol.parametrization import PARAMETRIZATIONS, layer_scales
from unlazy.networks import Network
from unlazy.theory.activations.functions import ACTIVATIONS
from unlazy.theory.infinite_width.architecture import MLP

D = 3


def points(n=4, seed=7):
    return jax.random.normal(jax.random.key(seed), (n, D))


def test_values_are_the_recursion_of_k6(x64):
    """f¹ = σ_w W¹x/√d + σ_b b¹, f^l = s f^{l-1} + σ_w W^l φ(f^{l-1})/√w + σ_b b^l, written again in NumPy."""
    mlp = MLP(3, "tanh", sigma_w=(1.1, 1.2, 1.3, 1.4), sigma_b=(0.1, 0.2, 0.3, 0.4), residual=0.5, width=6, outputs=2)
    network = Network(mlp, D)
    params, X = network.init(jax.random.key(0)), points()
    h, f = np.asarray(X), None
    for l, (W, b) in enumerate(params):
        new = mlp.sigma_w[l] * h @ np.asarray(W) / math.sqrt(W.shape[0]) + mlp.sigma_b[l] * np.asarray(b)
        f = new + (0.5 * f if 0 < l < 3 else 0)
        h = np.tanh(f)
    # a handful of sums of at most 6 terms of size 1: rounding well below 100 units
    np.testing.assert_allclose(network(params, X), f, rtol=0, atol=100 * np.finfo(float).eps)
    assert network.hidden(params, X).shape == (4, 6)


@pytest.mark.slow_cases("leaky_relu-ntk", "relu-mean_field", "relu-mup", "relu-ntk", "relu-standard")
@pytest.mark.parametrize(
    "name, parametrization",
    [
        pytest.param(a, p, marks=[] if p == "ntk" or a in ("relu", "tanh") else pytest.mark.slow)
        for a in ACTIVATIONS
        for p in PARAMETRIZATIONS
    ],
)
def test_derivatives_match_finite_differences(x64, name, parametrization):
    """A directional derivative in parameters and inputs together, for every activation and parametrization.

    Central differences with steps h and 2h: their gap is three times the truncation error at h; rounding adds
    ε|f|/h per evaluation.
    """
    network = Network(MLP(2, name, 1.2, 0.3, width=4), D, parametrization, output_scale=1.5)
    params, X = network.init(jax.random.key(1)), points()
    leaves, shape = jax.tree.flatten((params, X))
    keys = jax.random.split(jax.random.key(2), len(leaves))
    move = jax.tree.unflatten(shape, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves)])

    def along(t):
        return network(*jax.tree.map(lambda a, b: a + t * b, (params, X), move))

    h = 1e-5
    exact = jax.jvp(lambda p, x: network(p, x), (params, X), move)[1]
    near, far = (along(h) - along(-h)) / (2 * h), (along(2 * h) - along(-2 * h)) / (4 * h)
    allowed = jnp.abs(far - near) + 10 * jnp.finfo(float).eps * (1 + jnp.abs(along(0.0))) / h
    assert jnp.all(jnp.abs(exact - near) <= allowed)
    if name != "step":  # its derivative is zero everywhere: nothing reaches the weights below
        assert jnp.abs(exact).max() > 100 * allowed.max()


@pytest.mark.slow_cases("1-0.0-symmetric", "1-0.0-antisymmetric")
@pytest.mark.parametrize("start", ["antisymmetric", "symmetric"])
@pytest.mark.parametrize("depth, residual", [(1, 0.0), (3, 0.0), (3, 0.7)])
def test_mirrored_initializations_give_zero(x64, start, depth, residual):
    """f_0 ≡ 0 [D3, P3] up to the rounding of w terms that cancel in pairs."""
    network = Network(MLP(depth, "relu", 1.4, 0.5, residual=residual, width=8, outputs=2), D)
    params, X = network.init(jax.random.key(3), start), points()
    assert jnp.abs(network(params, X)).max() <= 8 * 10 * jnp.finfo(float).eps
    assert jnp.abs(network.hidden(params, X)).max() > 0.1
    head = params[-1].weight
    np.testing.assert_array_equal(head[:4], -head[4:])
    if start == "symmetric":
        assert set(np.unique(np.asarray(head))) == {-1.0, 1.0}
        assert all(jnp.all(layer.bias == 0) for layer in params)


def test_standard_parametrization_agrees_in_law_with_ntk(x64):
    """The same draws give the same function: W_standard = (σ_w/√v) W_ntk."""
    mlp = MLP(2, "erf", 1.3, 0.4, width=5)
    X = points()
    a, b = Network(mlp, D, "ntk"), Network(mlp, D, "standard")
    key = jax.random.key(5)
    np.testing.assert_allclose(a(a.init(key), X), b(b.init(key), X), rtol=0, atol=100 * jnp.finfo(float).eps)


def test_output_variance_by_parametrization():
    """Var f(x) over starts: O(1) for NTK and standard, 1/w of that for mean field and µP; 4 standard errors."""
    mlp, x, draws = MLP(1, "relu", 1.0, 0.0, width=16), jnp.ones((1, D)), 2000
    found = {}
    for name in PARAMETRIZATIONS:
        network = Network(mlp, D, name)
        f = jax.vmap(lambda k, net=network: net(net.init(k), x)[0])(jax.random.split(jax.random.key(0), draws))
        found[name] = float(jnp.mean(f**2))
    # E f² = E relu(g)² = 1/2 with g ~ N(0,1). Var(f²) ≤ E f⁴ - 1/4, E f⁴ ≤ 3 E relu⁴·(…) ≤ 1.5 at w = 16
    error = 4 * math.sqrt(1.5 / draws)
    for name in ("ntk", "standard"):
        assert abs(found[name] - 0.5) < error
    for name in ("mean_field", "mup"):
        assert abs(16 * found[name] - 0.5) < error


@pytest.mark.slow
def test_mup_moves_features_by_the_same_amount_at_every_width(x64):
    """One step changes the hidden pre-activations by O(1) under mean field and µP, by O(1/√w) under NTK."""
    X, y = points(), jnp.array([1.0, -1.0, 0.5, 2.0])

    def movement(name, width):
        network = Network(MLP(2, "tanh", 1.0, 0.0, width=width), D, name)

        def of_one(key):
            params = network.init(key)
            gradient = jax.grad(lambda p: 0.5 * jnp.mean((network(p, X) - y) ** 2))(params)
            after = jax.tree.map(lambda p, r, g: p - 0.1 * r * g, params, network.rates, gradient)
            change = network.preactivations(after, X)[1] - network.preactivations(params, X)[1]
            return jnp.sqrt(jnp.mean(change**2))

        return jnp.mean(jax.jit(jax.vmap(of_one))(jax.random.split(jax.random.key(0), 8)))

    for name, power in [("mean_field", 0.0), ("mup", 0.0), ("ntk", -0.5)]:
        slope = math.log(movement(name, 512) / movement(name, 64)) / math.log(8)
        assert abs(slope - power) < 0.2, name  # corrections of order 1/√64 at the small end move a slope by 0.05


def test_misuse_raises_with_a_remedy():
    with pytest.raises(ValueError, match="needs a width"):
        Network(MLP(1), D)
    with pytest.raises(ValueError, match="did you mean 'mup'"):
        Network(MLP(1, width=4), D, "mupp")
    with pytest.raises(ValueError, match="must be even, got 5"):
        Network(MLP(1, width=5), D).init(jax.random.key(0), "symmetric")
    with pytest.raises(ValueError, match="takes 3 inputs, got rows of length 2"):
        network = Network(MLP(1, width=4), D)
        network(network.init(jax.random.key(0)), jnp.ones((2, 2)))
    assert len(layer_scales(MLP(2, width=4), D)) == 3
