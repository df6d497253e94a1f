"""Prediction intervals: the order statistic and its level against sorting, counting and refits."""

import math

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler, StandardScaler

import unlazy
from unlazy.estimators import GaussianProcess, KernelClassifier, KernelRegressor, NetworkRegressor
from unlazy.estimators.intervals import conformal_radius

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("m, level", [(9, 0.9), (19, 0.95), (50, 0.9), (75, 0.5), (10, 0.3)])
def test_the_order_statistic_has_its_finite_sample_level(m, level):
    """Of exchangeable values the k-th of m is at least the next with probability k/(m + 1), exactly."""
    k = math.ceil(round((m + 1) * level, 9))
    draws = RNG.standard_t(2, size=(4000, m + 1))
    radius = conformal_radius(draws[:, :m].T, level)
    np.testing.assert_array_equal(radius, np.sort(np.abs(draws[:, :m]), 1)[:, k - 1])
    covered, expected = np.mean(np.abs(draws[:, m]) <= radius), k / (m + 1)
    assert expected >= level - 1e-12
    assert abs(covered - expected) < 4 * math.sqrt(expected * (1 - expected) / len(draws))  # standard errors


def test_weights_count_rows_and_outputs_are_apart():
    missed, counts = RNG.normal(size=(30, 2)), RNG.integers(1, 4, 30)
    once = conformal_radius(missed, 0.8, counts.astype(float))
    np.testing.assert_array_equal(once, conformal_radius(np.repeat(missed, counts, 0), 0.8))
    np.testing.assert_array_equal(once[1:], conformal_radius(missed[:, 1:], 0.8, counts.astype(float)))


def test_levels_without_coverage_are_rejected():
    with pytest.raises(
        ValueError, match=r"0\.95 needs at least 19 held-out rows, got 10; use a level of at most 0\.909"
    ):
        conformal_radius(np.ones((10, 1)), 0.95)
    for level in (0.0, 1.0, 90):
        with pytest.raises(ValueError, match="between 0 and 1"):
            conformal_radius(np.ones((10, 1)), level)


def test_held_out_residuals_are_those_of_refits(tmp_path):
    X, y = RNG.normal(size=(12, 2)), RNG.normal(size=12)
    make = lambda: KernelRegressor("gaussian", bandwidth=1.3, ridge=0.1)  # noqa: E731
    model = make().fit(X, y)
    K = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1) / 1.3**2)
    missed = []
    for i in range(12):
        rest = np.delete(np.arange(12), i)
        system = np.block([[K[np.ix_(rest, rest)] + 0.1 * np.eye(11), np.ones((11, 1))], [np.ones((1, 11)), 0]])
        solved = np.linalg.solve(system, np.append(y[rest], 0))
        missed.append(abs(y[i] - K[i, rest] @ solved[:11] - solved[11]))
    # 13·0.75 is 9.75: the tenth of twelve; a solve of a system of condition about 100 in float64
    expected = np.sort(missed)[9]
    low, high = model.predict_interval(X, 0.75).T
    np.testing.assert_allclose(0.5 * (high - low), expected, rtol=1e-11)
    np.testing.assert_allclose(0.5 * (high + low), model.predict(X), rtol=1e-12)
    model.save(tmp_path / "m.unlazy")
    np.testing.assert_array_equal(
        unlazy.load(tmp_path / "m.unlazy").predict_interval(X, 0.75), np.stack([low, high], 1)
    )
    two = make().fit(X, np.stack([y, 2 * y], 1)).predict_interval(X, 0.75)
    assert two.shape == (12, 2, 2)
    np.testing.assert_allclose(np.diff(two[:, 1])[:, 0], 4 * expected, rtol=1e-11)


def test_intervals_through_pipelines():
    X, y = RNG.normal(size=(20, 2)), RNG.normal(size=20)
    inner = make_pipeline(StandardScaler(), "passthrough", KernelRegressor("gaussian"))
    model = make_pipeline(RobustScaler(), inner).fit(X, y)
    scaled = StandardScaler().fit_transform(RobustScaler().fit_transform(X))
    expected = KernelRegressor("gaussian").fit(scaled, y).predict_interval(scaled, 0.8)
    np.testing.assert_array_equal(unlazy.predict_interval(model, X, 0.8), expected)
    np.testing.assert_array_equal(unlazy.predict_interval(model[-1][-1], scaled, 0.8), expected)
    with pytest.raises(ValueError, match="predicts classes, which have no intervals"):
        unlazy.predict_interval(KernelClassifier().fit(X, y > 0), X)
    with pytest.raises(ValueError, match="GaussianProcess has no prediction intervals; KernelRegressor"):
        unlazy.predict_interval(GaussianProcess(), X)


def test_without_residuals_the_error_names_estimators_that_have_them():
    model = NetworkRegressor()
    model.layers_ = []  # fitted, as far as scikit-learn looks
    with pytest.raises(ValueError, match="has no held-out residuals"):
        model.interval_radius(0.9)
    model.keep_residuals([np.arange(1.0, 10), np.arange(3.0, 12), np.full(9, 100.0)])
    assert model.interval_radius(0.9).tolist() == [11.0]  # the median of 9, 11 and 100
