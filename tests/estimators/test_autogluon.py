"""The feature machine as a model of AutoGluon and TabArena. Skipped without `autogluon.tabular`, which is large:
install it into an environment of its own (`pip install autogluon.tabular pytest .`) to run these tests.
"""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("autogluon.tabular")

from autogluon.tabular import TabularPredictor
from autogluon.tabular.testing import FitHelper

import unlazy
from unlazy.estimators.autogluon import FeatureMachineModel


def _frame(n):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "a": rng.normal(size=n), "b": rng.normal(size=n), "city": rng.choice(["x", "y", "z", None], n),
        "flag": rng.random(n) < 0.5, "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, n), "D"),
    })  # fmt: skip
    frame.loc[::7, "a"] = np.nan
    return frame, np.nan_to_num(frame.a) * 2 + np.sin(3 * frame.b) + (frame.city == "x") * 2


def _fit(frame, target, **limits):
    predictor = TabularPredictor("y", verbosity=0)
    predictor.fit(
        frame.assign(y=target), hyperparameters={FeatureMachineModel: {}}, fit_weighted_ensemble=False, **limits
    )
    return predictor, predictor._trainer.load_model(predictor.model_names()[0])


@pytest.mark.parametrize("larger", [False, True])
def test_autogluon_verifies_the_model(larger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FitHelper.verify_model(FeatureMachineModel, {}, refit_full=True, use_larger_toy_datasets=larger)


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_predictions_are_those_of_the_machine(classes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, signal = _frame(400)
    target = signal if classes == 0 else pd.qcut(signal, classes, labels=list("abcd")[:classes]).astype(str)
    train, test = slice(0, 300), slice(300, 400)
    predictor, model = _fit(frame[train], target[train], tuning_data=frame[test].assign(y=target[test]))
    encoded = predictor.transform_features(frame)
    kind = unlazy.FeatureMachineRegressor if classes == 0 else unlazy.FeatureMachineClassifier
    labels = target[train] if classes == 0 else predictor.transform_labels(target[train])
    machine = kind(random_state=model.random_seed).fit(encoded[train], np.asarray(labels))
    if classes == 0:
        np.testing.assert_allclose(predictor.predict(frame[test]), machine.predict(encoded[test]), rtol=1e-5)  # float32
    else:
        shares = predictor.predict_proba(frame[test]).to_numpy()
        np.testing.assert_allclose(shares, machine.predict_proba(encoded[test]), atol=1e-5)


def test_a_short_time_limit_leaves_one_kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, signal = _frame(800)
    predictor, model = _fit(frame, signal, time_limit=2)
    assert model.params_trained["effort"] == "low"
    assert predictor.refit_full() and np.isfinite(predictor.predict(frame)).all()
