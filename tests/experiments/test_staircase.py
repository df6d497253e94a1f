"""Staircases: claims that can fail, and a trial at toy size."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import staircase as st


def made_up(whole, alone, order=(0.1, 0.3, 1.0)):
    rng, rows = np.random.default_rng(0), []
    for s in range(16):
        for d in (64, 192, 1024):
            n = 100 * 64 * (d / 64) ** whole * np.exp(0.1 * rng.standard_normal())
            rows.append(Record({"lowest": 1, "d": d}, s, {"found": n, "parts": n * np.array(order)}))
        for d in (64, 112, 192):
            n = 300 * 64 * (d / 64) ** alone * np.exp(0.2 * rng.standard_normal())
            rows.append(Record({"lowest": 3, "d": d}, s, {"found": n, "parts": np.array([np.inf, np.inf, n])}))
    return Records(rows)


def test_claims_hold_and_fail():
    good = made_up(1.0, 2.0)
    assert [c.verdict for c in st.claims(good)] == ["holds"] * 4
    assert [c.verdict for c in st.claims(made_up(2.0, 0.9, (0.4, 0.3, 1.0)))] == ["does not hold"] * 4
    assert len(st.figure(good).axes) == 1


def test_a_trial_at_toy_size(x64):
    found = jax.jit(lambda key: st.trial({"lowest": 1, "d": 48}, key))(jax.random.key(0))
    parts = np.asarray(found["parts"])
    assert np.all(parts % st.BATCH == 0) and parts[0] < parts[2] == float(found["found"])
