"""random_features on a small grid: the formulas hold, and the claims notice when they do not."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.random_features import experiment


@pytest.fixture(scope="module")
def records():
    change = {"features": [64], "draws": [64], "steps": [3000], "largest": [1024]}
    return run(experiment, seeds=4, change=change, engine="inline", store=None, progress=False)


def spoiled(records, **changes):
    """The records with some measures replaced."""
    return Records(
        replace(r, measures={k: changes[k](v) if k in changes else v for k, v in r.measures.items()}) for r in records
    )


def test_closed_forms_hold(records):
    verdicts = [c.verdict for c in experiment.claims(records)]
    assert verdicts[:4] == ["holds"] * 4  # loop, start, middle, end
    assert -0.9 < experiment.claims(records)[4].measured < -0.1  # 4 seeds: a slope, not yet a verdict
    assert float(records.measure("left").max()) < 1e-6  # 3,000 steps are t → ∞ to well below the standard errors


def test_claims_notice_a_wrong_theory(records):
    wide = experiment.claims(spoiled(records, second=lambda v: 1.5 * v))
    shifted = experiment.claims(spoiled(records, first=lambda v: v + 0.5))
    assert all(c.verdict == "does not hold" for c in wide[1:4] + shifted[1:4])
    assert experiment.claims(spoiled(records, difference=lambda v: v + 1e-6))[0].verdict == "does not hold"
    flat = experiment.claims(spoiled(records, kernel_error=np.ones_like))
    assert flat[4].verdict == "does not hold"


def test_figure_has_its_panels(records):
    assert len(experiment.figure(records).axes) == 4
