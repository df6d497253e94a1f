"""three_layers: toy trials, claims that can fail."""

import jax
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import three_layers
from unlazy.lab.experiments.three_layers import BARS, experiment


def made_up(power, ntk, relu):
    """Three layers cross 1/4 near 1.5 d^power, the kernel near 0.08 d^3."""
    rng, rows = np.random.default_rng(0), []
    for d in BARS:
        for method, star in (("hermite", 1.5 * d**power), ("polynomial", 0.3 * d**3)):
            for n in (star * np.array([0.6, 0.8, 1.0, 1.25, 1.6])).astype(int):
                for s in range(8):
                    risk = 0.25 * (star / n) ** 2 * np.exp(0.1 * rng.standard_normal())
                    rows.append(Record({"method": method, "d": d, "n": int(n)}, s, {"risk": risk}))
        rows += [Record({"method": "ntk", "d": d, "n": 100}, s, {"risk": ntk}) for s in range(3)]
    for s in range(3):
        rows.append(Record({"method": "random_relu", "d": 8, "n": 540}, s, {"risk": relu}))
        rows.append(Record({"method": "hermite", "d": 8, "n": 540}, s, {"risk": 0.3 - relu / 4}))
        for method in ("norm_24", "hermite"):
            rows.append(Record({"method": method, "d": 10, "n": 336}, s, {"risk": 0.3 - relu / 4}))
    return Records(rows)


def test_claims_hold_and_fail():
    good = experiment.claims(made_up(2, 0.8, 0.8))
    assert len(good) == 11 and {c.verdict for c in good} == {"holds"}, good
    bad = {c.statement: c.verdict for c in experiment.claims(made_up(3, 0.4, 0.1))}
    assert set(bad.values()) == {"does not hold"}, bad
    assert len(experiment.figure(made_up(2, 0.8, 0.8)).axes) == 2


def test_trials(x64):
    base = {"d": 4, "rows": 60, "steps": 400}
    risks = {
        m: float(three_layers.trial({**base, "method": m, "n": n}, jax.random.key(0))["risk"])
        for m, n in (("hermite", 60), ("polynomial", 60), ("polynomial", 75), ("ntk", 60))
    }
    # C(8, 4) = 70: the kernel is exact at 75 points; the three layers are well on their way at 60
    assert risks["polynomial"] < 1e-3 and risks["hermite"] < 0.25 < risks["ntk"]


@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
