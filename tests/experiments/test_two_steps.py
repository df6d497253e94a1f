"""two_steps: the exact part at toy width, claims that can fail, the quick sweep."""

import jax
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import two_steps


def made_up(growth=1e6, cosine=0.998, rescaled=1.0):
    rows = []
    for seed in range(2):
        rows.append(Record({"part": "exact"}, seed, {
            "ratio": np.outer([600, 600 * growth], np.ones(9)), "signal": np.full((2, 9), 0.48)}))  # fmt: skip
        for regime, values in (("forgetting", (0.05, 0.96, cosine)), ("gradual", (0.07, 0.2, 0.88))):
            params = {"part": "sampled", "regime": regime, "samples": 20_000}
            rows.append(Record(params, seed, {
                "cosines": np.outer(values, np.ones(9)), "ratio": np.full((2, 9), 60.0), "margin": 0.4,
                "controls": np.array([0.84, 1.0, rescaled, 0.84])}))  # fmt: skip
    return Records(rows)


def test_exact_part_at_a_few_neurons(x64):
    found = jax.device_get(two_steps.exact(20, jax.random.key(0)))
    assert np.median(found["ratio"][1]) > 100 * np.median(found["ratio"][0])
    # P(0 < b + noise < 1) for b ~ N(0, 0.3²), noise N(0, 0.3² + 0.2²): between 0 and 1, about a half at the median
    assert 0.3 < np.median(found["signal"]) < 0.7


def test_claims_hold_and_fail():
    assert {c.verdict for c in two_steps.claims(made_up())} == {"holds"}
    failed = [c.statement for c in two_steps.claims(made_up(50, 0.95, 0.84)) if c.verdict == "does not hold"]
    assert len(failed) == 4 and any("norms of step 2" in s for s in failed)
    assert len(two_steps.figure(made_up()).axes) == 3


@pytest.mark.nightly
def test_quick_holds():
    records = run(two_steps.experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in two_steps.claims(records)} == {"holds"}
