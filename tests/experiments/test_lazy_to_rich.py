"""lazy_to_rich, small: α moves the network between the regimes; claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records, config
from unlazy.lab.experiments.lazy_to_rich import experiment

SMALL = config(
    {"part": ["scale"], "parametrization": ["ntk"], "width": [64], "scale": [0.1, 10.0]},
    {"part": ["width"], "parametrization": ["ntk", "mean_field"], "scale": [1.0], "width": [32, 64]},
    seeds=3, steps=4000,
)  # fmt: skip


@pytest.fixture(scope="module")
def records():
    return run(experiment, SMALL, engine="inline", store=None, progress=False)


def test_output_scale_moves_between_the_regimes(records):
    rich, lazy = records.where(scale=0.1), records.where(scale=10.0)
    assert records.measure("reached").all()
    assert (rich.measure("risk") < 0.7 * lazy.measure("risk")).all()  # quick finds a factor of ten at 0.03 against 30
    assert (rich.measure("drift") > 20 * lazy.measure("drift")).all()
    np.testing.assert_allclose(lazy.measure("risk"), lazy.measure("linear_risk"), rtol=0.25)
    assert len(experiment.figure(records).axes) == 3


def test_claims_notice_a_network_that_never_moves(records):
    still = Records(replace(r, measures=r.measures | {"risk": 0.1, "drift": 0.1, "reached": False}) for r in records)
    verdicts = [c.verdict for c in experiment.claims(still)]
    assert verdicts.count("holds") <= 2  # the linearization's risk and mean field's flat slope may still fit


@pytest.mark.nightly
@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
