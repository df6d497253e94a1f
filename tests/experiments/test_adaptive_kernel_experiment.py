"""adaptive_kernel, small: all parts run, and claims notice a kernel that is off and predictors that lose."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments._tables import TABLES, table
from unlazy.lab.experiments.adaptive_kernel import experiment


@pytest.fixture(scope="module")
def records():
    return run(experiment, engine="inline", store=None, progress=False)


def test_claims_notice_a_kernel_that_is_off(records):
    assert len(experiment.claims(records)) == 7 and len(experiment.figure(records).axes) == 1
    far = {"f": np.array([1.0, 0.0]), "kernel": np.array([1.0, 0.0]), "nngp": 1.0, "ntk": 1.0, "machine": 1.0}
    far |= {"adaptive": 1.1, "rich": 1.2}
    off = Records(replace(r, measures={k: far.get(k, v) for k, v in r.measures.items()}) for r in records)
    verdicts = [c.verdict for c in experiment.claims(off)]
    assert verdicts.count("does not hold") == 6  # where richness must not pay a loss is no surprise


def test_tables_keep_their_inner_products():
    for name in TABLES:
        X, y, _ = table(name, 0, 50, 30)
        assert X.shape[1] == 30 and np.isfinite(X).all() and abs(y[:50].mean()) < 1e-12
    few, many = (table("wine", 3, 50, c)[0] for c in (13, 30))
    # the same numbers scaled by √(30/13), so sums in another order only
    np.testing.assert_allclose(few @ few.T / 13, many @ many.T / 30, rtol=0, atol=1e-12 * np.abs(few @ few.T).max())


def test_the_kernel_describes_langevin_networks(records):
    claims = experiment.claims(records)
    assert all(c.verdict == "holds" for c in claims if "Langevin" in c.statement)
