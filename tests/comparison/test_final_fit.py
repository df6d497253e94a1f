"""The final fit stays within the remaining time: a smaller fit runs beside one that may take too long."""

import time

import numpy as np
import pandas as pd
import pytest
from test_verdict import TABLE, flat, study

from unlazy.comparison.data.table import make_table
from unlazy.comparison.study import final_fit as module
from unlazy.comparison.study.final_fit import affordable_rows, final_fits, minimum_rows
from unlazy.comparison.study.model import FinalModel
from unlazy.comparison.study.more_rows import MoreRowsLaw, fit_more_rows_law
from unlazy.comparison.study.plan import BudgetClock
from unlazy.comparison.study.verdict import decide_verdict
from unlazy.lab.experiment import Record, Records
from unlazy.measures.scaling_fit import Interval


def slow_trials(seconds):
    """A study whose trials of 300 rows took so many seconds."""
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.7))
    rows = [Record(r.params, r.seed, r.measures, seconds * r.params["n"] / 300) for r in found.records]
    return type(found)(**{**vars(found), "records": Records(rows)})


class Workers:
    """Two workers that finish the calls with these numbers only."""

    n_jobs = 2

    def __init__(self, *ending):
        self.ending, self.asked = ending, None

    def attempt(self, calls, needed, until, sure):
        self.asked = calls, needed, until, sure
        return [call() if i in self.ending else None for i, call in enumerate(calls)]


@pytest.fixture
def fits(monkeypatch):
    """Replace fits by a count of rows, and the law by a constant."""
    made = []

    def fit_table(table, name, *, seed=0):
        made.append(len(table))
        return FinalModel(None, name, len(table), 0.1)

    monkeypatch.setattr(module, "fit_table", fit_table)
    monkeypatch.setattr(module, "fit_more_rows_law", lambda *given: LAW)
    monkeypatch.setattr(module, "attach_residuals", lambda final, study: final)
    return made


LAW = MoreRowsLaw("gaussian", 400, 0.5, Interval(0.4, 0.3, 0.5), 400)
LARGE = make_table(np.random.default_rng(0).normal(size=(100_000, 3)), np.random.default_rng(1).normal(size=100_000))


def test_an_unfinished_long_fit_falls_back_to_the_short_one(fits):
    """300 rows took 1 s, 50 are left: 100 s are 3,000 rows by the square, 25 s are 1,500."""
    found, clock = slow_trials(1.0), BudgetClock(50.0, page=False)
    workers = Workers(1, 2)
    final, law = final_fits(found, LARGE, decide_verdict(found), workers, clock)
    calls, needed, until, sure = workers.asked
    assert len(calls) == 3 and needed == [0, 2] and sure == [0, 1] and until == clock.deadline() and law == LAW
    assert fits == [final.rows] and final.rows == pytest.approx(1500, rel=0.02)
    assert f"{final.rows:,} of 100,000 rows" in final.notes[-1]
    final, law = final_fits(found, LARGE, decide_verdict(found), Workers(0), BudgetClock(50.0, page=False))
    assert final.rows == pytest.approx(3000, rel=0.02) and law is None
    final, _ = final_fits(found, TABLE, decide_verdict(found), Workers(0), clock)  # all rows, where they are few
    assert final.rows == len(TABLE) and not final.notes


def test_without_time_left_few_rows_are_fitted_and_there_is_no_law(fits):
    found, workers = slow_trials(1.0), Workers(0, 1, 2)
    final, law = final_fits(found, LARGE, decide_verdict(found), workers, BudgetClock(50.0, time.monotonic() - 60))
    assert workers.asked is None and fits == [final.rows] == [400] and law is None


def test_rows_of_the_final_fit_follow_measured_times():
    found = slow_trials(4.0)
    assert (
        affordable_rows(found, "gaussian", 4.0, LARGE) == affordable_rows(found, "gaussian", 2.0, LARGE) == 400
    )  # the least
    assert (
        affordable_rows(found, "gaussian", 64.0, LARGE) == 1200
        and affordable_rows(found, "gaussian", 1e9, LARGE) == 100_000
    )
    assert minimum_rows(LARGE) == 400 and minimum_rows(make_table(np.eye(600) + 1e-3, np.arange(600.0))) == 163


def test_the_model_is_the_trial_with_more_rows_than_a_fit_in_time(fits, monkeypatch):
    """3,000 rows may be fitted, 1,500 surely: beside a trial's 2,000 only the first is worth it, and nothing waits."""
    found, workers = slow_trials(1.0), Workers(1)
    monkeypatch.setattr(module, "load_trial_model", lambda study, name, store: FinalModel(None, name, 2000, 0.1))
    final, law = final_fits(
        found, LARGE, decide_verdict(found), workers, BudgetClock(50.0, page=False), store="somewhere"
    )
    assert len(workers.asked[0]) == 2 and workers.asked[3] == [] and final.rows == 2000 and law == LAW and not fits
    assert "2,000 of 100,000 rows" in final.notes[-1]
    final, _ = final_fits(
        found, LARGE, decide_verdict(found), Workers(0, 1), BudgetClock(50.0, page=False), store="somewhere"
    )
    assert final.rows == pytest.approx(3000, rel=0.02)
    late, none = BudgetClock(50.0, time.monotonic() - 60), Workers()
    final, law = final_fits(found, LARGE, decide_verdict(found), none, late, store="somewhere")
    assert final.rows == 2000 and none.asked is None and law is None


def test_few_groups_have_no_law_of_more_rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(240, 2)), columns=["a", "b"])
    for rows_each, has_law in ((1, True), (3, False)):
        data = frame.assign(patient=[f"p{i // rows_each}" for i in range(240)])
        table = make_table(data, frame.a + 0.1 * rng.normal(size=240), group="patient")
        assert (fit_more_rows_law(table, ["linear"]) is not None) is has_law
