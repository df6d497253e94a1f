"""One large step: claims hold on the curve of theory with a 1/d term, and fail on others; one trial runs."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import one_large_step as ol
from unlazy.theory.feature_learning import large_step


def made_up(bend=0.0, shift=0.5, spike=1.0, scatter=0.005):
    rng, rows = np.random.default_rng(0), []
    for d in (64, 128):
        theory = np.array([ol.predicted_risk(s, d) for s in ol.STEPS])
        moves = [large_step.spike_and_row_norm(s, d, ol.FIRST * d, ol.NOISE) for s in ol.STEPS]
        places = [large_step.spike_location(*move, d, ol.WIDTH * d) for move in moves]
        for s in range(24):
            risk = theory * (1 + shift / d) + bend * np.asarray(ol.STEPS) + scatter * rng.normal(size=len(theory))
            rows.append(Record({"d": d}, s, {"risk": risk, "top": spike * np.array(places), "values": np.ones(d)}))
    return Records(rows)


def test_claims_hold_and_fail():
    assert [c.verdict for c in ol.claims(made_up())] == ["holds"] * 7
    words = [c.verdict for c in ol.claims(made_up(bend=0.1, spike=1.1))]
    assert words[:5] == ["does not hold"] * 4 + ["undecided"] and words[6] == "does not hold"
    below = [c.verdict for c in ol.claims(made_up(shift=-40.0))]
    assert below[0] == "holds" and below[2] == below[4] == below[5] == "does not hold"
    assert len(ol.figure(made_up()).axes) == 2


def test_one_trial(x64):
    found = jax.jit(lambda key: ol.trial({"d": 16}, key))(jax.random.key(0))
    assert found["risk"].shape == (len(ol.STEPS),) and found["top"].shape == (len(ol.STEPS), 2)
    assert 0.05 < float(found["risk"][-1]) < float(found["risk"][0]) < 1
    assert float(found["top"][-1, 0]) > 5 * float(found["top"][-1, 1])
