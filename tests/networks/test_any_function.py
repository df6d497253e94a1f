"""Tangent kernels and linearization of functions that are not ours: Equinox modules, images, empty entries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.networks import layer_tangent_kernels, linearize, only_layers, tangent_kernel, tangent_product
from unlazy.networks import trained_linearization as trained
from unlazy.theory.finite_width import empirical_ntk as theory_jacobian

EPS = np.finfo(float).eps
N, M, D, W = 5, 4, 3, 6
X = np.random.default_rng(0).normal(size=(N, D))
Z = np.random.default_rng(1).normal(size=(M, D))
IMAGES = np.random.default_rng(2).normal(size=(N, 1, 4, 5))


def call(model, X):
    return jax.vmap(model)(X)


def ways(model):
    """The same function of a whole module, and of its arrays alone, None where something else was."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return {"module": (call, model), "arrays": (lambda theta, X: call(eqx.combine(theta, rest), X), arrays)}


@pytest.fixture
def model(x64):
    """f(x) = a·tanh(Wx + b) + c with a function, numbers and None among its leaves."""
    return eqx.nn.MLP(D, "scalar", W, 1, activation=jnp.tanh, key=jax.random.key(0))


def exact(model, X, Z):
    """Σ_θ ∂f(x) ∂f(z): h·h' + 1 from the head, (a²s s'ᵀ)(x·z + 1) from the first layer, s = tanh'; in NumPy."""
    first, head = model.layers
    A, b, a = np.asarray(first.weight), np.asarray(first.bias), np.asarray(head.weight)[0]
    H, G = np.tanh(X @ A.T + b), np.tanh(Z @ A.T + b)
    return H @ G.T + 1 + ((1 - H**2) * a) @ ((1 - G**2) * a).T * (X @ Z.T + 1)


def near(found, K):
    """Sums of W(D + 1) + W + 1 products, each within 8 roundings (tanh, its derivative, three factors)."""
    np.testing.assert_allclose(found, K, rtol=0, atol=8 * (W * (D + 2) + 1) * EPS * np.abs(K).max())


@pytest.mark.parametrize("way, memory", [("module", "4KiB"), ("arrays", "1GiB")])
def test_kernel_of_a_module(model, way, memory, monkeypatch):
    """In one piece and in blocks: a Jacobian row is 31 numbers, so that 4 KiB hold five of its three copies."""
    monkeypatch.setenv("UNLAZY_MEMORY", memory)
    apply, params = ways(model)[way]
    found = jax.jit(lambda X, Z: layer_tangent_kernels(apply, params, X, Z))(X, Z)
    near(*found, exact(model, X, Z))  # one entry has arrays: `layers`


@pytest.mark.parametrize("way", ["module", pytest.param("arrays", marks=pytest.mark.slow)])
def test_products_and_expansions_of_a_module(model, way):
    """The linearization trained to the end goes through every label: to rounding times the condition of K."""
    v, y = (np.random.default_rng(3).normal(size=size) for size in (M, N))
    apply, params = ways(model)[way]

    @jax.jit
    def compute(X, Z, v, y):
        return tangent_product(apply, params, X, v, Z), linearize(apply, params)(trained(
            apply, params, X, y, time=np.inf), X)  # fmt: skip

    product, fitted = compute(X, Z, v, y)
    near(product, exact(model, X, Z) @ v)
    slack = 100 * N * EPS * np.linalg.cond(exact(model, X, X)) * np.abs(y).max()
    assert np.abs(fitted - y).max() < slack < 1e-9


@pytest.mark.parametrize("way, memory", [("arrays", "1KiB"), pytest.param("module", "1GiB", marks=pytest.mark.slow)])
def test_kernel_of_images(x64, way, memory, monkeypatch):
    """The mean of a 3×3 convolution has the mean patch as its gradient, and 1 for the bias."""
    monkeypatch.setenv("UNLAZY_MEMORY", memory)
    apply, params = ways(eqx.nn.Conv2d(1, 1, 3, key=jax.random.key(0)))[way]
    patches = np.lib.stride_tricks.sliding_window_view(IMAGES[:, 0], (3, 3), axis=(1, 2)).reshape(N, 6, 9).mean(1)

    @jax.jit
    def compute(X, Z, rates):
        return layer_tangent_kernels(lambda theta, X: apply(theta, X).mean((1, 2, 3)), params, X, Z, rates=rates)

    weight, bias = compute(IMAGES, IMAGES[:3], only_layers(params, [0]))
    K = patches @ patches[:3].T
    np.testing.assert_allclose(weight, K, rtol=0, atol=30 * EPS * np.abs(K).max())  # 9 products of means of 6
    np.testing.assert_array_equal(bias, np.zeros((N, 3)))


def test_layers_are_entries_with_parameters(x64):
    """Empty entries, None and integers are not layers; a tree of floats is one of parameters, as for jax.grad."""

    def apply(params, X):
        return (X @ params["w"] + params["shift"]) * params["count"]

    params = {"count": 2, "empty": (), "none": None, "shift": 0.5, "w": jnp.ones(D)}
    shift, w = jax.jit(lambda X: layer_tangent_kernels(apply, params, X))(X)
    np.testing.assert_allclose(shift, np.full((N, N), 4.0), atol=8 * EPS)
    np.testing.assert_allclose(w, 4 * X @ X.T, atol=8 * D * EPS * (X**2).sum(1).max() * 4)
    assert only_layers(params, [-1])["w"] == 1.0 and only_layers(params, [-1])["shift"] == 0.0


def test_nothing_to_differentiate_raises():
    with pytest.raises(ValueError, match="nothing to differentiate"):
        tangent_kernel(lambda theta, X: X[:, 0], {"n": 3, "none": None}, jnp.ones((2, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["full", "trace", "diagonal"])
def test_kernel_of_points_with_themselves_by_halves(outputs, x64):
    """17 points: halves of 8 and 9. The same sums of 12 products, in blocks."""
    A = np.random.default_rng(0).normal(size=(17, 3, 4))
    formula = {"full": "icp,jkp->ijck", "trace": "icp,jcp->ij", "diagonal": "icp,jcp->ijc"}[outputs]
    found = theory_jacobian._contract_symmetric(jnp.asarray(A), outputs)
    np.testing.assert_allclose(found, np.einsum(formula, A, A), rtol=0, atol=1e-14 * np.abs(A).max() ** 2 * 12)
