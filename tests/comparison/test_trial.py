"""Candidates estimate their error on training rows alone."""

import jax
import numpy as np
import pytest
from sklearn.metrics import log_loss

from unlazy.comparison.data.table import make_table, save_table
from unlazy.comparison.study import trial
from unlazy.comparison.study.candidates import CANDIDATES, find_candidate
from unlazy.comparison.study.model import load_trial_model
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.trial import fit_candidate
from unlazy.lab.experiment import Record, Records


@pytest.mark.slow_cases("boosting-False", "boosting-True")
@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", ["linear", "boosting"])
def test_a_candidate_reports_its_error_on_training_rows(name, classify):
    check_candidate(name, classify)


@pytest.mark.slow
@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", [name for name in CANDIDATES if name not in ("linear", "boosting")])
def test_every_candidate_reports_its_error_on_training_rows(name, classify):
    if classify < ("regression" not in find_candidate(name).tasks):
        pytest.skip("for classes alone")
    check_candidate(name, classify, n=90)


def check_candidate(name, classify, n=48):
    """Better than a constant on rows that its fit had not seen, and on those it had."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=n)
    y = np.where(y > 0, "up", "down") if classify else y
    classes = np.array(["down", "up"]) if classify else None
    found = fit_candidate(find_candidate(name), X, y, classes, 0)
    assert found.tried == len(find_candidate(name).options) and 0 <= found.inner < 1
    assert np.mean(found.model.predict(X) == y) > 0.8 if classify else np.var(found.model.predict(X) - y) < np.var(y)


def test_errors_of_classes_are_relative_to_a_constant():
    """Against scikit-learn; the constant predicts the training frequencies 1/2, 1/3, 1/6, and the first class."""
    classes, y = np.array(["a", "b", "c"]), np.array(list("aaabbc"))
    truth, rng = np.array(list("abcaabbcca")), np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 10)
    found = trial._class_errors(P, truth, y, classes)
    constant = np.tile([1 / 2, 1 / 3, 1 / 6], (10, 1))
    assert found["log_loss"] == pytest.approx(log_loss(truth, P, labels=classes), rel=1e-12)
    assert found["surprise"] == pytest.approx(found["log_loss"] / log_loss(truth, constant, labels=classes), rel=1e-12)
    wrong = np.mean(classes[np.argmax(P, 1)] != truth)
    assert found["mistaken"] == pytest.approx(wrong / 0.6, rel=1e-12)  # 4 of 10 are a
    exact = trial._class_errors((truth[:, None] == classes).astype(float), truth, y, classes)
    assert exact["mistaken"] == pytest.approx(0.05 / 0.6, rel=1e-12) and exact["surprise"] == 0.05  # half a mistake
    never = trial._class_errors((truth[:, None] != classes) / 2.0, truth, y, classes)
    assert never["log_loss"] == pytest.approx(-np.log(1e-6), rel=1e-12)  # not infinite


def test_ranks_of_a_class_without_test_rows_are_unknown():
    classes, labels = np.array(["no", "yes"]), np.array(["no"] * 9 + ["yes"])
    P = np.linspace(0.1, 0.9, 4)[:, None] * [-1, 1] + [1, 0]
    absent = trial._ranks(P, np.array(["no"] * 4), labels, classes)
    assert set(absent) == {"auc", "precision", "missed"} and np.isnan(list(absent.values())).all()
    assert trial._ranks(P, np.array(["no"] * 3 + ["yes"]), labels, classes)["auc"] == 1.0


def test_the_model_of_a_long_trial_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "LONG_TRIAL", 0.0)
    key = jax.random.key(0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    table = make_table(X, X[:, 0] + 0.1 * rng.normal(size=80))
    params = {"candidate": "gaussian", "table": save_table(table, tmp_path), "n": 40, "split": 0}
    found = trial.run_trial(params, key, str(tmp_path))
    study = Study(table, ("gaussian",), (40,), 1, Records([Record(params, 0, found)]), 60.0)
    final = load_trial_model(study, "gaussian", tmp_path)
    assert final.rows == 40 and final.inner == found["inner"]
    predicted = final.model.predict(table.frame.iloc[found["held_out"]])
    np.testing.assert_array_equal(predicted, found["predicted"].ravel())
    assert load_trial_model(study, "linear", tmp_path) is None and load_trial_model(study, "gaussian", None) is None
    trial.run_trial(params | {"split": 1}, key, str(tmp_path))
    assert len(list((tmp_path / "fits").iterdir())) == 1


def test_references_have_fewer_options_for_many_classes():
    for name in ("forest", "boosting"):
        candidate = CANDIDATES[name]
        assert (
            candidate.options_for(5, 3) == candidate.options and candidate.options_for(5, 26) == candidate.wide_options
        )
    machine = CANDIDATES["feature_machine"]
    assert machine.options_for(5, 26) == machine.options != machine.options_for(500, 26)
