"""richardson_spectrum on few seeds: the loop is the formula, and the claims notice when it is not."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.richardson_spectrum import STEPS, experiment


@pytest.fixture(scope="module")
def records():
    return run(
        experiment, seeds=2, change={"kernel": ["gaussian", "laplace"]}, engine="inline", store=None, progress=False
    )


def test_the_loop_follows_the_formula(records):
    found = experiment.claims(records)
    assert [c.verdict for c in found] == ["holds"] * 4
    assert records[0].measures["fitted"].shape == (len(STEPS), 300)


def test_claims_notice_other_dynamics(records):
    """Twice the steps at every mark: the projections and the half-fitted eigenvalue are off."""
    early = Records(
        replace(r, measures=r.measures | {"fitted": r.measures["fitted"][[0, *range(len(STEPS) - 1)]]}) for r in records
    )
    wrong = experiment.claims(early)
    assert wrong[0].verdict == "does not hold" and wrong[1].verdict == "does not hold"


def test_figure_has_its_panels(records):
    assert len(experiment.figure(records).axes) == 3
