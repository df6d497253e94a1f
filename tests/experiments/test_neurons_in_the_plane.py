"""neurons_in_the_plane: claims that can fail, the panels, the quick sweep."""

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import neurons_in_the_plane as nip


def made_up(late=0.998, faithful=0.999, lost=0.1):
    signs = np.where(np.arange(10) % 2, 1, -1)
    points = np.random.default_rng(0).standard_normal((4, 12, 2))
    rows = []
    for structured in (True, False):
        stages = (0.05, 0.95, late, late) if structured else (0.05, lost, lost, lost)
        rows.append(Record({"structured": structured}, 0, {
            "cosines": np.outer(stages, signs), "points": points, "faithful": np.full(4, faithful)}))  # fmt: skip
    return Records(rows)


def test_claims_hold_and_fail():
    assert {c.verdict for c in nip.claims(made_up())} == {"holds"}
    failed = [c.statement for c in nip.claims(made_up(0.9, 0.5, 0.6)) if c.verdict == "does not hold"]
    assert len(failed) == 3
    assert len(nip.figure(made_up()).axes) == 8


@pytest.mark.nightly
def test_quick_holds():
    records = run(nip.experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in nip.claims(records)} == {"holds"}
