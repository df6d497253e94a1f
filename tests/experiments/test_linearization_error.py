"""linearization_error on two widths: a wider network stays closer to its linearization; claims can fail."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.linearization_error import experiment


@pytest.fixture(scope="module")
def records():
    change = {"width": [32, 512], "steps": [100]}
    return run(experiment, seeds=8, change=change, engine="inline", store=None, progress=False)


def test_wider_is_closer(records):
    sup, drift = experiment.claims(records)
    assert sup.measured < -0.3 and drift.measured < -0.3  # 8 seeds: a slope, not yet a verdict
    assert (records.measure("gap")[:, 0] == 0).all()  # both start at the same function
    assert len(experiment.figure(records).axes) == 2


def test_claims_notice_networks_that_stay_nonlinear(records):
    stuck = Records(
        replace(r, measures=r.measures | {"sup": 0.1 + 0.001 * r.seed, "drift": 0.1 + 0.001 * r.seed}) for r in records
    )
    assert {c.verdict for c in experiment.claims(stuck)} == {"does not hold"}


@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
