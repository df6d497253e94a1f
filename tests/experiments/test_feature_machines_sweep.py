"""feature_machines, small: machines find the direction, fixed kernels do not; claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records, config
from unlazy.lab.experiments.feature_machines import BOUNDS, NAMES, experiment

SMALL = config({"d": [10], "method": list(NAMES), "n": [100, 316]}, seeds=3)


@pytest.fixture(scope="module")
def records():
    return run(experiment, SMALL, engine="inline", store=None, progress=False)


def test_machines_find_what_fixed_kernels_do_not(records):
    """The prototype's figures at d = 10, n = 316: Gaussian 0.12, NTK 0.28, without biases 0.79, alignments 0.93-1."""
    at = {m: records.where(method=m, n=316) for m in NAMES}
    assert np.median(at["gaussian"].measure("risk")) < 0.15
    assert np.median(at["ntk"].measure("risk")) < 0.5
    assert np.median(at["ntk_no_bias"].measure("risk")) > 0.6
    for m in ("gaussian", "laplace", "ntk"):
        assert np.median(at[m].measure("alignment")) > 0.97
        assert np.median(at[m].measure("risk")) < 0.8 * np.median(at[f"{m}_fixed"].measure("risk"))
    assert len(experiment.figure(records).axes) == 2


def test_claims_fail_for_a_machine_that_learns_nothing():
    blind = Records(
        Record({"d": d, "n": n, "method": m}, seed, {"risk": 1.0, "error": 0.0, "alignment": 0.2})
        for d, n, m, *_ in BOUNDS for seed in range(3)
    )  # fmt: skip
    verdicts = {c.statement: c.verdict for c in experiment.claims(blind)}
    assert len(verdicts) == len(BOUNDS)
    assert all(v == "does not hold" for s, v in verdicts.items() if "machine:" in s)
    perfect = Records(replace(r, measures={"risk": 0.0, "error": 0.0, "alignment": 1.0}) for r in blind)
    assert [c.verdict for c in experiment.claims(perfect)].count("does not hold") == 4  # the ones that must stay high


def test_unknown_method():
    import jax

    with pytest.raises(ValueError, match="method must be one of"):
        experiment.trial({"d": 5, "n": 10, "method": "magic"}, jax.random.key(0))
