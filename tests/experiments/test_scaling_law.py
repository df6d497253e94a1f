"""Scaling laws: claims that can fail, and a trial at toy size."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import scaling_law as law


def made_up(gain, widths):
    rng, rows = np.random.default_rng(0), []
    for s in range(16):
        for beta in (0.5, 1.5):
            noise = 0.01 * rng.standard_normal()
            risk = np.stack([law.TAU ** -(beta + noise), law.TAU ** -(beta + gain[beta] + noise)])
            rows.append(Record({"beta": beta, "width": 0, "modes": 4096}, s,
                               {"time": np.stack([law.TAU] * 2), "risk": risk, "end": 0.0, "ratio": 1.0}))  # fmt: skip
            for N in (16, 32, 64):
                end = N ** -widths[beta] * np.exp(0.02 * rng.standard_normal())
                rows.append(Record({"beta": beta, "width": N, "modes": 4096}, s, {"end": end, "ratio": 1.0}))
    return Records(rows)


def test_claims_hold_and_fail():
    good = made_up({0.5: 1 / 6, 1.5: 0.0}, {0.5: 1.0, 1.5: 2.0})
    assert [c.verdict for c in law.claims(good)] == ["holds"] * 8
    bad = law.claims(made_up({0.5: 0.0, 1.5: 0.2}, {0.5: 0.5, 1.5: 3.0}))
    assert [c.verdict for c in bad if "lazy:" not in c.statement and "over" not in c.statement] == ["does not hold"] * 4
    assert len(law.figure(good).axes) == 2


def test_a_trial_at_toy_size(x64):
    """Rich is ahead of lazy on the way, and both end at the floor of the width."""
    found = jax.jit(lambda key: law.trial({"beta": 0.5, "width": 6, "modes": 64}, key))(jax.random.key(0))
    assert abs(float(found["ratio"]) - 1) < 1e-6
    middle = np.argmin(np.abs(law.TAU - 30))
    lazy, rich = (np.interp(3.0, found["time"][i], found["risk"][i]) for i in (0, 1))
    assert rich < lazy and found["risk"][0][middle] > found["end"]
