"""Ansatz or FACT: claims that can fail, and a short training of two layers."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import ansatz_or_fact as af


def made_up(fact, ansatz, early=0.0, weak=0.7):
    rows = []
    for s in range(4):
        for layers in (2, 3):
            for decay, end in ((1e-3, weak), (1e-2, fact)):
                path = np.linspace([early, 0.5, 0.4], [end + 0.001 * s, ansatz, ansatz - 0.1], 5)
                laws = np.repeat(path[:, None], layers - 1, 1)
                rows.append(Record({"layers": layers, "decay": decay, "steps": 100}, s, {"laws": laws}))
    return Records(rows)


def test_claims_hold_and_fail():
    assert [c.verdict for c in af.claims(made_up(0.99, 0.9))] == ["holds"] * 5
    assert [c.verdict for c in af.claims(made_up(0.6, 0.7, 0.6, weak=0.9))] == ["does not hold"] * 5
    assert af.claims(made_up(0.99, 0.9).where(decay=1e-2)) == []
    assert len(af.figure(made_up(0.99, 0.9)).axes) == 2


def test_training_with_decay_comes_near_fact(x64):
    found = jax.jit(lambda key: af.trial({"layers": 2, "decay": 0.02, "steps": 1000}, key))(jax.random.key(0))
    laws = np.asarray(found["laws"])
    assert laws.shape == (af.RECORDS + 1, 1, 3)
    assert laws[0, 0, 0] < 0.5 and laws[-1, 0, 0] > 0.98
