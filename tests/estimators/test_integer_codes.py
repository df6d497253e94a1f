"""Integer codes: detected, read as categories if that predicts better, and stored with the model."""

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.choices import list_candidates
from unlazy.estimators.preprocessing.columns import (
    MAX_INDICATORS,
    IntegerCodes,
    encoding_options,
    find_integer_codes,
)


def named(n=160, seed=0):
    """A code of eight values whose effects have nothing to do with their order, a grade that has, and noise."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.integers(1, 9, n), rng.integers(0, 5, n), rng.normal(size=n)], 1)
    effect = np.array([0.0, 3.0, -2.0, 2.5, -3.0, 1.0, -1.5, 3.5])
    return X, effect[X[:, 0].astype(int) - 1] + 0.2 * X[:, 1] + 0.1 * rng.normal(size=n)


def test_codes_are_few_values_on_a_grid_in_any_unit():
    rng = np.random.default_rng(0)
    month = rng.integers(1, 13, 400)
    X = np.stack([
        month, (month - 6.5) / 3.45, np.float32(0.1) * month, rng.normal(size=400), month % 2, rng.integers(0, 40, 400),
        np.array([0.0, 0.1, 1.0])[month % 3], np.array([0.0, 0.1234567, 1.0])[month % 3], np.ones(400),
    ], 1)  # fmt: skip
    assert find_integer_codes(X).columns == (0, 1, 2, 6)
    assert find_integer_codes(X[:100]).columns == (6,)  # twelve values need 120 rows
    many = rng.integers(0, 30, size=(400, 20)) % np.arange(5, 25)  # 290 values in all
    kept = find_integer_codes(many.astype(float))
    assert kept.columns == tuple(range(18)) and sum(map(len, kept.levels)) <= MAX_INDICATORS


def test_indicators_are_those_of_pandas():
    X, _ = named()
    codes = IntegerCodes.from_columns(X, [1, 0])
    oracle = np.hstack([pd.get_dummies(X[:, 0]), pd.get_dummies(X[:, 1])]).astype(float)
    np.testing.assert_array_equal(codes(X), np.hstack([X, oracle]))
    alone = codes._replace(numbers=False)
    np.testing.assert_array_equal(alone(X), np.hstack([X[:, 2:], oracle]))
    np.testing.assert_array_equal(alone.source(3), [2] + [0] * 8 + [1] * 5)
    np.testing.assert_array_equal(codes.source(3), [0, 1, 2] + [0] * 8 + [1] * 5)
    never_met = alone(np.array([[8.5, 0.0, 1.0]]))[0]
    np.testing.assert_array_equal(never_met, [1.0] + [0] * 8 + [1, 0, 0, 0, 0])
    assert IntegerCodes()(X) is X and IntegerCodes().coding == "numbers"


@pytest.mark.slow
def test_unordered_codes_are_read_as_categories(tmp_path):
    """Eight values without an order: as numbers, a fit of 160 rows smooths over unrelated neighbors."""
    (X, y), (Z, truth) = named(), named(seed=1)
    settings = {"kernel": "gaussian", "metric": "diagonal", "updates": 1}
    model = FeatureMachineRegressor(**settings).fit(X, y)
    numbers = FeatureMachineRegressor(**settings, categorical=[]).fit(X, y)
    assert model.coding_ != "numbers" and list(model.categories_) == [0, 1]
    assert numbers.coding_ == "numbers" and numbers.categories_ == {}
    assert model.leave_one_out_error_ < numbers.leave_one_out_error_
    assert 1 - model.score(Z, truth) < 0.5 * (1 - numbers.score(Z, truth))
    assert model.feature_importances_.shape == (3,) and np.argmax(model.feature_importances_) == 0
    assert model.feature_importances_.sum() == pytest.approx(1)
    frame = pd.DataFrame(X, columns=["square", "grade", "x"])
    by_name = FeatureMachineRegressor(**settings).fit(frame, y)
    np.testing.assert_array_equal(by_name.predict(frame), model.predict(X))
    assert list(by_name.categories_) == ["square", "grade"]
    by_name.save(tmp_path / "machine")
    again = unlazy.load(tmp_path / "machine")
    np.testing.assert_array_equal(again.predict(frame), model.predict(X))
    assert again.coding_ == model.coding_ and list(again.categories_) == ["square", "grade"]
    assert np.isfinite(model.predict([[99.0, 0.0, 0.0]])).all()


def test_requested_columns_are_categories():
    X, y = named()
    frame = pd.DataFrame(X, columns=["square", "grade", "x"])
    settings = {"kernel": "product_laplace", "updates": 0}
    model = FeatureMachineClassifier(**settings, categorical=["square"]).fit(frame, y > 0)
    assert model.coding_ == "categories" and list(model.categories_) == ["square"]
    assert model.X_fit_.shape[1] == 2 + 8
    by_hand = FeatureMachineClassifier(**settings, categorical=[])
    by_hand.fit(np.hstack([X[:, 1:], pd.get_dummies(X[:, 0])]), y > 0)
    Z = np.hstack([X[:, 1:], pd.get_dummies(X[:, 0])])
    # the same columns: equal to rounding of the order in which rows are sorted
    np.testing.assert_allclose(model.predict_proba(frame), by_hand.predict_proba(Z), atol=1e-8)
    for wrong in (["squares"], [3], [True]):
        with pytest.raises(ValueError, match="which is not a column"):
            FeatureMachineRegressor(categorical=wrong).fit(frame, y)


def test_encoding_choice_ignores_later_rows(monkeypatch):
    """Other labels in rows beyond the first search give the same encoding."""
    monkeypatch.setattr(constants, "ENCODING_SEARCH_ROWS", 60)
    X, y = named()
    model = FeatureMachineRegressor("product_laplace", updates=0)
    order, later = np.random.default_rng(0).permutation(len(X)), np.random.default_rng(1).normal(size=len(X))
    found = []
    for labels in (y, np.where(np.isin(np.arange(len(X)), order[60:]), 1e3 * later, y)):
        model.n_features_in_ = 3
        data, search = model._encode_columns(list_candidates(model), TrainingData(X, labels[:, None], None), order)
        found.append((model.coding_, data.X.shape))
        assert search is None
    assert found[0] == found[1] and found[0][0] != "numbers"


@pytest.mark.slow
def test_encodings_of_noise_predict_no_gain():
    """Labels without any x: the best of three readings, each the best of its ridges, explains no more than chance.

    The mean of 120 squares of normal numbers has relative deviation √(2/120) = 0.13; the mean over four tables of the
    best of a few is within 0.13 of 1."""
    errors = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.integers(0, 6, size=(120, 4)) + np.array([0.0, 0.0, 0.0, 1.0]) * rng.normal(size=(120, 1))
        assert len(encoding_options(X, None, None)) == 3
        errors.append(FeatureMachineRegressor("product_laplace", updates=2).fit(X, rng.normal(size=120)))
    assert np.mean([model.leave_one_out_error_ for model in errors]) > 0.87
