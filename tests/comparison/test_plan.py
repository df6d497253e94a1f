"""Plan of a study: finalists by training errors, predicted times from records, nothing that would end too late."""

import itertools
import time
from typing import ClassVar

import numpy as np
import pytest

from unlazy import lab
from unlazy.comparison.data.table import make_table
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.plan import FIT_SHARE, LAW_SECONDS, BudgetClock, StudyPlan
from unlazy.comparison.study.study import (
    _extend_study,
    _run_sizes,
    experiment,
    screening_rows,
    smallest_size,
    training_sizes,
)
from unlazy.lab.experiment import Record, Records
from unlazy.lab.runner.engines import Inline


def plan(budget=100.0, **inner):
    """Records of two splits at 100 rows: training errors as given, a second of work each."""
    rows = [
        Record({"candidate": name, "n": 100, "split": s}, 0, {"inner": e, "risk": 1 / e, "work": 1.0}, 1.0)
        for name, e in inner.items()
        for s in (0, 1)
    ]
    found = StudyPlan(experiment("."), "digest", BudgetClock(budget), ".", Inline())
    found.records = Records(rows)
    return found


def test_finalists_are_the_best_by_training_errors():
    """Test risks, here in the opposite order, are ignored; the best isotropic kernel is among the finalists."""
    errors = {"linear": 0.9, "gaussian": 0.5, "laplace": 0.4, "product_laplace": 0.2, "feature_machine": 0.1}
    found = plan(**errors, forest=0.3, boosting=0.35)
    names = [*errors, "forest", "boosting"]
    assert found.finalists(100, names) == ["product_laplace", "laplace", "feature_machine", "forest"]
    close = plan(gaussian=0.5, laplace=0.51, nngp=0.52, ntk=0.53, linear=0.54, product_laplace=0.9, feature_machine=0.1)
    assert close.finalists(100, [*names, "nngp", "ntk"])[:4] == ["gaussian", "laplace", "nngp", "ntk"]
    assert found.verdict_pair(100, names) == ["product_laplace", "feature_machine"]
    assert (
        found.complete_splits(100, ["laplace", "forest"]) == 2
        and found.complete_splits(100, ["laplace", "network"]) == 0
    )


def test_predicted_times_grow_with_rows_and_decide():
    found = plan(gaussian=0.5, feature_machine=0.4)
    assert found.trial_cost("gaussian", 100) == 1.0 and found.trial_cost("gaussian", 400) == pytest.approx(4**1.3)
    assert found.fits_budget(["gaussian"], [100], 5) and not found.fits_budget(["gaussian"], [1600], 5)
    found.clock.charge(90.0)  # stored trials count
    assert not found.fits_budget(["gaussian"], [100], 5)
    late = BudgetClock(100.0, time.monotonic() - 99)
    assert late.remaining() < 0 and late.deadline() < time.monotonic()


def test_predicted_times_grow_as_measured_between_sizes():
    """Four times the work for twice the rows: a power of two; sizes too quick to tell say nothing."""
    found = plan(gaussian=0.5, feature_machine=0.4)
    more = [Record({"candidate": "gaussian", "n": 200, "split": 0}, 0, {"inner": 0.5, "work": 4.0}, 4.0)]
    found.records = Records([*found.records, *more])
    assert found.trial_cost("gaussian", 400) == pytest.approx(16.0)
    quick = [Record({"candidate": "ntk", "n": n, "split": 0}, 0, {"inner": 0.5, "work": w}, w)
             for n, w in ((100, 0.01), (200, 1.0))]  # fmt: skip
    found.records = Records([*found.records, *quick])
    assert found.trial_cost("ntk", 400) == pytest.approx(2**1.3)


def test_time_of_the_final_fit_law_and_page_is_reserved_and_grows_under_load():
    """A machine on which work takes three times its seconds: so do the page, the law and the last fit."""
    idle, busy = plan(budget=1000.0, gaussian=0.5, feature_machine=0.4), plan(budget=1000.0)
    busy.records = Records([Record(r.params, 0, r.measures, 3 * r.seconds) for r in idle.records])
    for found in (idle, busy):
        found.rows = 10_000
        found.run(["gaussian"], [], [])  # nothing
        found.clock.slowdown = found._slowdown
    assert busy.clock.reserve == pytest.approx(3 * idle.clock.reserve)
    assert (
        idle.final_fit_seconds() == pytest.approx(LAW_SECONDS + min(1000 * FIT_SHARE, 100**1.3))
        and busy.final_fit_seconds() > idle.final_fit_seconds()
    )
    idle.workers.n_jobs = 2  # the law beside the fit
    assert idle.final_fit_seconds() == pytest.approx(min(1000 * FIT_SHARE, 100**1.3))
    work = (
        idle.clock.remaining(idle.final_fit_seconds()) - 1
    ) / 2.0  # splits of both: two seconds of work by two workers
    assert idle.fits_budget(["gaussian", "feature_machine"], [100], int(2 * work))
    assert not idle.fits_budget(["gaussian", "feature_machine"], [100], int(2 * work) + 4)


def test_two_workers_do_not_share_one_trial():
    """A trial of 60 s and one of a second end after 60 s, not after half of 61; who was not tried may be as slow."""
    found = plan(budget=60.0 + 7.0, gaussian=0.5)
    found.workers.n_jobs = 2
    long = Record({"candidate": "feature_machine", "n": 100, "split": 0}, 0, {"inner": 0.4, "work": 62.0}, 62.0)
    found.records = Records([*found.records, long])
    both = ["gaussian", "feature_machine"]
    assert not found.fits_budget(both, [100], 1) and found.fits_budget(["gaussian"], [100], 5)
    assert found.fits_budget(both, [100], 1, stretch=1.5) and not found.fits_budget(["forest"], [100], 1)


class Pretended(StudyPlan):
    """Trials that take as long as they did on a two-core machine (seconds at 3,750 rows of 20 columns)."""

    seconds: ClassVar = {"feature_machine": 24.8, "network": 60.0, "one_step": 60.0, "boosting": 2.5, "forest": 3.0}
    inner: ClassVar = {"feature_machine": 0.1, "product_laplace": 0.15, "laplace": 0.3, "boosting": 0.2}

    def run(self, names, sizes, splits, must_finish=False, share=1.0):
        known = {(r.params["candidate"], r.params["n"], r.params["split"]) for r in self.records}
        rows = []
        for name, n, s in itertools.product(names, sizes, splits):
            if (name, n, s) not in known:
                work = self.seconds.get(name, 6.0) * (n / 3750) ** (1.0 if name in self.seconds else 1.5)
                measures = {"inner": self.inner.get(name, 0.5), "risk": 0.5, "work": work}
                rows.append(Record({"candidate": name, "n": n, "split": s}, 0, measures, work))
        self.clock.charge(sum(r.seconds for r in rows) / self.n_jobs)
        self.records = Records([*self.records, *rows])


@pytest.mark.parametrize("rows, top", [(25, 19), (1200, 900), (5000, 3750), (40_000, 4000)])
def test_two_minutes_cover_three_quarters_of_a_table(rows, top):
    rng = np.random.default_rng(0)
    table = make_table(rng.normal(size=(rows, 1)), rng.normal(size=rows))
    workers = Inline()
    workers.n_jobs = 2
    plan = Pretended(experiment("."), "digest", BudgetClock(120.0), ".", workers, rows=rows)
    plan.clock.charge(8.0)  # until workers have started
    names = [name for name, c in CANDIDATES.items() if "regression" in c.tasks]
    climbed, finalists = _run_sizes(plan, table, names, 120.0)
    _extend_study(plan, climbed, finalists, names, smallest_size(table))
    assert max(climbed) == top and plan.complete_splits(top, finalists) >= 3
    assert {"product_laplace", "feature_machine"} <= set(finalists)
    # prices of larger sizes are guessed from smaller ones: by at most one split of the most expensive
    assert plan.clock.remaining() >= plan.final_fit_seconds() - 24.8


def test_first_trials_include_rare_classes_and_sizes_reach_three_quarters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    table = make_table(X, np.where(np.arange(4000) % 80 == 0, "rare", "usual"))
    assert (
        training_sizes(table)[-1] == 3000
        and screening_rows(table) == 1500
        and screening_rows(make_table(X, X[:, 0])) == 375
    )
    large = make_table(rng.normal(size=(9000, 1)), rng.normal(size=9000))
    assert training_sizes(large)[-1] == 4000 and training_sizes(large, 600)[-1] == 9000 - 2000


def test_a_fit_that_cannot_finish_takes_no_time_from_the_trials():
    found = plan(budget=100.0, gaussian=0.5, feature_machine=0.4)  # trials of a second
    found.rows = 10_000
    found.records = Records([Record(r.params, 0, r.measures | {"work": 6.0}, 6.0) for r in found.records])
    assert found.final_fit_seconds() == pytest.approx(LAW_SECONDS)
    found.rows = 240
    assert found.final_fit_seconds() == pytest.approx(LAW_SECONDS + 6.0 * 2.4**1.3)


def test_half_the_rows_suffice_until_the_verdict_has_its_splits():
    found = plan(budget=100.0, gaussian=0.5, feature_machine=0.4)
    found.rows = 200
    seconds = [Record(r.params, 0, r.measures | {"work": 6.0}, 6.0) for r in found.records]
    found.records = Records(seconds)
    assert found.complete_splits(
        100, ["gaussian", "feature_machine"]
    ) < 3 and found.final_fit_seconds() == pytest.approx(LAW_SECONDS)
    more = [Record(r.params | {"split": 2}, 0, r.measures, 6.0) for r in seconds if r.params["split"] == 0]
    found.records = Records([*seconds, *more])
    assert found.final_fit_seconds() == pytest.approx(LAW_SECONDS + 6.0 * 2**1.3)


def test_two_splits_at_once_where_one_trial_is_long():
    found = plan(budget=100.0, gaussian=0.5, feature_machine=0.4)
    found.workers.n_jobs = 2
    assert found.splits_at_once(["gaussian", "feature_machine"], 100) == 1
    work = {"gaussian": 0.1, "feature_machine": 5.0}
    found.records = Records([Record(r.params, 0, r.measures | {"work": work[r.params["candidate"]]}, 1.0)
                             for r in found.records if r.params["candidate"] in work])  # fmt: skip
    assert found.splits_at_once(["gaussian", "feature_machine"], 100) == 2
    found.workers.n_jobs = 1
    assert found.splits_at_once(["gaussian", "feature_machine"], 100) == 1


def test_a_share_of_the_budget_limits_trials(tmp_path, monkeypatch):
    workers, deadlines = Inline(), []

    def run(*_, engine, **__):
        deadlines.append(engine.until - time.monotonic())
        return Records()

    monkeypatch.setattr(lab, "run", run)
    plan = StudyPlan(experiment(tmp_path), "digest", BudgetClock(100.0, page=False), tmp_path, workers)
    plan.run(["forest"], [500], [0])
    plan.run(["forest"], [500], [0], share=0.3)
    np.testing.assert_allclose(deadlines, [100, 30], atol=5)  # the calls themselves take milliseconds
    assert workers.until is None
