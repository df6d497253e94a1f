"""signed_dropout: a toy trial of each method, claims that can fail."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import signed_dropout
from unlazy.lab.experiments.signed_dropout import experiment


def made_up(signed, plain, share, above):
    rng, rows = np.random.default_rng(0), []
    for d, n in ((8, 360), (10, 600), (8, 700)):
        for seed in range(6):
            noise = np.exp(0.05 * rng.standard_normal(3))
            values = {"signed": signed, "plain": plain, "ntk": above if n == 700 else plain}
            for k, (method, risk) in enumerate(values.items()):
                odd = {"signed": share, "plain": 1 - share}.get(method, 0.0)
                measures = {"risk": risk * noise[k], "odd_share": odd}
                rows.append(Record({"method": method, "d": d, "n": n}, seed, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    good = experiment.claims(made_up(0.2, 0.6, 0.05, 1e-3))
    assert len(good) == 9 and {c.verdict for c in good} == {"holds"}, good
    bad = experiment.claims(made_up(0.5, 0.5, 0.6, 0.9))
    assert {c.verdict for c in bad} == {"does not hold"}, bad
    assert len(experiment.figure(made_up(0.2, 0.6, 0.05, 1e-3)).axes) == 2


def test_random_signs_suppress_the_linear_part(x64):
    params = {"d": 4, "n": 60, "neurons": 100}
    found = {m: signed_dropout.trial({**params, "method": m}, jax.random.key(0)) for m in ("signed", "plain", "ntk")}
    assert found["signed"]["odd_share"] < 0.5 * found["plain"]["odd_share"]
    assert all(np.isfinite(float(v["risk"])) for v in found.values())
    assert found["plain"]["training_loss"] < 1e-3  # below C(8, 4) = 70 points the tangent part interpolates
