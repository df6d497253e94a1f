"""Degenerate targets: facts of the tasks, toy trials, and claims that can fail."""

import jax
import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import degenerate_targets as dt
from unlazy.theory.activations import hermite


def test_targets_have_the_stated_exponents_and_tails(x64):
    exponents = {name: dt.target(name, 5, jax.random.key(0)).information_exponent for name in dt.NAMES}
    assert exponents == {"cubic_sign": 3, "band_sign": 2, "he3": 3, "he4": 4, "control": 2}
    z, w = hermite.gauss_hermite(20)  # exact up to degree 39
    for name, v in dt.TAIL.items():
        assert np.sum(w * hermite.basis(z, 4)[:, int(name[-1])] ** 2 * z**2) == pytest.approx(v)


def test_exponent_two_is_found_and_three_is_not(x64):
    params = {"d": 16, "ratio": 4, "width": 64}
    found, lost = (dt.trial({**params, "target": t}, jax.random.key(0)) for t in ("band_sign", "cubic_sign"))
    assert float(found["energy"]) > 0.4 and float(lost["energy"]) < 4 / 16  # chance is 1/16
    assert float(found["risk"]) < 0.6 < 0.9 < float(lost["risk"])
    assert float(found["energy_signs"]) < 4 / 16


def made_up(good):
    rng = np.random.default_rng(0)
    rows = []
    for s in range(8):
        for d in (16, 32):
            risk = {"cubic_sign": 1.0, "band_sign": 0.3} if good else {"cubic_sign": 0.5, "band_sign": 0.5}
            rows += [Record({"target": t, "d": d, "ratio": 4}, s, {"risk": r}) for t, r in risk.items()]
        for d in (10, 32):
            for t in ("he3", "he4", "control"):
                rise = 0.02 * d if t != "control" else 0.05
                v = dt.TAIL.get(t, 9.0)
                share = v / (v + d - 1) + (0 if good else 0.1)
                share += 0.01 * rng.standard_normal()
                risk = rise if good else 0.7 - 0.01 * d
                measures = {"risk": risk, "risk_signs": risk, "energy_signs": share, "tail": v}
                rows.append(Record({"target": t, "d": d, "ratio": 16}, s, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    assert {c.verdict for c in dt.claims(made_up(True))} == {"holds"} and len(dt.claims(made_up(True))) == 9
    assert {c.verdict for c in dt.claims(made_up(False))} == {"does not hold"}
    assert len(dt.figure(made_up(True)).axes) == 2
