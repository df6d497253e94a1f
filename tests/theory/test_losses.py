"""Losses: each against its formula; training minimizes and reports their mean over points, with one step size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core.arrays import precision
from unlazy.core.dataset import Data
from unlazy.theory.dynamics.losses import LOSSES
from unlazy.training import DescentOptions, RichOptions

RNG = np.random.default_rng(0)
F, SIGNS, CLASSES = RNG.normal(size=(5, 3)), np.sign(RNG.normal(size=(5, 3))), np.array([0, 2, 1, 1, 0])
FORMULAS = {
    "squared": lambda f, y: 0.5 * ((f - y) ** 2).sum(1),
    "hinge": lambda f, y: np.maximum(0, 1 - y * f).sum(1),
    "logistic": lambda f, y: np.log1p(np.exp(-y * f)).sum(1),
    "cross_entropy": lambda f, y: np.log(np.exp(f).sum(1)) - f[np.arange(5), y],
}


@pytest.mark.parametrize("name", LOSSES)
def test_formula_and_mean(x64, name):
    y = CLASSES if name == "cross_entropy" else SIGNS
    weights = np.array([1.0, 2.0, 0.0, 1.0, 0.5])
    f, labels = F.copy(), jnp.asarray(y, float)
    expected = FORMULAS[name](f, y)
    f[2] = np.nan  # of weight zero: padding
    rounding = {"rtol": 20 * 2.0**-53}  # ten operations, positive terms
    np.testing.assert_allclose(LOSSES[name].per_point(jnp.asarray(F), labels), expected, **rounding)
    np.testing.assert_allclose(LOSSES[name].mean(jnp.asarray(F), labels), expected.mean(), **rounding)
    np.testing.assert_allclose(
        LOSSES[name].mean(jnp.asarray(f), labels, jnp.asarray(weights)), weights @ expected / weights.sum(), **rounding
    )


@pytest.mark.slow_cases("logistic")
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.slow
def test_a_step_size_and_a_loss_mean_the_same_in_all_training_functions(loss):
    """One gradient step of networks by `rich_network` and by `descend`, and of their limit against -η/n Θ ∂ℓ/∂f."""
    X, y, eta = RNG.normal(size=(4, 2)), np.array([1.0, -1.0, 1.0, 1.0]), 0.3
    ask = {"richness": 1.0, "times": [0, 1], "step_size": eta, "loss": loss}
    rich = unlazy.rich_network(unlazy.MLP(1, "tanh", width=8), X, y, options=RichOptions(runs=1), **ask)
    with precision("float64"):
        data, net = Data(jnp.asarray(X), jnp.asarray(y)), rich.system.network
        start = jax.tree.map(lambda leaf: leaf[0, 0], rich.states.start)
        off = net(start, data.X)
        options = DescentOptions(rates=net.rates)
        found = unlazy.descend(
            lambda p, x: net(p, x) - off, start, data, steps=1, step_size=eta, loss=loss, options=options
        )
        # f of size one, some 50 operations of float64
        np.testing.assert_allclose(rich.losses.value, [found.losses[0], found.final_loss], rtol=50 * 2.0**-53)
        np.testing.assert_allclose(rich.fitted.value[1], net(found.params, data.X) - off, rtol=0, atol=50 * 2.0**-53)
        np.testing.assert_allclose(rich.losses.value[0], FORMULAS[loss](np.zeros((4, 1)), y[:, None]).mean())
        small = ask | {"step_size": 1e-6}
        limit = unlazy.rich_limit(unlazy.MLP(1, "tanh"), X, y, options=RichOptions(draws=64, runs=1), **small)
        slope = jax.grad(lambda f: jnp.sum(LOSSES[loss].per_point(f, data.y)))(jnp.zeros(4))
        # second order in the step: 1e-6 relative, times a few
        np.testing.assert_allclose(limit.fitted.value[1] / 1e-6, -limit.tangent.value[0] @ slope / 4, rtol=1e-5)
