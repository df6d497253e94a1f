"""Label noise: the option of descent, and claims that can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.dataset import Data
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import label_noise as ln
from unlazy.training.descent.descend import descend
from unlazy.training.options import DescentOptions, Recording


def made_up(errors):
    rows = []
    for noise, value in errors.items():
        for s in range(8):
            path = np.linspace(1, value, 5) if np.isfinite(value) else np.ones(5)
            rows.append(
                Record({"noise": noise}, s, {"error": value * (1 + 0.01 * s), "path": path, "at": np.arange(5)})
            )
    return Records(rows)


def test_claims_hold_and_fail():
    good = {"label noise": 0.01, "none": 0.5, "spherical": np.inf, "small step": 0.6}
    assert [c.verdict for c in ln.claims(made_up(good))] == ["holds", "holds", "undecided", "holds"]
    assert [c.verdict for c in ln.claims(made_up({**good, "spherical": 9.0}))] == ["holds"] * 4
    bad = dict.fromkeys(good, 0.1)
    assert [c.verdict for c in ln.claims(made_up(bad))] == ["does not hold"] * 4
    assert len(ln.figure(made_up({**good, "spherical": 9.0})).axes) == 1


def test_label_noise_is_fresh_and_has_the_right_size(x64):
    """f = θ and one point: every step is θ - η(θ - y ∓ δ), so that the step says what the label was."""
    data, eta, delta = Data(jnp.ones((1, 1)), jnp.array([3.0])), 0.1, 0.5

    def run(label_noise=0.0, key=None):
        options, recording = DescentOptions(label_noise=label_noise), Recording({"p": lambda p: p}, every=1)
        return descend(lambda p, X: p * X[:, 0], jnp.array(1.0), data, steps=200, step_size=eta, options=options,
                       recording=recording, key=key).recorded["p"]  # fmt: skip

    path = np.asarray(run(delta, jax.random.key(0)))
    labels = path[:-1] + (path[1:] - path[:-1]) / eta
    off = (labels - 3.0) / delta
    np.testing.assert_allclose(np.abs(off), 1, atol=1e-12)
    assert abs(off.mean()) < 4 / np.sqrt(200) and abs(np.mean(off[1:] * off[:-1])) < 4 / np.sqrt(199)
    np.testing.assert_allclose(run()[-1], 3 - 2 * 0.9**200, atol=1e-12)
    with pytest.raises(ValueError, match="label_noise is random"):
        run(delta)
