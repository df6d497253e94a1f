"""`sweep_rates`: best learning rates, and whether they transfer."""

import math

import jax
import numpy as np
import optax
import pytest

from unlazy import ScalingOptions, sweep_rates
from unlazy.diagnostics import RateSweep

RATES = [2.0**-k for k in range(12, -4, -1)]
ONE = ScalingOptions(seeds=1)


def two_layers(width, key):
    """f(x) = v·(Wx) from a standard initialization."""
    keys = jax.random.split(key)
    params = {"W": jax.random.normal(keys[0], (4, width)) / 2, "v": jax.random.normal(keys[1], (width, 1)) / width**0.5}
    return lambda p, X: X @ p["W"] @ p["v"], params


def data():
    X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return X, X[:, :1] * 0.5


def sgd(power):
    """Rates of which those of all parameters are multiplied by a power of the width."""
    return lambda network, rate: optax.sgd(rate * network[1]["W"].shape[1] ** power)


@pytest.mark.parametrize(("power", "drift"), [(0.0, 1 / 16), (-1.0, 1.0)])
def test_the_best_rate_of_two_linear_layers(power, drift):
    """Both layers move f by η(|v|²XXᵀ + XWWᵀXᵀ) ∝ n, so that the best rate of SGD is ∝ 1/n. The grid has factors of 2,
    of which the middle of a basin resolves half: a factor of √2 at either width."""
    scale = 16.0 if power else 1.0
    rates = [scale * rate for rate in RATES]
    found = sweep_rates(two_layers, data(), optimizer=sgd(power), widths=(16, 256), rates=rates, steps=8)
    assert abs(math.log2(found.drift / drift)) <= 1 + 1e-6
    assert found.transfers == (power == -1.0) or abs(math.log2(found.drift / drift)) > 0.5


def test_final_losses_are_those_of_gradient_descent():
    X, y = data()
    rates = [0.02, 0.05, 0.4]
    found = sweep_rates(two_layers, (X, y), optimizer=sgd(0.0), widths=(4, 8), rates=rates, steps=5, options=ONE)
    params = {name: np.asarray(p, np.float64) for name, p in two_layers(8, jax.random.key(0))[1].items()}
    f_0 = X @ params["W"] @ params["v"]
    for _ in range(5):
        h = X @ params["W"]
        residual = 2 * (h @ params["v"] - f_0 - y) / len(X)
        step = {"v": h.T @ residual, "W": X.T @ residual @ params["v"].T}
        params = {name: p - 0.05 * step[name] for name, p in params.items()}
    expected = np.mean((X @ params["W"] @ params["v"] - f_0 - y) ** 2)
    assert found.losses[8][0, 1] == pytest.approx(expected, rel=1e-4)


def test_basins_errors_and_texts():
    losses = {8: np.array([[9, 1.2, 1.0, 1.1, 5], [9, 5.0, 1.0, 1.1, 5]]), 64: np.array([[9, 5, 3, 1.0, 4.0]] * 2)}
    found = RateSweep((8, 64), (1.0, 2.0, 4.0, 8.0, 16.0), losses)
    middles = np.log([4.0, math.sqrt(32.0)])  # basins 2 to 8 and 4 to 8
    rate, factor = found.best(8)
    assert rate == pytest.approx(math.exp(middles.mean()))
    assert factor == pytest.approx(math.exp(abs(middles[0] - middles[1]) / 2))  # √(Σ(Δ/2)²/1)/√2
    assert found.drift == pytest.approx(8 / rate) and not found.transfers
    assert found.cost == pytest.approx(3.0)  # 4.76 is nearest to 4
    assert str(found).startswith("The learning rate does not transfer: its best value changes by a factor of 1.7")
    assert "At width 64 the best rate of width 8 reaches 3 times its least loss." in str(found)


def test_wrong_use_gets_one_sentence():
    def refused(message, **keywords):
        given = {"optimizer": sgd(0.0), "widths": (4, 8), "rates": RATES, "steps": 4, "options": ONE, **keywords}
        with pytest.raises(ValueError, match=message):
            sweep_rates(two_layers, data(), **given)

    refused("rates must be at least two different positive numbers", rates=[0.1])
    refused("rates must be at least two different positive numbers", rates=[-0.1, 0.1])
    refused("the best rate at width 4 is the largest one, 0.0001: extend the range", rates=[1e-5, 1e-4])
    refused("diverges at width 4 with every rate", rates=[1e12, 1e13], steps=40)
    refused("rates must be at least two different positive numbers", rates=[0.1, math.nan])
    refused("every entry of widths must be a positive integer", widths=(4, 8.5))
    refused("steps must be a positive integer", steps=0)


def test_more_seeds_give_an_error():
    found = sweep_rates(two_layers, data(), optimizer=sgd(0.0), widths=(4, 8), rates=[0.05, 0.1, 0.2, 10.0], steps=4)
    assert found.losses[4].shape == (2, 4) and math.isfinite(found.best(4)[1])
    assert np.isnan(found.losses[8][:, 3]).all() and np.isfinite(found.losses[8][:, 0]).all()
