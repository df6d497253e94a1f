"""A comparison of a small table: not run again where it is stored, its tables, its page, and a saved model that finds
its columns."""

import numpy as np
import pytest
from test_table import table

import unlazy
from unlazy.comparison.study import study, trial
from unlazy.comparison.study.held_out import held_out_residuals
from unlazy.comparison.study.study import run_study

FEW = ("linear", "gaussian", "feature_machine")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two splits, since the budget would allow more than the test needs."""
    t, store = table(), tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MAX_SPLITS", 2)
        where = unlazy.StudyOptions(engine="inline", store=store)
        found = unlazy.compare(t.frame, t.y, budget=3600, models=FEW, study=where)
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
