"""Transfer: toy trials, and claims that can fail."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import transfer


def made_up(risk, slope=0.0):
    rng = np.random.default_rng(0)
    rows = [
        Record({"d": 10, "pretrained_on": n, "n": N}, s, {"risk": risk(n, N)})
        for n in (0, 1, 10, 1000)
        for N in (100, 316)
        for s in range(5)
    ]
    for d in (10, 20, 40):
        for s in range(10):
            value = 0.2 + slope * np.log(d / 10) + 0.02 * rng.standard_normal()
            rows.append(Record({"d": d, "pretrained_on": 16 * d * d, "n": 100}, s, {"risk": value}))
    return Records(rows)


def test_pretrained_features_beat_random_ones(x64):
    params = {"d": 6, "width": 64, "n": 128}
    risks = {n: float(transfer.trial({**params, "pretrained_on": n}, jax.random.key(1))["risk"]) for n in (0, 2000)}
    assert risks[2000] < 0.5 * risks[0]


def test_claims_hold_and_fail():
    good = made_up(lambda n, N: 0.1 if n == 1000 else 1.0)
    assert {c.verdict for c in transfer.claims(good)} == {"holds"} and len(transfer.claims(good)) == 6
    bad = made_up(lambda n, N: 0.5, slope=0.1)
    assert {c.verdict for c in transfer.claims(bad)} == {"does not hold"}
    assert len(transfer.figure(good).axes) == 2
