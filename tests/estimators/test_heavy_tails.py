"""Heavy-tailed labels: detected in the residuals, clipped if held-out rows confirm it, and reported."""

import numpy as np
import pytest
from scipy import stats

import unlazy
from unlazy.estimators import FeatureMachineRegressor
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.choices import clip_labels, kurtosis, outlier_treatment, residual_tail
from unlazy.estimators.preprocessing.columns import weighted_median

SETTINGS = {"kernel": "gaussian", "metric": "diagonal", "updates": 1}


def outliers(n=150, seed=0):
    """A smooth function, small noise, and every twentieth label far off."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    truth = np.sin(X[:, 0]) + 0.5 * X[:, 1]
    y = truth + 0.1 * rng.normal(size=n)
    y[::20] += 10 * rng.choice([-1, 1], size=len(y[::20]))
    return X, y, truth


def test_the_statistic_is_that_of_scipy_and_weights_count_rows():
    rng = np.random.default_rng(0)
    V, counts = rng.standard_t(3, size=(60, 2)), rng.integers(1, 4, 60)
    np.testing.assert_allclose(kurtosis(V, None), stats.kurtosis(V, fisher=False), rtol=1e-12)
    again, weights = np.repeat(V, counts, 0), counts.astype(float)
    np.testing.assert_allclose(kurtosis(V, weights), kurtosis(again, None), rtol=1e-12)
    Y, F = V + rng.normal(size=(60, 2)), 0.3 * V
    once = residual_tail(F, TrainingData(F, Y, weights))
    often = residual_tail(np.repeat(F, counts, 0), TrainingData(again, np.repeat(Y, counts, 0), None))
    np.testing.assert_allclose(once.kurtosis, often.kurtosis, rtol=1e-12)
    np.testing.assert_allclose(
        weighted_median(np.abs(Y), weights), weighted_median(np.repeat(np.abs(Y), counts, 0), None), rtol=1e-15
    )


def test_only_heavy_residuals_that_matter_are_clipped():
    rng = np.random.default_rng(0)
    normal, heavy = rng.normal(size=400), rng.standard_t(1.5, size=400)
    F = np.zeros((400, 3))
    Y = np.stack([normal, heavy, 1e3 * normal + heavy], 1)
    F[:, 2] = 1e3 * normal  # what is left is heavy, but a small share
    seen = residual_tail(F, TrainingData(F, Y, None))
    np.testing.assert_array_equal(np.isfinite(seen.limit), [False, True, False])
    assert seen.limit[1] == pytest.approx(3 * 1.4826 * np.median(np.abs(heavy)), rel=1e-12)
    found = clip_labels(TrainingData(F, Y, None), F, seen.limit).Y
    np.testing.assert_array_equal(found[:, [0, 2]], Y[:, [0, 2]])
    assert np.abs(found[:, 1]).max() == pytest.approx(seen.limit[1])
    few = np.r_[normal[:29], 30.0][:, None]
    assert np.isinf(residual_tail(0 * few, TrainingData(few, few, None)).limit).all()  # one odd row is no tail
    kept = np.abs(heavy) < seen.limit[1]
    np.testing.assert_array_equal(found[kept, 1], heavy[kept])


def test_the_verdict_needs_more_than_a_standard_error():
    Y = np.zeros((100, 1))
    rng = np.random.default_rng(0)
    one = 1 + 0.1 * rng.normal(size=(100, 1))
    data = TrainingData(Y, Y, None)
    assert outlier_treatment(one, 0.5 * one, data) == "clipped"
    assert outlier_treatment(0.5 * one, one, data) == "kept"
    doubtful = one.copy()
    doubtful[:2] = [[0.0], [1.3]]  # better in one row and worse in another: not surely
    assert outlier_treatment(one, doubtful, data) == "averaged"


def test_outliers_are_clipped_and_reported(tmp_path):
    X, y, _ = outliers()
    Z, _, truth = outliers(600, seed=1)
    model = FeatureMachineRegressor(**SETTINGS).fit(X, y)
    plain = FeatureMachineRegressor(**SETTINGS, robust=False).fit(X, y)
    assert model.outliers_ == "clipped" and plain.outliers_ == "kept"
    assert 0.1 < model.clip_[0] < 10 and np.isinf(plain.clip_).all()
    # six outliers of size 10 weigh as noise of variance 5: without them the error is that of the other labels
    assert np.mean((model.predict(Z) - truth) ** 2) < 0.5 * np.mean((plain.predict(Z) - truth) ** 2)
    assert model.leave_one_out_error_ < plain.leave_one_out_error_
    model.save(tmp_path / "machine")
    again = unlazy.load(tmp_path / "machine")
    np.testing.assert_array_equal(again.predict(Z), model.predict(Z))
    assert again.outliers_ == "clipped" and again.clip_ == model.clip_


def test_ordinary_labels_are_not_clipped():
    X, _, truth = outliers(100)
    y = truth + 0.3 * np.random.default_rng(2).normal(size=100)
    model, plain = (FeatureMachineRegressor(**SETTINGS, robust=robust).fit(X, y) for robust in (True, False))
    assert model.outliers_ == "kept" and np.isinf(model.clip_).all()
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


@pytest.mark.slow
def test_many_rows_of_a_heavy_target_are_clipped_too(monkeypatch):
    """With a single split, the first rows decide; the error is that of held-out rows with the labels they have."""
    monkeypatch.setattr(constants, "SINGLE_SPLIT_ROWS", 250)
    monkeypatch.setattr(constants, "HEAVY_KURTOSIS", 4.0)
    X, y, f = outliers(600)
    Z, _, truth = outliers(600, seed=1)
    y = y + 2 * f
    model = FeatureMachineRegressor(**SETTINGS).fit(X, y)
    plain = FeatureMachineRegressor(**SETTINGS, robust=False).fit(X, y)
    assert model.outliers_ == "clipped" and np.isfinite(model.clip_).all()
    assert np.mean((model.predict(Z) - 3 * truth) ** 2) < 0.5 * np.mean((plain.predict(Z) - 3 * truth) ** 2)
    assert model.leave_one_out_error_ > 0.5 * np.var(y - 3 * f) / np.var(y)  # outliers cannot be predicted
