"""Tangent kernels: layer structure against Jacobians, blocks against one piece, products without the matrix."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.layers.protocol.parametrization import PARAMETRIZATIONS
from unlazy.networks import Network, layer_tangent_kernels, only_layers, tangent_kernel, tangent_product
from unlazy.theory.activations.functions import ACTIVATIONS
from unlazy.theory.infinite_width.architecture import MLP

D, N, M = 3, 5, 4
X = np.random.default_rng(0).normal(size=(N, D))
Z = np.random.default_rng(1).normal(size=(M, D))
EPS = np.finfo(float).eps


def build(c=1, depth=3, name="tanh", parametrization="ntk", residual=0.7):
    mlp = MLP(depth, name, 1.3, 0.4, residual=residual, width=6, outputs=c)
    network = Network(mlp, D, parametrization, output_scale=1.5)
    return network, network.init(jax.random.key(0))


def numpy_oracle(apply, params, A, B):
    """J(A) J(B)ᵀ as (n, c, m, c) from dense Jacobians of the flattened parameters."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def rows(x):
        J = np.asarray(jax.jacfwd(lambda t: apply(unravel(t), jnp.asarray(x)).reshape(len(x), -1))(flat))
        return J

    return np.einsum("icp,jkp->icjk", rows(A), rows(B))


@pytest.mark.slow_cases("2-diagonal", "2-full", "2-trace")
@pytest.mark.parametrize("outputs", ["full", "trace", "diagonal"])
@pytest.mark.parametrize("c", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_structure_equals_the_jacobian_product(x64, c, outputs):
    network, params = build(c)
    for B in (None, jnp.asarray(Z)):
        whole = numpy_oracle(network, params, X, X if B is None else Z)
        expected = {
            "full": whole if c > 1 else whole[:, 0, :, 0],
            "trace": np.einsum("icjc->ij", whole),
            "diagonal": np.einsum("icjc->ijc", whole) if c > 1 else whole[:, 0, :, 0],
        }[outputs]
        for apply in (network, lambda p, x: network(p, x)):  # by layers, then by rows of the Jacobian
            found = tangent_kernel(apply, params, jnp.asarray(X), B, outputs=outputs)
            # sums of about 100 products through 4 layers: a few hundred units of rounding of the largest entry
            np.testing.assert_allclose(found, expected, rtol=0, atol=300 * EPS * np.abs(expected).max())


@pytest.mark.slow_cases(
    "relu-ntk", "relu-standard", "softplus-ntk", "sigmoid-ntk", "truncated_relu-ntk", "hermite-ntk", "leaky_relu-ntk"
)
@pytest.mark.parametrize(
    "name, parametrization",
    [
        pytest.param(a, p, marks=[] if p == "ntk" or a in ("relu", "tanh") else pytest.mark.slow)
        for a in ACTIVATIONS
        for p in PARAMETRIZATIONS
    ],
)
def test_layers_one_by_one_for_every_activation_and_parametrization(x64, name, parametrization):
    network, params = build(1, 2, name, parametrization, 0.0)
    by_layers, by_rows = jax.jit(
        lambda p, x: [
            layer_tangent_kernels(apply, p, x, rates=network.rates) for apply in (network, lambda p, x: network(p, x))
        ]
    )(params, X)
    assert len(by_layers) == len(by_rows) == 3
    for a, b in zip(by_layers, by_rows):
        assert a.shape == (N, N)
        np.testing.assert_allclose(a, b, rtol=0, atol=300 * EPS * np.abs(b).max())


@pytest.mark.slow
def test_two_layer_kernels_are_the_sums_of_l1(x64):
    """K_1 = Σ a_j² σ'(w_j·x)σ'(w_j·z)⟨x,z⟩, K_2 = Σ σ(w_j·x)σ(w_j·z) [L1] in NumPy."""
    network = Network(MLP(1, "relu", 1.0, 0.0, width=6, scale_input=False), D, "standard")
    params = network.init(jax.random.key(3))
    W, a = np.asarray(params[0].weight), np.asarray(params[1].weight)[:, 0]
    pre, pre_z = X @ W, Z @ W
    K1 = ((pre > 0) * a**2) @ (pre_z > 0).T * (X @ Z.T)
    K2 = np.maximum(pre, 0) @ np.maximum(pre_z, 0).T
    weights_only = tuple(layer._replace(weight=1.0, bias=0.0) for layer in params)
    found = layer_tangent_kernels(network, params, jnp.asarray(X), jnp.asarray(Z), rates=weights_only)
    np.testing.assert_allclose(found[0], K1, rtol=0, atol=50 * EPS * np.abs(K1).max())
    np.testing.assert_allclose(found[1], K2, rtol=0, atol=50 * EPS * np.abs(K2).max())


@pytest.mark.slow
def test_fragmented_memory_does_not_change_the_budget(x64, monkeypatch):
    """A budget of two Jacobian rows forces blocks; values agree to rounding (sums in another order)."""
    network, params = build(2)

    def free(p, x):
        return network(p, x)

    for outputs in ("full", "trace", "diagonal"):
        whole = layer_tangent_kernels(free, params, jnp.asarray(X), jnp.asarray(Z), outputs=outputs)
        with monkeypatch.context() as patch:
            patch.setenv("UNLAZY_MEMORY", str(2 * 3 * 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(params))))
            blocks = layer_tangent_kernels(free, params, jnp.asarray(X), jnp.asarray(Z), outputs=outputs)
        for a, b in zip(whole, blocks):
            np.testing.assert_allclose(a, b, rtol=0, atol=100 * EPS * float(jnp.abs(a).max()))


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("c", [1, 2])
def test_product_without_the_matrix(x64, c):
    network, params = build(c)
    K = jax.jit(lambda p, x, z: tangent_kernel(network, p, x, z, rates=network.rates))(params, X, Z)
    V = np.random.default_rng(4).normal(size=(M,) if c == 1 else (M, c))
    found = jax.jit(lambda p, x, v, z: tangent_product(network, p, x, v, z, rates=network.rates))(params, X, V, Z)
    expected = np.asarray(K) @ V if c == 1 else np.einsum("icjk,jk->ic", K, V)
    np.testing.assert_allclose(found, expected, rtol=0, atol=500 * EPS * (np.abs(expected).max() + 1))


def test_any_function_of_parameters_and_inputs(x64):
    """A function with parameters in a dictionary: linear in θ, so its kernel is known."""

    def apply(params, x):
        return params["slope"] * x[:, 0] + params["square"] * x[:, 1] ** 2

    params = {"slope": jnp.array(2.0), "square": jnp.array(-1.0)}
    parts = layer_tangent_kernels(apply, params, jnp.asarray(X))
    np.testing.assert_allclose(parts[0], np.outer(X[:, 0], X[:, 0]), atol=10 * EPS)
    np.testing.assert_allclose(parts[1], np.outer(X[:, 1] ** 2, X[:, 1] ** 2), atol=50 * EPS)
    first = tangent_kernel(apply, params, jnp.asarray(X), rates=only_layers(params, [0]))
    np.testing.assert_allclose(first, parts[0], atol=10 * EPS)


def test_only_the_head_is_random_features(x64):
    """Rates zero below the head leave K_2 = φ(x)·φ(z)/w + σ_b² [K4]."""
    network, params = build(1, depth=2)
    head = tangent_kernel(network, params, jnp.asarray(X), rates=only_layers(params, [-1]))
    H = network.hidden(params, jnp.asarray(X))
    expected = 1.5**2 * (1.3**2 * H @ H.T / 6 + 0.4**2)
    np.testing.assert_allclose(head, expected, atol=100 * EPS)
    with pytest.raises(ValueError, match=r"0 … 2"):
        only_layers(params, [3])
    with pytest.raises(ValueError, match="did you mean 'diagonal'"):
        tangent_kernel(network, params, jnp.asarray(X), outputs="diag")


def test_float32_agrees_with_float64(x64):
    """float32 inputs: rounding 6e-8 of sums of positive size, through 4 layers."""
    network, params = build(1)
    kernel = jax.jit(lambda p, x: tangent_kernel(network, p, x))
    exact = kernel(params, X)
    single = jax.tree.map(lambda p: np.asarray(p, np.float32), params)
    found = kernel(single, np.asarray(X, np.float32))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=0, atol=100 * np.finfo(np.float32).eps * float(exact.max()))
