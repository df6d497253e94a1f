"""gp_prior_draws on one kernel: draws agree with their kernel, and the claims notice when they do not."""

from dataclasses import replace

import pytest

from unlazy.core.experiment import Records
from unlazy.experiments.gp_prior_draws import experiment
from unlazy.lab import run


@pytest.fixture(scope="module")
def records():
    return run(
        experiment, seeds=4, change={"kernel": ["Laplace"], "draws": [500]}, engine="inline", store=None, progress=False
    )


def test_draws_have_their_kernel(records):
    assert [c.verdict for c in experiment.claims(records)] == ["holds", "holds"]
    assert len(experiment.figure(records).axes) == 2


def test_claims_notice_a_wrong_covariance_and_a_wrong_roughness(records):
    wrong = Records(
        replace(r, measures=r.measures | {
            "second": 1.3 * r.measures["second"], "expected_roughness": r.measures["expected_roughness"] + 0.5
        }) for r in records
    )  # fmt: skip
    assert [c.verdict for c in experiment.claims(wrong)] == ["does not hold", "does not hold"]
