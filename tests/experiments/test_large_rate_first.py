"""A large rate first: claims that can fail, and one run of each kind at its real size."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import large_rate_first as lf


def made_up(gain, fit):
    rng, rows = np.random.default_rng(0), []
    for s in range(8):
        for rate, faint in (("small", 0.85), ("large first", 0.85 + gain)):
            noise = 0.005 * rng.normal()
            measures = {"train": np.array([0.5, fit, fit]), "bright": np.array([0.5, fit, fit]), "at": np.arange(3),
                        "faint": np.array([0.5, 0.6, faint]) + noise}  # fmt: skip
            rows.append(Record({"rate": rate}, s, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    assert [c.verdict for c in lf.claims(made_up(0.07, 1.0))] == ["holds"] * 6
    assert [c.verdict for c in lf.claims(made_up(0.0, 0.8))] == ["does not hold"] * 6
    assert len(lf.figure(made_up(0.07, 1.0)).axes) == 3


def test_a_trial_records_three_accuracies(x64):
    found = jax.jit(lambda key: lf.trial({"rate": "small", "steps": 400}, key))(jax.random.key(0))
    for name in ("train", "faint", "bright"):
        assert found[name].shape == (5,) and np.all((found[name] >= 0) & (found[name] <= 1))
    assert float(found["bright"][-1]) > 0.95
