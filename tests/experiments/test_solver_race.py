"""solver_race on tiny sizes: every method runs, and the claims follow from the records by their stated rules."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.solver_race import METHODS, experiment


@pytest.fixture(scope="module")
def records():
    return run(experiment, seeds=1, change={"n": [150, 300]}, engine="inline", store=None, progress=False)


def test_every_method_runs_and_all_points_give_the_direct_error(records):
    assert {r.params["method"] for r in records} == set(METHODS)
    for n in (150, 300):
        direct, cg = (records.where(n=n, method=m)[0].measures for m in ("direct", "preconditioned_cg"))
        assert direct["converged"] and cg["converged"]
        # fitted values agree to 1e-3·‖y‖, so errors near 0.1 agree to about 2·1e-3·|f| of that size
        assert cg["error"] == pytest.approx(direct["error"], rel=0.02)
        assert np.isfinite(records.where(n=n, method="richardson")[0].measures["curve"]).any()


def with_times(records, power):
    """The records with CPU times that grow as n^power for every method."""
    return Records(replace(r, measures=r.measures | {"cpu": r.params["n"] ** power, "steps": 10}) for r in records)


def test_exponents_are_read_off_the_times(records):
    yes, no = "holds", "does not hold"
    for power, verdicts in ((1.0, [yes, yes, yes]), (2.0, [yes, yes, no]), (4.0, [no, no, no])):
        found = experiment.claims(with_times(records, power))[:3]
        assert [c.verdict for c in found] == verdicts
        assert found[0].measured == pytest.approx(power)


def test_figure_has_its_panels(records):
    assert len(experiment.figure(records).axes) == 2
