"""Networks in JAX for the tests of the scaling check: maximal update, with one exponent wrong on request."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

BASE = 16
RATES = {
    "sgd": {"layers.0.weight": 1, "layers.0.bias": 1, "layers.1.weight": 0, "layers.1.bias": 1, "layers.2.weight": -1},
    "adam": {
        "layers.0.weight": 0,
        "layers.0.bias": 0,
        "layers.1.weight": -1,
        "layers.1.bias": 0,
        "layers.2.weight": -1,
    },
}
"""Exponents of the rates of a network with three layers [T2]."""


def data():
    X = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
    return X, np.sin(2 * X[:, :1])


def maker(wrong="", exponent=0.0):
    """Three layers; the initial values of one parameter are wrong by a power of the width."""

    def make(width, key):
        network = eqx.nn.MLP(5, 1, width, 2, key=key)
        factors = {"layers.2.weight": -0.5, wrong: exponent + (-0.5 if wrong == "layers.2.weight" else 0.0)}
        return multiplied(network, lambda name: (width / BASE) ** factors.get(name, 0.0))

    return make


def optimizer(kind, wrong="", exponent=0.0):
    """Rates of maximal update, one of them wrong by a power of the width."""

    def of(network):
        ratio = network.layers[1].weight.shape[0] / BASE
        rates = {name: ratio**e for name, e in RATES[kind].items()}
        rates[wrong] = rates.get(wrong, 1.0) * ratio**exponent
        scale = optax.GradientTransformation(
            lambda params: optax.EmptyState(),
            lambda updates, state, params=None: (multiplied(updates, lambda name: rates.get(name, 1.0)), state),
        )
        return optax.chain(optax.sgd(0.05) if kind == "sgd" else optax.adam(0.02), scale)

    return of


def multiplied(tree, factor):
    """A tree whose float arrays are multiplied by factors of their names."""

    def one(path, leaf):
        name = ".".join(str(getattr(entry, "name", getattr(entry, "idx", ""))) for entry in path)
        return factor(name) * leaf if eqx.is_inexact_array(leaf) else leaf

    return jax.tree_util.tree_map_with_path(one, tree)


def residual(width, depth, key, power=1.0):
    """Residual blocks h + L^{-power} B tanh(A h) as a pair (apply, params)."""
    keys = jax.random.split(key, 2 + 2 * depth)

    def normal(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) / jnp.sqrt(rows)

    params = {
        "into": normal(keys[0], 5, width),
        "blocks": [
            [normal(keys[2 + 2 * i], width, width), normal(keys[3 + 2 * i], width, width)] for i in range(depth)
        ],
        "out": normal(keys[1], width, 1) * (width / BASE) ** -0.5,
    }

    def apply(params, X):
        h = X @ params["into"]
        for A, B in params["blocks"]:
            h = h + jnp.tanh(h @ A) @ B / depth**power
        return h @ params["out"]

    return apply, params


def residual_optimizer(network, power=0.0):
    """Adam for residual networks, with a factor L^power for the blocks."""
    params = network[1]
    ratio, depth = params["into"].shape[1] / BASE, len(params["blocks"])

    def update(updates, state, params=None):
        inner = jax.tree.map(lambda u: u * depth**power / ratio, updates["blocks"])
        return {"into": updates["into"], "blocks": inner, "out": updates["out"] / ratio}, state

    scale = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    return optax.chain(optax.adam(0.01), scale)
