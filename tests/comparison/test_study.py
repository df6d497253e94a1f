"""The study on small tables: splits without leakage, resumed after a stop, saved models that find their columns."""

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.comparison import study, trial
from unlazy.comparison.contestants import CONTESTANTS, find, fit_contestant
from unlazy.comparison.study import ladder, parse_budget, run_study, sampled
from unlazy.comparison.table import make_table

FEW = ("linear", "gaussian", "feature_machine")


def table(n=160, classes=False):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{j}": rng.normal(size=n) for j in range(4)})
    frame["colour"] = rng.choice(["red", "blue"], n)
    y = np.sin(2 * frame["x0"].to_numpy()) + 0.05 * rng.normal(size=n)
    return make_table(frame, np.where(y > 0, "up", "down") if classes else y)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Three splits, since the budget would allow more than the test needs."""
    t, store = table(), tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MOST", 3)
        found = unlazy.compare(t.frame, t.y, budget=60, models=FEW, engine="inline", progress=False, store=store)
    object.__setattr__(found, "store", store)  # for the test that runs it again
    return found


def test_splits_keep_equal_rows_together_and_sizes_nested():
    t = table(classes=True)
    doubled = make_table(pd.concat([t.frame, t.frame[:40]]), np.concatenate([t.y, t.y[:40]]))
    for number in range(3):
        train, test = trial.split(doubled, number)
        assert len(train) + len(test) == len(doubled) and not set(train) & set(test)
        assert not set(doubled.groups[train]) & set(doubled.groups[test])
        share = np.mean(doubled.y[train[:60]] == "up")
        assert abs(share - np.mean(doubled.y == "up")) < 0.08  # stratified: within a few rows of 60
    first, again = trial.split(doubled, 0), trial.split(doubled, 0)
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(trial.split(doubled, 1)[0], first[0])


def test_tables_travel_unchanged(tmp_path):
    t = table(classes=True)
    t.frame.loc[3, "colour"] = None
    digest = trial.save_table(t, tmp_path)
    again = trial.load_table(str(tmp_path), digest)
    pd.testing.assert_frame_equal(again.frame, t.frame)
    np.testing.assert_array_equal(again.y, t.y)
    assert again.digest == digest and again.task == t.task


def test_a_second_run_does_nothing_again(comparison, monkeypatch):
    def fail(*arguments, **more):
        raise AssertionError("run again")

    monkeypatch.setattr(study, "MOST", 3)
    monkeypatch.setattr(trial, "fit_contestant", fail)
    options = {"contestants": FEW, "engine": "inline", "progress": False}
    again = run_study(table(), budget=60, store=comparison.store, **options)
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


@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", ["linear", "boosting"])
def test_a_contestant_reports_its_error_on_training_rows(name, classify):
    check_contestant(name, classify)


@pytest.mark.slow
@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name not in ("linear", "boosting")])
def test_every_contestant_reports_its_error_on_training_rows(name, classify):
    check_contestant(name, classify, n=90)


def check_contestant(name, classify, n=48):
    """Better than a constant on rows that its fit had not seen, and on those it had."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=n)
    y = np.where(y > 0, "up", "down") if classify else y
    classes = np.array(["down", "up"]) if classify else None
    found = fit_contestant(find(name), X, y, classes, 0.0, 0)
    assert found.tried == 1 and 0 <= found.inner < 1
    assert np.mean(found.model.predict(X) == y) > 0.8 if classify else np.var(found.model.predict(X) - y) < np.var(y)


def test_sizes_budgets_and_samples():
    assert ladder(table()) == [30, 60, 120]
    assert (
        parse_budget("2m") == 120 and parse_budget("90s") == 90 and parse_budget(5) == 5 and parse_budget("1h") == 3600
    )
    for bad in ("", "two", "-1m", "nan"):
        with pytest.raises(ValueError, match="a budget looks like"):
            parse_budget(bad)
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        find("gausian")
    large = make_table(np.random.default_rng(0).normal(size=(50_000, 1)), np.arange(50_000.0))
    assert len(sampled(large)) == 40_000 and "40000 of 50000 rows" in sampled(large).notes[-1]
    train, test = trial.split(sampled(large), 0)
    assert sorted([*train, *test]) == list(range(40_000))
    with pytest.raises(ValueError, match="give y"):
        unlazy.compare(np.zeros((50, 2)))
