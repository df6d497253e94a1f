"""your_network_is_lazy: the quick configuration holds, and claims notice networks that are all alike."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.your_network_is_lazy import SCALINGS, experiment


@pytest.fixture(scope="module")
def records():
    return run(experiment, engine="inline", store=None, progress=False)


def test_quick_holds(records):
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
    assert len(experiment.figure(records).axes) == 1


def test_claims_notice_when_both_scalings_do_the_same(records):
    """Whichever behavior both show, the claims about the other one fail."""
    for one in SCALINGS.values():
        measured = {r.seed: r.measures for r in records if r.params["strength"] == one}
        alike = Records(replace(r, measures=measured[r.seed]) for r in records)
        assert "does not hold" in {c.verdict for c in experiment.claims(alike)}


def test_a_run_that_misses_the_tolerance_is_reported(records):
    never = {"reached": np.zeros(())}
    stuck = Records(replace(r, measures={**r.measures, **never}) for r in records)
    assert experiment.claims(stuck)[0].verdict == "does not hold"
