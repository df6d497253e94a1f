"""A comparison of a small table: not run again where it is stored, its tables, its page, and a saved model that finds
its columns."""

import numpy as np
import pytest
from test_table import table

import unlazy
from unlazy.comparison import study, trial
from unlazy.comparison.study import run_study

FEW = ("linear", "gaussian", "feature_machine")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two splits, since the budget would allow more than the test needs."""
    t, store = table(), tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MOST", 2)
        found = unlazy.compare(t.frame, t.y, budget=3600, models=FEW, engine="inline", progress=False, store=store)
    object.__setattr__(found, "store", store)  # for the test that runs it again
    return found


def test_a_second_run_does_nothing_again(comparison, monkeypatch):
    def fail(*arguments, **more):
        raise AssertionError("run again")

    monkeypatch.setattr(study, "MOST", 2)
    monkeypatch.setattr(trial, "fit_contestant", fail)
    options = {"contestants": FEW, "engine": "inline", "progress": False}
    again = run_study(table(), budget=3600, store=comparison.store, **options)
    assert again.sizes == comparison.study.sizes and again.splits == comparison.study.splits
    assert [r.measures["risk"] for r in again.records] == [r.measures["risk"] for r in comparison.study.records]


def test_the_answer_on_a_ridge_of_one_input(comparison):
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
    with pytest.warns(UserWarning, match="left aside: more"):
        np.testing.assert_array_equal(model.predict(frame.assign(more=1)), expected)
    with pytest.raises(ValueError, match="missing: x2, colour"):
        model.predict(frame.drop(columns=["x2", "colour"]))


def test_page_and_figures(comparison, tmp_path):
    page = comparison.page(tmp_path)
    text = page.read_text()
    assert "Does feature learning pay" in text and text.count("data:image/png;base64") == 3
    assert "http://" not in text and "https://" not in text
    assert {p.name for p in (tmp_path / "figures").glob("*.png")} == {"curves.png", "models.png", "structure.png"}
