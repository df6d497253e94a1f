"""quadratic_beats_linear: toy trials, claims that can fail."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import quadratic_beats_linear
from unlazy.lab.experiments.quadratic_beats_linear import experiment


def made_up(ratio, four, powers):
    rng, rows = np.random.default_rng(0), []
    for seed in range(6):
        for degree, n, gain in ((2, 160, ratio), (4, 300, four)):
            for method, risk in (("linear", 0.5), ("quadratic", 0.5 * gain), ("signed", 0.5 * gain)):
                risk *= np.exp(0.02 * rng.standard_normal())
                rows.append(
                    Record({"part": "risk", "degree": degree, "method": method, "d": 20, "n": n}, seed, {"risk": risk})
                )
        for w in (64, 256, 1024):
            values = {k: (1 + 0.1 * seed) * w**p * np.exp(0.01 * rng.standard_normal()) for k, p in powers.items()}
            rows.append(Record({"part": "width", "width": w}, seed, values))
    return Records(rows)  # fmt: skip


def test_claims_hold_and_fail():
    good = made_up(0.1, 1.0, {"linear_move": -0.5, "quadratic_move": -0.25, "gain": 0.5})
    found = experiment.claims(good)
    assert len(found) == 6 and {c.verdict for c in found} == {"holds"}, found
    bad = experiment.claims(made_up(0.9, 0.2, {"linear_move": -0.25, "quadratic_move": -0.5, "gain": 0.0}))
    assert {c.verdict for c in bad} == {"does not hold"}, bad
    assert len(experiment.figure(good).axes) == 3


def test_trials(x64):
    params = {"part": "risk", "degree": 2, "d": 8, "n": 30, "width": 64}
    key = jax.random.key(1)
    linear, second = (
        float(quadratic_beats_linear.trial({**params, "method": m}, key)["risk"]) for m in ("linear", "quadratic")
    )
    assert second < linear  # 30 points for 36 quadratics: the tangent lacks some
    found = quadratic_beats_linear.trial({"part": "width", "width": 64}, key)
    assert found["training_loss"] < 1e-3 and found["gain"] > 1
