"""A comparison of a small table: not run again where it is stored, its tables, its page, and a saved model that finds
its columns."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_table import table
from test_verdict import flat
from test_verdict import study as study_of

import unlazy
from unlazy.comparison import compare as compare_module
from unlazy.comparison.compare import compare_table
from unlazy.comparison.data.table import make_table
from unlazy.comparison.report.paired_ratios import format_number
from unlazy.comparison.study import study, trial
from unlazy.comparison.study.held_out import held_out_residuals
from unlazy.comparison.study.model import predict_file
from unlazy.comparison.study.plan import BudgetClock
from unlazy.comparison.study.study import run_study
from unlazy.comparison.study.suspect_errors import SuspectErrors
from unlazy.lab.runner.engines import Inline

FEW = ("linear", "gaussian", "feature_machine")


def with_suspects(frame, y):
    """The inputs between an identifier and a copy of the target."""
    return pd.concat([pd.Series(np.arange(len(y))[::-1] + 7, name="key"), frame.assign(copy=2 * y + 1)], axis=1)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two splits, since the budget would allow more than the test needs; of a table with an identifier and a leak."""
    t, store = table(), tmp_path_factory.mktemp("store")
    frame = with_suspects(t.frame, t.y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MAX_SPLITS", 2)
        where = unlazy.StudyOptions(engine="inline", store=store)
        found = unlazy.compare(frame, t.y, budget=3600, models=FEW, study=where)
    object.__setattr__(found, "store", store)  # for the test that runs it again
    return found


@pytest.mark.slow
def test_a_second_run_repeats_nothing(comparison, monkeypatch):
    def fail(*arguments, **more):
        raise AssertionError("run again")

    monkeypatch.setattr(study, "MAX_SPLITS", 2)
    monkeypatch.setattr(trial, "fit_candidate", fail)
    options = {"candidates": FEW, "engine": "inline"}
    again = run_study(table(), budget=3600, store=comparison.store, **options)
    assert again.sizes == comparison.study.sizes and again.splits == comparison.study.splits
    assert [r.measures["risk"] for r in again.records] == [r.measures["risk"] for r in comparison.study.records]


def test_compare_on_a_function_of_one_input(comparison):
    c = comparison
    assert c.verdict.word in ("pays", "undecided", "does not pay")
    assert c.inputs["input"][0] == "x0" and c.inputs["matters"][0]
    assert set(c.curve_table["model"]) == set(FEW) and c.models["name"].iloc[0] != "linear"
    assert len(c.directions) == 6 and abs(c.directions.loc["x0", "direction 1"]) > 0.9


def test_the_saved_model_and_all_results_are_without_suspects(comparison, tmp_path):
    """The stored trials are those of the table without them (`test_a_second_run_repeats_nothing`)."""
    c, t = comparison, table()
    assert [(s.name, s.reason) for s in c.suspects] == [("copy", "leak"), ("key", "identifier")]
    assert not c.suspects_kept and c.study.budget == 3600 and c.study.table.digest == t.digest
    assert list(c.inputs["input"].sort_values()) == sorted(t.frame.columns)
    model = unlazy.load(c.save(tmp_path / "model.unlazy"))
    assert model[0].columns_ == list(t.frame.columns)
    told = c.suspect_errors
    assert told.rows == c.study.sizes[-1] and told.splits == 2 and 10 * told.with_them < told.without_them
    best = c.study.records.where(candidate=c.chosen, n=told.rows)
    assert told.without_them**2 == pytest.approx(np.mean(best.measure("risk") * best.measure("constant")), rel=1e-12)
    assert f"without them and an RMSE of {format_number(told.with_them)} with them" in str(c)
    with pytest.warns(UserWarning, match="were ignored: key, copy"):
        np.testing.assert_array_equal(c.predict(with_suspects(t.frame, t.y)), c.predict(t.frame))
    t.frame.head(3).to_csv(tmp_path / "new.csv", index=False)
    np.testing.assert_allclose(
        predict_file(tmp_path / "model.unlazy", tmp_path / "new.csv")["y"], c.predict(t.frame)[:3]
    )


class Recorded:
    """Stands for the study, the comparison with the suspects and the final fit, and keeps what they were asked for."""

    def __init__(self, monkeypatch):
        self.studied = self.fitted = self.other = None
        for name in ("run_study", "measure_suspect_errors", "final_fits"):
            monkeypatch.setattr(compare_module, name, getattr(self, name))

    def run_study(self, table, *, budget, clock, **more):
        self.studied, self.budget, self.aside = table, budget, clock.aside
        return study_of(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))

    def measure_suspect_errors(self, found, other, name, clock, *, kept, **more):
        self.other, self.left = other, clock.aside
        return SuspectErrors(name, 300, 1, *((0.1, 0.9) if kept else (0.2, 0.8)))

    def final_fits(self, found, table, *more):
        self.fitted = table
        return None, None


def run(frame, y, **options):
    rows = make_table(frame, y)
    return compare_table(rows, clock=BudgetClock(120.0), store="nowhere", workers=Inline(), **options)


def test_most_of_the_budget_is_for_the_study_without_suspects(monkeypatch):
    asked, t = Recorded(monkeypatch), table()
    c = run(with_suspects(t.frame, t.y), t.y)
    assert list(asked.studied.frame.columns) == list(asked.fitted.frame.columns) == list(t.frame.columns)
    assert asked.budget == 120 and asked.aside == 12 and asked.left == 0  # a tenth is set aside, and is used then
    assert "copy" in asked.other.frame and c.suspect_errors.with_them == 0.2 and not c.suspects_kept
    np.testing.assert_array_equal(asked.other.groups, asked.studied.groups)  # the same splits


def test_suspects_are_kept_on_request(monkeypatch):
    asked, t = Recorded(monkeypatch), table()
    c = run(with_suspects(t.frame, t.y), t.y, keep_suspects=True)
    assert "copy" in asked.studied.frame and "copy" in asked.fitted.frame and list(asked.other.frame) == list(t.frame)
    assert c.suspects_kept and c.suspect_errors.with_them == 0.1 and len(c.suspects) == 2
    c = run(t.frame, t.y, keep_suspects=True)
    assert not c.suspects and not c.suspects_kept and c.suspect_errors is None and asked.aside == 0


def test_suspects_are_kept_if_there_is_no_other_input(monkeypatch):
    asked, t = Recorded(monkeypatch), table()
    c = run(with_suspects(t.frame, t.y)[["key", "copy"]], t.y)
    assert list(asked.fitted.frame.columns) == ["key", "copy"] and asked.other is None and asked.aside == 0
    assert c.suspects_kept and c.suspect_errors is None and {s.name for s in c.suspects} == {"key", "copy"}


def test_arrays_with_and_without_suspects_are_predicted(monkeypatch):
    """Columns of arrays are named by their place, also where some of them are left out."""
    asked, rng = Recorded(monkeypatch), np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y = X[:, 0] ** 2 + 0.1 * rng.normal(size=90)
    wide = np.c_[np.arange(90), X]
    c = run(wide, y)
    c = replace(c, study=replace(c.study, table=asked.studied))
    assert [s.name for s in c.suspects] == ["x0"]
    np.testing.assert_array_equal(c._inputs(wide), X)
    assert c._inputs(X) is X and list(c._inputs(wide).columns) == ["x1", "x2", "x3"]


def test_a_metric_must_fit(monkeypatch):
    Recorded(monkeypatch)
    t = table()
    with pytest.raises(ValueError, match="unknown metric 'rmsd'; did you mean 'rmse'"):
        unlazy.StudyOptions(metric="rmsd")
    with pytest.raises(ValueError, match="accuracy does not fit the target 'y', which holds numbers; choose rmse"):
        run(t.frame, t.y, study=unlazy.StudyOptions(metric="accuracy"))
    assert run(t.frame, t.y, study=unlazy.StudyOptions(metric="rmse")).study.metric.name == "rmse"


def test_saved_model_on_shuffled_missing_and_extra_columns(comparison, tmp_path):
    path = comparison.save(tmp_path / "model.unlazy")
    model, frame = unlazy.load(path), table().frame
    expected = comparison.predict(frame)
    np.testing.assert_array_equal(model.predict(frame), expected)
    np.testing.assert_array_equal(model.predict(frame[frame.columns[::-1]]), expected)
    with pytest.warns(UserWarning, match="were ignored: more"):
        np.testing.assert_array_equal(model.predict(frame.assign(more=1)), expected)
    with pytest.raises(ValueError, match="missing: x2, color"):
        model.predict(frame.drop(columns=["x2", "color"]))


def test_the_saved_model_has_intervals_of_test_rows(comparison):
    """Two splits test on a quarter of the rows each: the median of two order statistics is their mean."""
    missed = held_out_residuals(comparison.study, comparison.final.name)
    m = len(missed[0])
    k = -(-9 * (m + 1) // 10)  # ⌈0.9·(m + 1)⌉
    assert len(missed) == 2 and comparison.radius(0.9) == np.mean([np.sort(np.abs(part))[k - 1] for part in missed])
    found = [r.measures for r in comparison.study.records.where(candidate=comparison.final.name)][-1]
    squares = np.mean((comparison.study.table.y[found["held_out"]] - found["predicted"][:, 0]) ** 2)
    assert squares / found["constant"] == pytest.approx(found["risk"], rel=1e-12)  # nothing else was judged


@pytest.mark.slow
def test_page_and_figures(comparison, tmp_path):
    page = comparison.page(tmp_path)
    text = page.read_text()
    assert "Does feature learning pay" in text and text.count("data:image/png;base64") == 5
    assert "http://" not in text and "https://" not in text
    names = {"curves", "models", "structure", "held_out", "partial"}
    assert {p.stem for p in (tmp_path / "figures").glob("*.png")} == names
