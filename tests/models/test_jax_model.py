"""Derivatives of JAX networks against differences in float64, and layers found in their programs."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.models import Model, as_model
from unlazy.models.jax_model import COMPILE

M = 5
H = 1e-4
DIFFERENCES = 1e-8
"""(h ‖v‖)⁴ = 5e-12 for directions of norm 15, times the fifth derivative, some hundred times the first; and rounding,
2e-12."""


def points(*shape):
    return np.random.default_rng(0).normal(size=(M, *shape))


def loss(outputs, targets):
    return jnp.mean(outputs**2) + 0.1 * jnp.sum(outputs**3)


def function():
    """A residual network of nested dictionaries, with a fixed array and a static entry."""

    def f(params, X):
        h = jnp.tanh(X @ params["first"]["w"] + params["first"]["b"])
        h = h + jnp.tanh(h @ params["middle"][0] * params["mask"])
        return h @ params["last"]

    draw = np.random.default_rng(1).normal
    params = {
        "first": {"w": draw(size=(3, 4)), "b": draw(size=4)}, "middle": [draw(size=(4, 4))], "mask": np.arange(4),
        "last": draw(size=(4, 2)),
    }  # fmt: skip
    return (f, params), points(3)


def equinox():
    return eqx.nn.Sequential(
        [
            eqx.nn.MLP(3, 4, 5, 2, activation=jnp.tanh, key=jax.random.key(0)),
            eqx.nn.LayerNorm(4), eqx.nn.Dropout(0.5), eqx.nn.Linear(4, 2, key=jax.random.key(1)),
        ]
    ), points(3)  # fmt: skip


def linen():
    module = pytest.importorskip("flax.linen")

    class Net(module.Module):
        @module.compact
        def __call__(self, X):
            h = module.BatchNorm(use_running_average=True)(module.Dense(5)(X))
            return module.Dense(2)(jnp.tanh(h))

    net, X = Net(), points(3)
    variables = net.init(jax.random.key(0), jnp.asarray(X))
    statistics = jax.tree.map(lambda s: s + 0.3, variables["batch_stats"])
    return (net.apply, {**variables, "batch_stats": statistics}), X


def nnx():
    module = pytest.importorskip("flax.nnx")

    class Net(module.Module):
        def __init__(self, rngs):
            self.first, self.norm = module.Linear(3, 4, rngs=rngs), module.BatchNorm(4, rngs=rngs)
            self.dropout, self.last = module.Dropout(0.5, rngs=rngs), module.Linear(4, 2, rngs=rngs)

        def __call__(self, X):
            return self.last(self.dropout(jnp.tanh(self.norm(self.first(X)))))

    return Net(module.Rngs(0)), points(3)


NETWORKS = {"function": function, "equinox": equinox, "linen": linen, "nnx": nnx}
LAYERS = {
    "function": ["first", "middle", "last"],
    "equinox": [*(f"layers[0].layers[{i}]" for i in range(3)), "layers[1]", "layers[3]"],
    "linen": ["Dense_0", "BatchNorm_0", "Dense_1"],
    "nnx": ["first", "norm", "last"],
}  # fmt: skip
"""Layers in the order of evaluation."""


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def largest(error, of):
    return np.max(np.abs(error)) / np.max(np.abs(of))


def difference(f, model, theta, v):
    at = {step: f(model.add_scaled(theta, step * H, v)) for step in (-2, -1, 1, 2)}
    return (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * H)


@pytest.mark.slow_cases("equinox")
@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_the_values(name):
    network, X = NETWORKS[name]()
    model = as_model(network, dtype="float64")
    assert isinstance(model, Model)
    theta = model.snapshot()
    v, w = (model.random_direction(theta, seed) for seed in (0, 1))
    product = model.jvp(theta, v, X)
    assert product.dtype == np.float64 and product.shape == (M, 2)
    assert largest(product - difference(lambda at: model.apply(at, X), model, theta, v), product) < DIFFERENCES

    u = np.random.default_rng(2).normal(size=product.shape)
    back = model.vjp(theta, u, X)
    assert abs(np.sum(u * product) - model.inner(v, back)) < 1e-12 * np.sum(np.abs(u * product))  # float64

    hessian = model.hvp(theta, v, X, None, loss)
    with jax.enable_x64(True):
        slope = jax.grad(lambda out: loss(out, None))

        def gradient(at):
            return flat(model.vjp(at, np.asarray(slope(jnp.asarray(model.apply(at, X)))), X))

        expected = difference(gradient, model, theta, v)
    assert largest(flat(hessian) - expected, expected) < DIFFERENCES
    symmetric = abs(model.inner(hessian, w) - model.inner(v, model.hvp(theta, w, X, None, loss)))
    assert symmetric < 1e-12 * np.sum(np.abs(flat(hessian) * flat(w)))  # float64


@pytest.mark.slow_cases("equinox")
@pytest.mark.parametrize("name", NETWORKS)
def test_single_precision_rounds_only(name):
    network, X = NETWORKS[name]()
    exact, model = as_model(network, dtype="float64"), as_model(network)
    theta = model.snapshot()
    v = model.random_direction(theta, 0)
    product = model.jvp(theta, v, X)
    assert product.dtype == np.float32
    # 6e-8 for each of fewer than 20 operations between parameters and outputs, whose factors are of order 1 to 10
    assert largest(product - exact.jvp(theta, v, X), product) < 1e-5
    assert model.derivative_error == 0


@pytest.mark.slow_cases("equinox")
@pytest.mark.parametrize("name", NETWORKS)
def test_layers(name):
    network, X = NETWORKS[name]()
    model = as_model(network)
    theta = model.snapshot()
    outputs = model.layer_outputs(theta, X)
    assert list(outputs) == LAYERS[name]
    assert all(rows.shape[0] == M for rows in outputs.values())
    # the last layer is the output; compiled together, sums may be taken in another order
    np.testing.assert_allclose(outputs[LAYERS[name][-1]], model.apply(theta, X), rtol=1e-5, atol=1e-6)
    v = model.random_direction(theta, 0)
    parts = model.layers(v)
    assert set(parts) == set(LAYERS[name])
    # J v is linear: rounding of sums of float32
    np.testing.assert_allclose(
        sum(model.jvp(theta, part, X) for part in parts.values()), model.jvp(theta, v, X), rtol=1e-4, atol=1e-5
    )
    total = sum(model.inner(part, part) for part in parts.values())
    assert abs(total - model.inner(v, v)) < 1e-12 * total  # float64


def test_layer_outputs_are_the_values_inside():
    (f, params), X = function()
    found = as_model((f, params), dtype="float64").layer_outputs(params, X)
    first = X @ params["first"]["w"] + params["first"]["b"]
    middle = np.tanh(first) @ params["middle"][0] * params["mask"]
    np.testing.assert_allclose(found["first"], first, rtol=1e-13, atol=1e-14)  # rounding of float64
    np.testing.assert_allclose(found["middle"] * params["mask"], middle, rtol=1e-13, atol=1e-14)


def test_layers_of_a_transformer():
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, t):
            x = linen.Embed(7, 4)(t)
            return linen.Dense(2)((x + linen.MultiHeadDotProductAttention(1)(linen.LayerNorm()(x))).mean(1))

    net, tokens = Net(), np.random.default_rng(0).integers(7, size=(M, 3))
    model = as_model((net.apply, net.init(jax.random.key(0), tokens)))
    shapes = {name: rows.shape for name, rows in model.layer_outputs(model.params, tokens).items()}
    attention = {f"MultiHeadDotProductAttention_0.{part}": (M, 12) for part in ("query", "key", "value", "out")}
    assert shapes == {"Embed_0": (M, 12), "LayerNorm_0": (M, 12), **attention, "Dense_0": (M, 2)}


def test_layers_inside_vmap_over_tokens_and_loops():
    """Points need not be the first axis of an operation, and a loop is one operation."""
    linear = eqx.nn.Linear(3, M, key=jax.random.key(0))  # as many outputs as points

    def f(params, X):
        h = jax.vmap(jax.vmap(params["linear"]))(X)  # over points and tokens
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, params["loop"])
        return h.mean(1)

    params = {"linear": linear, "loop": 0.1 * jnp.ones((4, M, M))}
    X = points(2, 3)
    model = as_model((f, params))
    found = model.layer_outputs(model.params, X)
    assert {name: rows.shape for name, rows in found.items()} == {"linear": (M, 2 * M), "loop": (M, 2 * M)}
    expected = X @ np.asarray(linear.weight).T + np.asarray(linear.bias)
    np.testing.assert_allclose(found["linear"], expected.reshape(M, -1), rtol=1e-5, atol=1e-6)  # float32


def test_nothing_is_compiled_twice():
    traces = []

    def f(w, X):
        traces.append(1)
        return jnp.tanh(X @ w)

    model, X = as_model((f, np.ones((3, 2)))), points(3)
    theta = model.snapshot()

    def everything(seed):
        v = model.random_direction(theta, seed)
        out = model.jvp(theta, v, X)
        model.apply(model.add_scaled(theta, 0.1, v), X)
        model.vjp(theta, out, X)
        model.hvp(theta, v, X, out, squares)
        model.layer_outputs(theta, X)
        return len(traces)

    first = everything(0)
    model.update(np.zeros((3, 2)))
    assert everything(1) == everything(2) == first


@pytest.mark.parametrize("committed", [False, True])
def test_the_gap_is_compiled_once(caplog, committed):
    """Parameters at initialization and those of a later step are alike for the compiler."""
    w, X = jnp.ones((3, 2)), points(3)
    w = jax.device_put(w, jax.devices()[0]) if committed else w
    model, step = as_model((lambda w, X: jnp.tanh(X @ w), w)), jax.jit(lambda w: 0.9 * w)
    start = model.snapshot()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        model.change(start, start, X)
        model.update(step(w))
        model.change(start, model.params, X)
    compiled = [line for line in caplog.messages if re.match(r"Compiling \S*\bchanged\b", line)]
    assert len(compiled) == 1


def test_the_expected_time_of_compilation_counts_operations():
    """1 + 2 operations a layer, and those inside functions that are compiled by themselves."""
    inner = jax.jit(lambda w, h: jnp.tanh(h @ w))

    def f(params, X):
        for w in params:
            X = inner(w, X)
        return X.sum(1, keepdims=True)

    for layers in (2, 8):
        model = as_model((f, [jnp.ones((3, 3))] * layers))
        assert model.startup == 0  # not known before the inputs are
        model.check_inputs(points(3))
        operations = (model.startup / COMPILE) ** 2
        assert 2 * layers < operations < 2 * layers + 5  # sum, and what shapes the outputs
        model.change(model.params, model.params, points(3))
        assert model.startup == 0


def squares(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


def test_update_takes_the_parameters_alone():
    network, X = linen()
    apply, variables = network
    model = as_model((apply, variables))
    before = model.snapshot()
    later = jax.tree.map(lambda leaf: 2 * leaf, variables)  # statistics too
    model.update(later)
    kept = {**later, "batch_stats": variables["batch_stats"]}
    np.testing.assert_allclose(model.apply(model.params, X), apply(kept, X), rtol=1e-5, atol=1e-6)  # float32
    np.testing.assert_allclose(model.apply(before, X), apply(variables, X), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="update needs parameters of the same structure and shapes"):
        model.update({"params": {"other": jnp.ones(3)}})


def test_snapshots_outlive_donated_parameters():
    step = jax.jit(lambda w: 2 * w, donate_argnums=0)
    w = jnp.ones((3, 2))
    model, X = as_model((lambda w, X: X @ w, w)), points(3)
    kept, on_host = model.snapshot(), model.snapshot(on_host=True)
    later = step(w)
    if w.is_deleted():  # a backend may keep the buffer
        with pytest.raises(ValueError, match=r"donated to a later step: pass the new ones to update\(params\)"):
            _ = model.params
    model.update(later)
    assert isinstance(on_host, np.ndarray)
    np.testing.assert_array_equal(model.apply(kept, X), model.apply(on_host, X))
    np.testing.assert_allclose(model.apply(model.params, X), 2 * model.apply(kept, X), rtol=1e-6)  # float32


def test_an_nnx_module_is_read_as_it_is_and_stays_as_it_was():
    network, X = nnx()
    module = pytest.importorskip("flax.nnx")
    before = jax.tree.map(np.array, module.state(network, module.Not(module.RngState)))
    count = network.dropout.rngs.count[...]
    model = as_model(network, dtype="float64")
    fresh = model.apply(model.params, X)
    model.fix_statistics(X)
    with jax.enable_x64(True):
        theta = jax.tree.map(np.asarray, model.params)
        h = X @ np.float64(network.first.kernel[...]) + np.float64(network.first.bias[...])
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
        expected = np.tanh(h) @ np.float64(network.last.kernel[...]) + np.float64(network.last.bias[...])
    # float64, in which the module takes the mean of squares
    np.testing.assert_allclose(model.apply(theta, X), expected, rtol=1e-10, atol=1e-10)
    assert not np.allclose(fresh, expected, atol=1e-2)
    after = jax.tree.map(np.array, module.state(network, module.Not(module.RngState)))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert network.dropout.rngs.count[...] == count and not network.dropout.deterministic
    network.last.bias[...] = network.last.bias[...] + 1.0
    np.testing.assert_allclose(model.apply(model.params, X), model.apply(theta, X) + 1, rtol=1e-6)  # float32 bias
    with pytest.raises(ValueError, match="read as it is at every call"):
        model.update(theta)


def test_inputs_and_outputs_of_any_form():
    params = {"w": jnp.ones((3, 2)), "steps": 3}

    def f(params, X):
        return {"hidden": X["x"], "logits": X["x"] @ params["w"] * X["scale"]}

    model = as_model((f, params))
    X = {"x": points(3), "scale": np.full((M, 1), 2.0)}
    np.testing.assert_allclose(model.apply(model.params, X), 2 * X["x"] @ np.ones((3, 2)), rtol=1e-5, atol=1e-6)
    chosen = as_model((f, params), output=lambda out: out["hidden"])
    assert chosen.apply(chosen.params, X).shape == (M, 3)
    pair = as_model(TwoInputs(jnp.ones(3)))
    assert pair.apply(pair.params, (points(3), points(3))).shape == (M, 1)


class TwoInputs(eqx.Module):
    w: jax.Array

    def __call__(self, x, z):
        return jnp.sum(self.w * x * z)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda w, X: (X @ w, X), r"returns a tuple: say which array is its output.*out\[0\]"),
        (lambda w, X: jnp.sum(X @ w), "returns one number, not a row per point"),
        (lambda w, X: jnp.argmax(X @ w, 1), "returns int32: pass output= with real outputs"),
    ],
    ids=["tuple", "loss", "integers"],
)
def test_outputs_that_cannot_be_measured(network, message):
    model = as_model((network, jnp.ones((3, 2))))
    with pytest.raises(ValueError, match=message):
        model.apply(model.params, points(3))
