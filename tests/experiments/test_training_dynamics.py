"""training_dynamics on two widths: loop against formula, the edge of stability, and claims that can fail."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.training_dynamics import experiment


@pytest.fixture(scope="module")
def records():
    return run(experiment, seeds=4, change={"features": [64, 512]}, engine="inline", store=None, progress=False)


def test_the_loop_follows_the_formula_and_the_stability_edge_is_right(records):
    loop, slope, below, above = experiment.claims(records)
    assert [loop.verdict, below.verdict, above.verdict] == ["holds"] * 3
    assert -0.9 < slope.measured < -0.1  # 4 seeds: a slope, not yet a verdict
    assert len(experiment.figure(records).axes) == 3


def test_claims_notice_a_wrong_theory(records):
    wrong = Records(
        replace(r, measures=r.measures | {
            "difference": r.measures["difference"] + 1e-6, "growth": r.measures["growth"] * 1.1, "sup_distance": 1.0
        }) for r in records
    )  # fmt: skip
    assert [c.verdict for c in experiment.claims(wrong)] == ["does not hold"] * 4
