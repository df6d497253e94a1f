"""What scikit-learn users expect: weights of classes, columns in another order, one-dimensional X."""

import numpy as np
import pandas as pd
import pytest
from estimator_roster import CLASSIFIERS, NAMES, data, light_first, make, output, target

from unlazy.core.errors import UnlazyWarning
from unlazy.estimators import KernelClassifier

X, Y = data(40)
LABELS = np.where(np.quantile(Y, 0.8) < Y, "rare", "usual")


def test_class_weight_three_equals_repeating_its_rows_three_times():
    """Merged copies and weights are the same numbers up to the rounding of sums of three: 1e-9 of probabilities."""
    weighted = KernelClassifier("gaussian", ridge=0.1, class_weight={"rare": 3}).fit(X, LABELS)
    rows = np.repeat(np.arange(40), np.where(LABELS == "rare", 3, 1))
    repeated = KernelClassifier("gaussian", ridge=0.1).fit(X[rows], LABELS[rows])
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-9)
    plain = KernelClassifier("gaussian", ridge=0.1).fit(X, LABELS)
    assert weighted.predict_proba(X)[:, 0].mean() > plain.predict_proba(X)[:, 0].mean()


@pytest.mark.slow_cases("FeatureMachineClassifier", "KernelClassifier")
@pytest.mark.parametrize("name", light_first(CLASSIFIERS))
def test_balanced_classes_have_equal_weight(name):
    """n/(2·n_c) a row, times the weight it was given."""
    w = np.random.default_rng(0).uniform(0.5, 2, 40)
    share = {c: np.mean(c == LABELS) for c in ("rare", "usual")}
    by_hand = w * np.array([0.5 / share[c] for c in LABELS])
    model = make(name, class_weight="balanced").fit(X, LABELS, sample_weight=w)
    same = make(name).fit(X, LABELS, sample_weight=by_hand)
    np.testing.assert_allclose(model.predict_proba(X), same.predict_proba(X), rtol=1e-6)  # weights a rounding apart
    with pytest.raises(ValueError, match="class_weight"):
        make(name, class_weight="equal").fit(X, LABELS)


@pytest.mark.slow_cases("GaussianProcess")
@pytest.mark.parametrize("name", ["KernelRegressor", "KernelClassifier", "GaussianProcess"])
def test_columns_are_matched_by_name_and_wrong_axes_raise_scikit_learn_errors(name):
    assert name in NAMES
    frame = pd.DataFrame(X, columns=["width", "height", "weight"])
    model = make(name).fit(frame, target(name, Y))
    found = output(model, frame)
    np.testing.assert_array_equal(output(model, frame[["weight", "width", "height"]]), found)
    with pytest.warns(UnlazyWarning, match="were ignored: color"):
        np.testing.assert_array_equal(output(model, frame.assign(color="red")), found)
    with pytest.raises(ValueError, match="columns that the model was fitted to are missing: height"):
        output(model, frame[["weight", "width"]])
    for call in (lambda x: output(model, x), lambda x: make(name).fit(x, target(name, Y))):
        with pytest.raises(ValueError, match=r"Expected 2D array, got 1D array instead[\s\S]*Reshape your data"):
            call(X[:, 0])
