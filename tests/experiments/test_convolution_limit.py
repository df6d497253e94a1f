"""convolution_limit: the quick configuration holds, its limits are in float64, and claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.convolution_limit import errors, experiment, limits


@pytest.fixture(scope="module")
def records():
    return run(experiment, engine="inline", store=None, progress=False)


def test_quick_holds(records):
    claims = experiment.claims(records)
    assert len(claims) == 4 and {c.verdict for c in claims} == {"holds"}
    assert errors(records, "attention")[0] == [32, 256]
    assert len(experiment.figure(records).axes) == 2


def test_claims_notice_kernels_that_do_not_converge(records):
    stuck = Records(
        replace(r, measures={k: np.ones_like(v) * 0.1 * (1 + 0.1 * (r.seed % 16)) for k, v in r.measures.items()})
        for r in records
    )
    assert {c.verdict for c in experiment.claims(stuck)} == {"does not hold"}


def test_limits_are_in_float64_in_any_scope():
    for name in ("convolution", "attention"):
        assert all(K.dtype == np.float64 and np.array_equal(K, K.T) for K in limits(name))
