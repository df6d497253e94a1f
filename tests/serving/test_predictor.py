"""Predictors of saved models equal the estimators, and need neither JAX nor scikit-learn."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unlazy
from unlazy.core.errors import UnlazyError
from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor, KernelClassifier, KernelRegressor
from unlazy.estimators.feature_search import constants, final_fit
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.serving import load_predictor
from unlazy.serving.kernels import gram_function, squared_distances
from unlazy.serving.saved_objects import SavedObject

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
Z = RNG.normal(size=(40, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
CLASSES = np.array(["a", "b", "c"])[np.argmax(X, 1)]
ROUNDING = 1e-9
"""Both sum at most 90 terms α_i k_i in float64. With a ridge of 1e-3 times k(x, x) at least, |α| is at most 1e3 |y|, so
the sums differ by some 90 · 1e3 · 2e-16 = 2e-11."""


def served(model, tmp_path):
    unlazy.save(model, tmp_path / "m.unlazy")
    return load_predictor(tmp_path / "m.unlazy")


@pytest.mark.slow_cases("matern", "rational_quadratic", "linear", "polynomial", "Matern(bandwidth=0.7, smoothness=2.5)")
@pytest.mark.parametrize(
    "kernel",
    [
        "laplace", "gaussian", "matern", "product_laplace", "rational_quadratic", "linear", "polynomial",
        unlazy.Matern(0.7, 2.5), unlazy.with_metric(unlazy.Gaussian(2.0), np.array([1.0, 0.5, 0.0])),
        unlazy.with_metric(unlazy.Laplace(2.0), np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 1.0]])),
    ],
    ids=str,
)  # fmt: skip
def test_kernel_machines(kernel, tmp_path):
    model = KernelRegressor(kernel, ridge=1e-2).fit(X, Y)
    np.testing.assert_allclose(served(model, tmp_path).predict(Z), model.predict(Z), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("settings", [{}, {"metric": "full", "kernel": "gaussian", "average": False}], ids=str)
def test_feature_machines(settings, tmp_path):
    """With codes, averaged members (the default for few rows), a learned metric and two outputs."""
    codes = np.hstack([X, RNG.integers(4, size=(90, 1))])
    at = np.hstack([Z, RNG.integers(5, size=(40, 1))])
    targets = np.stack([Y + codes[:, 3] % 2, X[:, 0]], 1)
    model = FeatureMachineRegressor(updates=2, relative_ridge=1e-3, **settings).fit(codes, targets)
    np.testing.assert_allclose(served(model, tmp_path).predict(at), model.predict(at), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    "model",
    [KernelClassifier(), pytest.param(FeatureMachineClassifier("laplace", updates=1), marks=pytest.mark.slow)],
    ids=str,
)
def test_classifiers(model, tmp_path):
    model.fit(X, CLASSES)
    found = served(model, tmp_path)
    np.testing.assert_array_equal(found.predict(Z), model.predict(Z))
    np.testing.assert_allclose(found.predict_proba(Z), model.predict_proba(Z), rtol=0, atol=ROUNDING)
    assert list(found.classes_) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_partition(tmp_path, monkeypatch):
    """Each row is predicted by the fit of its leaf."""
    monkeypatch.setattr(final_fit, "_fit_iterative", lambda problem, data: None)
    for name, value in {"SINGLE_SPLIT_ROWS": 60, "FIRST_ROWS": 40, "MAX_ROWS_HOST": 40, "EXACT_ROWS": 80}.items():
        monkeypatch.setattr(constants, name, value)
    many = RNG.normal(size=(400, 2))
    model = FeatureMachineRegressor("gaussian", metric="diagonal", updates=1).fit(many, np.sin(3 * many[:, 0]))
    assert model.solver_ == "partition"
    np.testing.assert_allclose(served(model, tmp_path).predict(many), model.predict(many), rtol=0, atol=1e-7)


def test_distances_of_many_rows():
    """Far from the origin and with rows that coincide or nearly do, as if computed from differences.

    Sides are at most 1e3 + 4 standard deviations from the center, so rows closer than 1e-3 of that use differences,
    and all others have a relative error of at most ε/NEAR times a few.
    """
    A = 1e3 + RNG.normal(size=(300, 5))
    B = np.concatenate([A[:100], A[100:200] + 1e-9, RNG.normal(size=(100, 5)) + 1e3])
    exact = np.sum((A[:, None] - B) ** 2, -1)
    np.testing.assert_allclose(squared_distances(A, B), exact, rtol=1e-8, atol=0)


def test_columns_are_matched_by_name(tmp_path):
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    found = served(KernelRegressor().fit(frame, Y), tmp_path)
    by_position = found.predict(X)
    np.testing.assert_array_equal(found.predict(frame[["w", "u", "v"]]), by_position)
    np.testing.assert_array_equal(
        found.predict({"extra": X[:, 0], "v": X[:, 1], "u": X[:, 0], "w": X[:, 2]}), by_position
    )
    with pytest.raises(ValueError, match="fitted to are missing: v"):
        found.predict({"u": [0.0], "w": [0.0]})


def test_text_dates_and_missing_values(tmp_path):
    """By an encoder of the estimator's own, and in a pipeline."""
    days = pd.date_range("2020-01-01", periods=90)
    frame = pd.DataFrame({"t": list("abc") * 30, "x": np.where(np.arange(90) % 4, X[:, 0], np.nan), "when": days})
    for model in (KernelRegressor(), make_pipeline(TableEncoder(), KernelRegressor())):
        model.fit(frame, Y)
        found = served(model, tmp_path)
        np.testing.assert_allclose(found.predict(frame), model.predict(frame), rtol=0, atol=ROUNDING)
        first = {name: column[:1].tolist() for name, column in frame[["when", "t", "x"]].items()}
        np.testing.assert_allclose(found.predict(first), model.predict(frame[:1]), rtol=0, atol=ROUNDING)
        assert found.n_features_in_ == 3
        with pytest.raises(ValueError, match="are missing: when"):
            found.predict(frame[["t", "x"]])


def test_errors_name_the_remedy(tmp_path):
    found = served(KernelRegressor().fit(X, Y), tmp_path)
    with pytest.raises(ValueError, match=r"shape \(rows, 3\), got \(1, 2\)"):
        found.predict([[0.0, 1.0]])
    with pytest.raises(ValueError, match="NaN or infinity"):
        found.predict([[0.0, np.nan, 1.0]])
    with pytest.raises(ValueError, match="no class probabilities"):
        found.predict_proba(X)
    with pytest.raises(UnlazyError, match="the kernel NTK needs JAX"):
        gram_function(SavedObject("NTK", {}))
    with pytest.raises(UnlazyError, match="only pipelines of a TableEncoder"):
        served(make_pipeline(StandardScaler(), KernelRegressor()).fit(X, Y), tmp_path)
    (tmp_path / "m.unlazy").write_bytes((tmp_path / "m.unlazy").read_bytes()[:-1] + b"x")
    with pytest.raises(UnlazyError, match="checksum"):
        load_predictor(tmp_path / "m.unlazy")


def test_neither_jax_nor_scikit_learn_is_imported(tmp_path):
    KernelRegressor().fit(X, Y).save(tmp_path / "m.unlazy")
    program = (
        "import sys, unlazy; unlazy.load_predictor(sys.argv[1]).predict([[0.0, 0.0, 0.0]]);"
        "print(*(name for name in ('jax', 'sklearn', 'pandas', 'equinox') if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "m.unlazy")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
