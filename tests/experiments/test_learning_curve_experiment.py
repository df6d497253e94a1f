"""learning_curve_law at toy size: the formula holds, and the claims notice another one."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.learning_curve_law import RIDGES, experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def records():
    change = {"n": [48, 96], "decay": [1.8], "modes": [300]}
    return run(experiment, seeds=48, change=change, engine="inline", store=None, progress=False)


def spoiled(records, name, by):
    return Records(replace(r, measures={**r.measures, name: by(r.measures[name])}) for r in records)


def test_the_formula_holds(records):
    assert experiment.claims(records)[0].verdict == "holds"
    assert records.measure("risk").shape == (96, len(RIDGES))


def test_another_formula_is_detected(records):
    assert experiment.claims(spoiled(records, "theory", lambda v: 1.3 * v))[0].verdict == "does not hold"
    assert experiment.claims(spoiled(records, "theory", lambda v: 1.3 * v))[1].verdict == "does not hold"
    assert experiment.claims(spoiled(records, "estimate", lambda v: 1.2 * v))[2].verdict == "does not hold"


def test_the_figure_has_its_panels(records):
    assert len(experiment.figure(records).axes) == 2


@pytest.mark.nightly
def test_quick_holds():
    found = run(experiment, engine="inline", store=None, progress=False)
    assert all(c.verdict == "holds" for c in experiment.claims(found))
