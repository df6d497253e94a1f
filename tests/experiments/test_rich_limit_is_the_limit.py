"""rich_limit_is_the_limit: every part runs, and its claims notice another limit."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.rich_limit_is_the_limit import experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def records():
    return run(experiment, engine="inline", store=None, progress=False)


def test_claims_notice_another_limit(records):
    assert len(experiment.claims(records)) == 28 and len(experiment.figure(records).axes) == 3

    def wrong(r):
        """Distances of one, and a limit whose Θ is twice what it is."""
        far = {k: np.array([1.0, 0.0]) for k, v in r.measures.items() if np.shape(v) == (2,)}
        double = {"theta": 2 * r.measures["theta"]} if r.params.get("width") == 0 else {}
        return replace(r, measures=r.measures | far | double)

    claims = experiment.claims(Records(map(wrong, records)))
    assert not any(c.verdict == "holds" for c in claims if "slope" not in c.statement)
    assert all(c.verdict != "holds" for c in claims if "Θ, slope" in c.statement)


def test_quick_holds(records):
    """The slope of Θ has not settled at these widths: it may stay undecided."""
    verdicts = {c.statement: c.verdict for c in experiment.claims(records)}
    assert "does not hold" not in verdicts.values()
    assert [s for s, v in verdicts.items() if v == "undecided" and "Θ, slope" not in s] == []
