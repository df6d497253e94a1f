"""features_at_infinite_width, small: one step is the first Euler step; claims can fail."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records, config
from unlazy.lab.experiments.features_at_infinite_width import experiment


def test_one_step_is_the_first_euler_step():
    small = config({"richness": [0.05, 2.0]}, seeds=2, n=60, d=5, draws=64, long=30.0)
    records = run(experiment, small, engine="inline", store=None, progress=False)
    assert records.measure("cosine").min() > 1 - 1e-9
    assert len(experiment.figure(records).axes) == 2
    other = Records(replace(r, measures=r.measures | {"cosine": 0.9, "end": 0.1, "features": 0.1}) for r in records)
    verdicts = [c.verdict for c in experiment.claims(other)]
    assert len(verdicts) == 6 and verdicts.count("does not hold") >= 4


@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
