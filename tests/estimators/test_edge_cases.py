"""Data that break estimators: a sensible model, or a ValueError that names the column."""

import warnings

import numpy as np
import pandas as pd
import pytest
from estimator_roster import CLASSIFIERS, NAMES, REGRESSORS, data, light_first, make, output, target
from scipy.sparse import csr_array

from unlazy.core.errors import UnlazyWarning
from unlazy.estimators import FeatureMachineRegressor, KernelRegressor


@pytest.fixture(autouse=True)
def quiet():
    """Warnings about corrections are expected here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlazyWarning)
        yield


@pytest.mark.slow_cases("FeatureMachineRegressor", "GaussianProcess")
@pytest.mark.parametrize("name", light_first(NAMES))
def test_bad_columns_are_named(name):
    X, y = data()
    table = pd.DataFrame(X, columns=["age", "height", "price"])
    holes = table.assign(height=np.where(np.arange(32) == 3, np.nan, table["height"]))
    endless = table.assign(price=np.where(np.arange(32) == 3, np.inf, table["price"]))
    text = table.assign(age="old")
    dates = table.assign(price=pd.date_range("2020", periods=32))
    labels = target(name, y)
    for bad, message in (
        (endless, "column 'price' of X contains infinity"),
        (table * 1e200, "column 'age' of X reaches .*rescale"),
        (csr_array(X), "X is sparse .*toarray"),
        (np.where(X[5, 1] == X, np.nan, X), "column 1 of X contains NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name).fit(bad, labels)
    model = make(name).fit(table, labels)
    for bad, message in (  # the model was fitted to numbers, so it has no encoder
        (holes, "column 'height' of X contains NaN .* in 1 of 32 rows: impute"),
        (text, "column 'age' of X does not hold numbers .*encode"),
        (dates, "column 'price' of X holds dates"),
    ):
        with pytest.raises(ValueError, match=message):
            output(model, bad)


@pytest.mark.parametrize("name", light_first(REGRESSORS))
def test_bad_targets(name):
    X, y = data()
    with pytest.raises(ValueError, match=r"Input y contains NaN.*Drop the rows"):
        make(name).fit(X, np.where(np.arange(32) == 3, np.nan, y))


@pytest.mark.parametrize("name", REGRESSORS)
def test_text_labels_need_a_classifier(name):
    X, y = data()
    words = ["low", "high"] * 16
    for labels in (words, np.array(words), pd.Series(words, dtype="category"), [*map(str, y[:-1]), "high"]):
        with pytest.raises(ValueError, match=rf"^y holds text such as '\w+', but {name} predicts numbers: use \w+C"):
            make(name).fit(X, labels)


@pytest.mark.slow_cases("FeatureMachineClassifier", "GaussianProcess", "FeatureMachineRegressor")
@pytest.mark.parametrize("name", light_first(NAMES))
def test_constant_columns(name):
    X, y = data()
    model = make(name).fit(np.hstack([X[:, :2], np.full((32, 1), 7.0)]), target(name, y))
    assert np.isfinite(output(model, X)).all()
    model = make(name).fit(np.full((32, 3), 3.0), target(name, y))
    assert np.isfinite(output(model, X)).all()


@pytest.mark.slow_cases("GaussianProcess")
@pytest.mark.parametrize("name", light_first(REGRESSORS))
def test_one_row(name):
    model = make(name).fit([[1.0, 2.0, 0.0]], [3.0])
    np.testing.assert_allclose(model.predict([[1.0, 2.0, 0.0]]), 3.0, rtol=1e-3)
    assert np.isfinite(model.predict([[5.0, -2.0, 1.0]])).all()


@pytest.mark.parametrize("name", light_first(CLASSIFIERS))
def test_one_class(name):
    X, _ = data()
    model = make(name).fit(X, ["only"] * 32)
    assert set(model.predict(X)) == {"only"}
    np.testing.assert_array_equal(model.predict_proba(X), np.ones((32, 1)))
    model = make(name).fit([[1.0, 2.0, 0.0]], ["only"])
    assert list(model.predict([[0.0, 0.0, 0.0]])) == ["only"]


@pytest.mark.slow_cases("GaussianProcess-1e-08", "FeatureMachineRegressor-100000000.0", "FeatureMachineRegressor-1e-08")
@pytest.mark.parametrize("factor", [1e-8, 1e8])
@pytest.mark.parametrize("name", light_first(REGRESSORS))
def test_huge_and_tiny_scales(name, factor):
    """Inputs and targets in other units: the fit follows. Networks and machines round differently on their way, so the
    bar is that of a model, not of a rounding: within a tenth of the spread."""
    X, y = data()
    plain = make(name).fit(X, y).predict(X)
    scaled = make(name).fit(X * factor, y * factor).predict(X * factor)
    assert np.abs(scaled / factor - plain).max() < 0.1 * y.std()


@pytest.mark.slow_cases("FeatureMachineClassifier-100000000.0", "FeatureMachineClassifier-1e-08")
@pytest.mark.parametrize("factor", [1e-8, 1e8])
@pytest.mark.parametrize("name", light_first(CLASSIFIERS))
def test_huge_and_tiny_scales_of_classes(name, factor):
    X, y = data()
    labels = target(name, y)
    plain, scaled = make(name).fit(X, labels), make(name).fit(X * factor, labels)
    assert np.abs(scaled.predict_proba(X * factor) - plain.predict_proba(X)).max() < 0.1


@pytest.mark.slow_cases("FeatureMachineClassifier", "GaussianProcess")
@pytest.mark.parametrize("name", light_first([n for n in NAMES if n != "RandomFeatures"]))
def test_duplicate_rows_with_different_labels(name):
    X, y = data()
    twice, labels = np.vstack([X, X]), np.concatenate([target(name, y), target(name, y[::-1])])
    assert np.isfinite(output(make(name).fit(twice, labels), X)).all()


def test_what_equal_rows_differ_by_is_not_explained():
    """A known line, every row twice with labels ±1 around it: at least 1 of the variance 1 + (36² - 1)/12."""
    X = np.repeat(np.arange(36.0)[:, None], 2, 0)
    model = KernelRegressor(ridge=1e-6).fit(X, X[:, 0] + np.tile([-1.0, 1.0], 36))
    assert 1 / (1 + (36**2 - 1) / 12) <= model.leave_one_out_error_ <= 0.05


@pytest.mark.parametrize("kind", [FeatureMachineRegressor, KernelRegressor])
@pytest.mark.parametrize("labels, error", [(np.arange(8.0), 1.0), (np.full(8, 3.0), 0.0)])
def test_rows_that_are_all_equal_explain_nothing(labels, error, kind):
    """Leaving one out leaves nothing to tell it by: all of the variance, where there is any."""
    model = kind().fit(np.ones((8, 3)), labels)
    assert model.leave_one_out_error_ == error
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), labels.mean(), rtol=8 * 2.0**-52)
