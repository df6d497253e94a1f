"""feature_emergence: claims that can fail, the figure, and the quick sweep itself."""

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments._patterns import curve_steps
from unlazy.lab.experiments.feature_emergence import claims, experiment, figure


def made_up(accuracy=1.0, chance=0.5, late=0.998):
    rng = np.random.default_rng(0)
    times = len(curve_steps(50))
    rows = []
    for seed in range(3):
        for structured in (True, False):
            start = rng.standard_normal((1, 40)) / 10
            later = np.array([[0.97], [late], [late]]) if structured else np.full((3, 1), 0.1)
            value = accuracy if structured else chance
            rows.append(Record({"structured": structured, "d": 100, "steps": 50}, seed, {
                "accuracy": value, "part_1": value, "curve": np.full((times, 2), value), "margin": 0.4,
                "cosines": np.concatenate([start, later * np.ones((3, 40))]) * np.where(np.arange(40) % 2, 1, -1),
            }))  # fmt: skip
    return Records(rows)


def test_claims_hold_and_fail():
    rows = claims(made_up())
    # 120 normal numbers for a median: the row about the start is left to the real run
    assert {c.verdict for c in rows if "at initialization" not in c.statement} == {"holds"} and len(rows) == 9
    failed = [c.statement for c in claims(made_up(0.844, 0.6, 0.9)) if c.verdict == "does not hold"]
    for words in ("worst seed", "part 1", "after step 2", "after training", "1/2"):
        assert any(words in s for s in failed), words
    assert len(figure(made_up()).axes) == 2


def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}


@pytest.mark.parametrize("steps", [25, 300])
def test_curves_have_a_point_for_start_two_steps_and_every_25(steps):
    assert list(curve_steps(steps)[:4]) == [0, 1, 2, 27] and len(curve_steps(steps)) == 3 + steps // 25
