"""`scaled`: initial values and rates of every width, from those of one width."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scaling_networks import data, residual

from unlazy import ScalingOptions, check_scaling, scaled

WIDTHS = (16, 128)
X, y = data()


def mlp(width, key):
    return eqx.nn.MLP(5, 1, width, 2, key=key)


@pytest.fixture(scope="module")
def factory():
    return scaled(mlp, X[:4], base=16)


def test_exponents_are_those_of_maximal_update(factory):
    """The table of [T2]: fan-in for Adam, fan-out over fan-in for SGD, the root of it for Muon."""
    frame = factory.frame()
    assert frame.role.to_dict() == {
        "layers.0.weight": "input", "layers.0.bias": "vector", "layers.1.weight": "hidden", "layers.1.bias": "vector",
        "layers.2.weight": "readout", "layers.2.bias": "fixed",
    }  # fmt: skip
    columns = ["initialization", "adam", "sgd", "muon"]
    assert frame.loc["layers.0.weight", columns].tolist() == [0, 0, 1, 0.5]
    assert frame.loc["layers.0.bias", columns].tolist() == [0, 0, 1, 0]
    assert frame.loc["layers.1.weight", columns].tolist() == [0, -1, 0, 0]
    assert frame.loc["layers.2.weight", columns].tolist() == [-0.5, -1, -1, -0.5]
    assert frame.loc["layers.2.bias", columns].tolist() == [0, 0, 0, 0]


def test_nothing_changes_at_the_base_width(factory):
    key = jax.random.key(3)
    one, two = (jax.tree.leaves(eqx.filter(n, eqx.is_array)) for n in (factory(width=16, key=key), mlp(16, key)))
    assert all(np.array_equal(a, b) for a, b in zip(one, two))
    assert factory.multiplier("layers.1.weight", "adam", width=16) == 1.0
    assert factory.multiplier("layers.1.weight", "adam", width=64) == 0.25


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_scaled_networks_pass_the_check(factory, kind):
    base = optax.adam(0.02) if kind == "adam" else optax.sgd(0.05)

    def optimizer(network):
        width = network.layers[0].weight.shape[0]
        return optax.chain(base, factory.scale_updates(network, optimizer=kind, width=width))

    options = ScalingOptions(coordinates=False)
    assert check_scaling(factory, (X, y), optimizer=optimizer, widths=WIDTHS, options=options).ok
    assert not check_scaling(mlp, (X, y), optimizer=base, widths=WIDTHS, options=options).ok


def test_a_multiplier_in_the_network_is_not_applied_twice():
    def make(width, key):
        keys = jax.random.split(key)
        params = {"into": jax.random.normal(keys[0], (5, width)), "out": jax.random.normal(keys[1], (width, 1))}
        return lambda params, X: jnp.tanh(X @ params["into"]) @ params["out"] / width, params

    frame = scaled(make, X[:4], base=16).frame()
    # the readout W/n with entries of order 1 is right; Adam's update W/n moves outputs by n · 1/n, SGD's by n/n²
    assert frame.loc["out", ["initialization", "adam", "sgd"]].tolist() == [0.0, 0.0, 1.0]


def test_completep_divides_blocks_by_the_depth():
    def plain(width, depth, key):
        return residual(width, depth, key, power=0.0)

    factory = scaled(plain, X[:4], base=16, base_depth=2, rule="completep")

    def optimizer(network):
        params = network[1]
        sizes = {"width": params["into"].shape[1], "depth": len(params["blocks"])}
        return optax.chain(optax.adam(0.01), factory.scale_updates(network, **sizes))

    options = ScalingOptions(seeds=1, coordinates=False)
    sizes = {"widths": WIDTHS, "depths": (2, 16), "options": options}
    assert check_scaling(factory, (X, y), optimizer=optimizer, **sizes).ok
    found = check_scaling(plain, (X, y), optimizer=optax.adam(0.01), **sizes)
    assert {f.axis for f in found.wrong} == {"width", "depth"}
    key, (A, B) = jax.random.key(0), factory(width=16, depth=8, key=jax.random.key(0))[1]["blocks"][3]
    A_0, B_0 = plain(16, 8, key)[1]["blocks"][3]
    np.testing.assert_allclose(A, A_0)
    np.testing.assert_allclose(B, B_0 / 4, rtol=1e-6)  # 2 of 8 blocks


def test_what_is_not_clear_is_refused_by_name():
    def tied(width, key):
        params = {"E": jax.random.normal(key, (7, width))}
        return lambda params, i: params["E"][i] @ params["E"].T / width, params

    words = np.arange(4)
    with pytest.raises(ValueError, match=r"E is used as lookup and as readout.*untie it, or pass roles=\{'E'"):
        scaled(tied, words)
    assert scaled(tied, words, roles={"E": "lookup"}).axes["E"].role == "lookup"

    def product(width, key):
        params = {"g": jnp.ones(width), "W": jax.random.normal(key, (width, width)), "a": jnp.ones((5, width)) / 9}
        return lambda p, X: jnp.tanh(jnp.tanh(X @ p["a"]) @ (jnp.diag(p["g"]) @ p["W"])).mean(1, keepdims=True), params

    with pytest.raises(ValueError, match=r"the role of .* is combined with"):
        scaled(product, X[:4])

    def unused(width, key):
        return lambda p, X: X @ p["a"], {"a": jnp.ones((5, 1)), "b": jnp.ones(width)}

    with pytest.raises(ValueError, match="b grows with the width but takes no part"):
        scaled(unused, X[:4])

    def summed(width, key):
        params = {"a": jax.random.normal(key, (5, width)), "c": jnp.ones(width)}
        return lambda p, X: (jnp.tanh(X @ p["a"]) * p["c"]).sum(-1, keepdims=True), params

    with pytest.raises(ValueError, match="the role of c is not clear"):
        scaled(summed, X[:4])


def test_wrong_use_gets_one_sentence(factory):
    with pytest.raises(ValueError, match="unknown rule 'mupp'"):
        scaled(mlp, X, rule="mupp")
    with pytest.raises(ValueError, match="'completep' needs base_depth"):
        scaled(mlp, X, rule="completep")
    with pytest.raises(ValueError, match="unknown role 'hiden'"):
        scaled(mlp, X[:4], base=16, roles={"layers.0.weight": "hiden"})
    with pytest.raises(ValueError, match="roles names 'nobody', which is no parameter"):
        scaled(mlp, X[:4], base=16, roles={"nobody": "hidden"})
    with pytest.raises(ValueError, match="unknown optimizer 'lion'"):
        factory.multiplier("layers.1.weight", "lion", width=64)
    with pytest.raises(ValueError, match=r"'layers.2.weight' is no parameter.*pass base_depth"):
        scaled(lambda width, key: eqx.nn.MLP(5, 1, width, 1, key=key), X[:4]).multiplier(
            "layers.2.weight", "adam", width=64
        )
    with pytest.raises(ValueError, match=r"'layers\.9\.weight' is no parameter"):
        factory.multiplier("layers.9.weight", "adam", width=64)
