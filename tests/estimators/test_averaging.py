"""Few rows: candidates that leave-one-out cannot distinguish are averaged, and an average is a model like any other."""

import numpy as np
import pytest

import unlazy
from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import KernelCandidate, SearchOptions, constants, select
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.metric_gram import cross


def noisy(n=70, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] + rng.normal(size=n)


def mean_squared_gradients(member, X, h=1e-6):
    """Shares of the columns in the squared gradients of one fit at its own rows, by central differences."""

    def f(Z):
        return cross(member["kernel"], Z, X, member["map"], member["bandwidth"]) @ member["dual_coef"]

    found = np.array([np.mean(((f(X + h * e) - f(X - h * e)) / (2 * h)) ** 2) for e in np.eye(X.shape[1])])
    return found / found.sum()


def test_the_mean_of_members_is_predicted(x64, tmp_path):
    """By NumPy from what `members_` says: Σ_j w_j (b_j + K_j α_j), each under its own metric."""
    X, y = noisy()
    Z, _ = noisy(9, seed=1)
    model = FeatureMachineRegressor(updates=1).fit(X, y)
    assert len(model.members_) > 1
    seen = (Z - model.offset_) / model.scale_
    each = [
        cross(m["kernel"], seen, model.X_fit_, m["map"], m["bandwidth"]) @ m["dual_coef"] + m["intercept"]
        for m in model.members_
    ]
    assert np.std(each, 0).max() > 1e-3
    weights = [m["weight"] for m in model.members_]
    assert sum(weights) == pytest.approx(1) and max(weights) == weights[0]
    np.testing.assert_allclose(model.predict(Z), np.average(each, 0, weights)[:, 0], atol=1e-10)
    shares = [mean_squared_gradients(m, model.X_fit_) for m in model.members_]
    # differences of step h: error h² of the slopes where kernels are smooth, rounding 1e-16/h times |α|₁ < 1e4
    np.testing.assert_allclose(model.feature_importances_, np.average(shares, 0, weights), atol=1e-5)
    model.save(tmp_path / "machine")
    np.testing.assert_array_equal(unlazy.load(tmp_path / "machine").predict(Z), model.predict(Z))
    one = FeatureMachineRegressor(updates=1, average=False).fit(X, y)
    assert len(one.members_) == 1
    np.testing.assert_array_equal(model.dual_coef_, one.dual_coef_)  # the attributes are those of the best


def test_only_statistically_equal_candidates_are_averaged(x64):
    """A smooth function without noise is no draw between a smooth and a rough kernel; noise is."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 2)), rng.normal(size=(60, 1))
    candidates = [KernelCandidate(Gaussian(1.0), "diagonal"), KernelCandidate(Laplace(1.0), "diagonal")]
    average, data = SearchOptions(updates=0, average=True), TrainingData(X, Y, None)
    assert select(candidates, TrainingData(X, np.sin(3 * X[:, :1]), None), average).ties == ()
    found = select(candidates, data, average)
    one = select(candidates, data, SearchOptions(updates=0))
    assert len(found.ties) == 1 and one.ties == () and found.candidate == one.candidate
    worse = np.sum((found.ties[0].held_out - Y) ** 2 - (one.held_out - Y) ** 2, 1)
    weight = np.exp(-0.5 * (worse.mean() / (worse.std() / np.sqrt(60))) ** 2)
    assert found.ties[0].weight == pytest.approx(weight, rel=1e-9)
    both = np.average([one.held_out, found.ties[0].held_out], 0, [1, weight])
    np.testing.assert_allclose(found.held_out, both, atol=1e-12)
    assert found.error == pytest.approx(np.mean((both - Y) ** 2) / np.var(Y), rel=1e-9)


def test_many_rows_pick_one(monkeypatch):
    X, y = noisy()
    monkeypatch.setattr(constants, "AVERAGING_ROWS", 60)
    assert len(FeatureMachineRegressor(updates=0).fit(X, y).members_) == 1


@pytest.mark.slow
def test_classes_and_several_outputs():
    X, y = noisy()
    model = FeatureMachineClassifier(updates=1).fit(X, np.digitize(y, [-0.7, 0.7]))
    assert len(model.members_) > 1 and model.predict_proba(X).shape == (70, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-12)
    two = FeatureMachineRegressor(updates=1, precision="float32").fit(X, np.stack([y, -y], 1))
    np.testing.assert_allclose(two.predict(X)[:, 0], -two.predict(X)[:, 1], atol=1e-4)
