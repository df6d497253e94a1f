"""One conformance test over all estimators: scikit-learn's own checks, and further guarantees of this library."""

import numpy as np
import pandas as pd
import pytest
from estimator_roster import CLASSIFIERS, NAMES, data, light_first, make, output, target
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

EXPECTED_FAILURES: dict[str, dict[str, str]] = {}
"""Estimator → check → reason. There are none."""


@pytest.mark.slow_cases(
    "FeatureMachineClassifier()-check_class_weight_classifiers",
    "NetworkClassifier(step_size=0.01,steps=300,width=16)-check_class_weight_classifiers",
)
@parametrize_with_checks(
    [make(name) for name in NAMES], expected_failed_checks=lambda e: EXPECTED_FAILURES.get(type(e).__name__, {})
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow_cases("FeatureMachineClassifier", "FeatureMachineRegressor", "GaussianProcess")
@pytest.mark.parametrize("name", light_first(NAMES))
def test_same_seed_same_bits_and_names_are_kept(name):
    X, y = data()
    table = pd.DataFrame(X, columns=["width", "height", "weight"])
    first = make(name).fit(table, target(name, y))
    again = clone(first).fit(table, target(name, y))
    np.testing.assert_array_equal(output(first, table), output(again, table))
    assert list(first.feature_names_in_) == ["width", "height", "weight"]
    assert output(first, table).dtype == np.float64
    with pytest.raises(ValueError, match="weight"):  # scikit-learn's message names the column that is missing
        output(first, table[["width", "height"]])


@pytest.mark.slow_cases("FeatureMachineClassifier", "GaussianProcess")
@pytest.mark.parametrize("name", light_first(NAMES))
def test_float32_on_request(name):
    X, y = data()
    single = make(name, precision="float32").fit(X, target(name, y))
    assert output(single, X).dtype in (np.float32, np.float64)
    assert np.isfinite(output(single, X)).all()
    with pytest.raises(ValueError, match="precision must be 'float32'"):
        make(name, precision="float16").fit(X, target(name, y))


@pytest.mark.parametrize("name", light_first(CLASSIFIERS))
def test_probabilities(name):
    X, y = data()
    labels = np.array(["a", "b", "c"])[np.digitize(y, np.quantile(y, [0.3, 0.7]))]
    model = make(name).fit(X, labels)
    p = model.predict_proba(X)
    assert p.shape == (32, 3) and (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)  # three additions in float64
    np.testing.assert_array_equal(model.predict(X), model.classes_[p.argmax(1)])
    assert model.score(X, labels) > 0.8  # training accuracy of a separable problem; guessing gives 0.4
