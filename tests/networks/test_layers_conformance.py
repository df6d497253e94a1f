"""Every layer: its infinite kernel against sampled finite networks, and requirements of every kernel.

A new layer is one line in LAYERS.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import NTK, Network
from unlazy.kernels.networks.infinite_width import NNGP, nngp_and_ntk
from unlazy.layers import (
    Activation,
    Aggregate,
    AvgPool,
    Concatenate,
    Conv,
    ConvLocal,
    ConvTranspose,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalSumPool,
    ImageResize,
    Index,
    LayerNorm,
    Product,
    SelfAttention,
    Sum,
    SumPool,
    residual,
    serial,
)  # fmt: skip
from unlazy.layers import conv as finite_weights
from unlazy.networks import tangent_kernel

POINTS, WIDTH, DRAWS = 3, 96, 48
IMAGE, LINE, ROW = (4, 4, 2), (5, 3), (6,)
conv = functools.partial(Conv, sigma_w=1.3, sigma_b=0.2)
END = (GlobalAvgPool(), Dense(1.1, 0.1))
LAYERS = {
    "dense": ((Dense(1.2, 0.3), LayerNorm(), "erf", Dense()), ROW),
    "conv same": ((conv(3), "relu", Flatten(), Dense()), IMAGE),
    "conv valid, global pool": ((conv(2, padding="valid"), "relu", *END), IMAGE),
    "conv circular": ((conv(3, padding="circular"), "gelu", *END), IMAGE),
    "conv strided and dilated": ((conv(2, strides=2), "relu", conv(2, dilation=2), "relu", *END), IMAGE),
    "conv of one axis": ((conv(3), "sin", GlobalSumPool(), Dense(0.5)), LINE),
    "local": ((ConvLocal(3, 1.2, 0.3), "relu", *END), IMAGE),
    "transposed": ((ConvTranspose(3, 1.2, 0.3, strides=2), "relu", *END), (3, 3, 2)),
    "transposed circular": ((ConvTranspose(3, 1.2, 0.3, strides=2, padding="circular"), "relu", *END), (3, 2)),
    "transposed valid": ((ConvTranspose(2, 1.2, 0.3, strides=2, padding="valid"), "erf", *END), (3, 2)),
    "average pool": ((conv(3), "relu", AvgPool(2), Flatten(), Dense()), IMAGE),
    "overlapping sums": ((conv(3), "relu", SumPool(3, 1, "same"), Flatten(), Dense(0.5)), IMAGE),
    "normalized over all": ((conv(3), LayerNorm("all"), "relu", *END), IMAGE),
    "dropout": ((Dense(1.2, 0.3), "relu", Dropout(0.7), Dense(1.1, 0.2), "relu", Dense()), ROW),
    "residual": ((conv(3), residual("relu", conv(3)), "relu", *END), LINE),
    "sum": ((Sum((conv(3), "relu", conv(3)), conv(1)), "relu", *END), LINE),
    "product": ((Dense(), Product(("relu", Dense(1.2, 0.3)), ("erf", Dense(1.1, 0.2))), Dense()), ROW),
    "concatenated": ((Dense(), Concatenate(("relu", Dense(1.2, 0.3)), ("erf", Dense(0.6))), Dense()), ROW),
    "attention": ((Dense(1.2, 0.3), "relu", SelfAttention(1.2, 1.1, 0.2), *END), LINE),
    "attention with positions": ((Dense(), SelfAttention(weighing="identity", sigma_position=0.5), *END), LINE),
    "graph": ((Dense(1.2, 0.3), "relu", Aggregate(), Dense(1.1, 0.2), "relu", *END), LINE),
    "resized": ((conv(3), "relu", ImageResize((3, 6)), *END), IMAGE),
    "index": ((conv(3), "relu", Index(slice(1, 4, 2), 2), Flatten(), Dense()), IMAGE),
    "any function": ((conv(3), Activation(lambda x: x * jnp.exp(-x * x)), Flatten(), Dense()), IMAGE),
}  # fmt: skip


def points(name, n=POINTS, seed=0):
    layers, shape = LAYERS[name]
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, *shape))
    if not any(isinstance(layer, Aggregate) for layer in layers):
        return X
    return X, np.maximum(rng.integers(0, 2, size=(n, shape[0], shape[0])), np.eye(shape[0]))


def nodes(X):
    return X[0] if isinstance(X, tuple) else X


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_finite_networks_approach_the_kernels(name, x64):
    """Means over draws within five standard errors, and 4/width for what a finite width is off by; scores of attention
    are means over the width themselves, whose errors add up over 5 tokens.

    Each of the two kernels has six entries: at five standard errors of 48 draws one in 10^5 fails by chance.
    """
    layers, shape = LAYERS[name]
    X, description = points(name), serial(*layers)
    network = Network(description, shape, width=WIDTH, outputs=8)

    def sampled(key):
        params = network.init(key)
        f = network(params, X)
        kernel = tangent_kernel(network, params, X, outputs="trace")
        return f @ f.T / 8, kernel / 8

    def sampled_twice(key):
        """Two evaluations with masks of their own: products of their values and of their Jacobians."""
        start, *masks = jax.random.split(key, 3)
        params = network.init(start)

        def values(params, key):
            # one point at a time: its masks on the left are independent of those of any point on the right
            return jnp.stack([network(params, x[None], key=key)[0] for x in X])

        f, g = (values(params, key) for key in masks)
        left, right = (jax.tree.leaves(jax.jacobian(values)(params, key)) for key in masks)
        kernel = sum(
            jnp.einsum("iok,jok->ij", a.reshape(*f.shape, -1), b.reshape(*f.shape, -1)) for a, b in zip(left, right)
        )
        return f @ g.T / 8, kernel / 8

    found = jax.lax.map(sampled_twice if "dropout" in name else sampled, jax.random.split(jax.random.key(0), DRAWS))
    for K, values in zip(nngp_and_ntk(description, X), map(np.asarray, found)):
        K = np.asarray(K)
        error = values.std(0, ddof=1) / np.sqrt(DRAWS)
        scale = np.sqrt(np.outer(np.diag(K), np.diag(K)))
        allowed = 5 * error + (20 if "attention" in name else 4) / WIDTH * scale
        assert np.all(np.abs(values.mean(0) - K) <= allowed), name


@pytest.mark.slow
def test_mask_variance_is_that_of_a_single_evaluation(x64):
    """E f(x, mask)² is k(x, x) and the mask variance; tolerances as above."""
    layers, shape = LAYERS["dropout"]
    X, description = points("dropout"), serial(*layers)
    network = Network(description, shape, width=WIDTH, outputs=8)

    def sampled(key):
        one, two = jax.random.split(key)
        return jnp.mean(network(network.init(one), X, key=two) ** 2, 1)

    values = np.asarray(jax.lax.map(sampled, jax.random.split(jax.random.key(0), 32 * DRAWS)))
    kernel = NNGP(description)
    total = np.asarray(kernel.diag(X) + kernel.mask_variance(X))
    allowed = 5 * values.std(0, ddof=1) / np.sqrt(32 * DRAWS) + 4 / WIDTH * total
    assert np.all(np.abs(values.mean(0) - total) <= allowed)
    assert np.all(kernel.mask_variance(X) > 1.5 * allowed)  # the test can tell it from none


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_requirements_of_every_kernel(name, x64):
    """Symmetric, positive to rounding, the same inside jit, differentiable in points and weights, like float32's."""
    layers, _ = LAYERS[name]
    X, Z, kernel = points(name), points(name, seed=1), NTK(serial(*layers))
    K = np.asarray(kernel.gram(X))
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diag(K), kernel.diag(X))
    assert np.linalg.eigvalsh(K)[0] > -1e-13 * np.trace(K)  # 3 × 3, each entry good to some hundred roundings

    size = np.abs(K).max()  # third derivatives of the sine of something large would drown the differences

    def total(kernel, X):
        K = kernel.gram(X, Z)
        return jnp.sum(jnp.sin(K / size)), K

    direction = np.random.default_rng(2).normal(size=nodes(X).shape)

    def moved(step):
        return (nodes(X) + step * direction, X[1]) if isinstance(X, tuple) else X + step * direction

    # central differences of step h are off by h² and by rounding/h: 1e-5 leaves 1e-10 and 1e-11 of values near 10
    slope = (total(kernel, moved(1e-5))[0] - total(kernel, moved(-1e-5))[0]) / 2e-5
    derivatives = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (_, inside), (weights, gradient) = derivatives(kernel, jax.tree.map(jnp.asarray, X))
    np.testing.assert_allclose(inside, kernel.gram(X, Z), rtol=1e-13)
    np.testing.assert_allclose(np.vdot(nodes(gradient), direction), slope, rtol=1e-6, atol=1e-7)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_float32_near_the_diagonal(name):
    """Points 1e-3 apart: u = 1 - cos is near 5e-7 and known to 20 roundings of float32, so that its root, the angle,
    is off by 20·6e-8/1e-3 = 1.2e-3, and a kinked kernel by that over π for each of three layers."""
    layers, _ = LAYERS[name]
    X, kernel = points(name), NTK(serial(*layers))
    near = (nodes(X) + 1e-3 * np.random.default_rng(3).normal(size=nodes(X).shape)).astype(np.float32)
    pair = [nodes(X).astype(np.float32), near]
    if isinstance(X, tuple):
        pair = [(x, X[1]) for x in pair]
    K = np.asarray(kernel.gram(*pair))
    with jax.enable_x64(True):
        exact = np.asarray(kernel.gram(*jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), pair)))
        size = np.sqrt(np.outer(kernel.diag(X), kernel.diag(X)))
    assert np.max(np.abs(K - exact) / size) < 3 * 1.2e-3 / np.pi


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in LAYERS if "conv" in n or "transposed" in n])
def test_unfolded_windows_give_the_convolution(name, x64, monkeypatch):
    """The same sums of at most 9 · 96 products of order one, over roots of their number: hundreds of roundings."""
    layers, shape = LAYERS[name]
    network, X = Network(serial(*layers), shape, width=WIDTH), points(name)
    params = network.init(jax.random.key(0))
    found = network(params, X)
    monkeypatch.setattr(finite_weights, "IN_WINDOWS", 0)
    plain = network(params, X)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-13 * np.abs(plain).max())
