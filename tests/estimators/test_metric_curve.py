"""Learning curves of feature machines: unbiased although the metric is learned, and accurate for more rows."""

import numpy as np
import pytest

import unlazy
from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
from unlazy.estimators.feature_machine.learning_curve import INTERCEPT_CONSTANT, _without_failures
from unlazy.solvers.learning_curve import EvaluatedSpectrum

CHEAP = {"kernel": "gaussian", "metric": "diagonal", "updates": 2, "n_jobs": 1}


def index(n, d=20, seed=0, noise=0.3):
    """tanh of one direction, with noise."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, d)), np.random.default_rng(99).normal(size=d)
    return X, np.tanh(2 * X @ w / np.linalg.norm(w)) + noise * rng.normal(size=n)


def test_learning_curve_accepts_a_feature_machine():
    X, y = index(80, 3)
    machine = FeatureMachineRegressor(**CHEAP)
    curve = unlazy.learning_curve(machine, X, y)
    same = machine.learning_curve(X, y, [80, 320])
    assert not hasattr(machine, "X_fit_")  # left as it was
    assert curve.points == 80 and curve.sizes[-1] == 16 * 80 and "320 points" in str(curve)
    np.testing.assert_array_equal(curve.risk[[2, 4]], same.risk)
    rounding = 4 * np.finfo(float).eps * curve.risk[1:]  # where it is flat: two sums, each of factors and terms
    assert np.all(np.diff(curve.risk) <= rounding) and np.all((curve.low < curve.risk) & (curve.risk < curve.high))
    np.testing.assert_allclose(curve.variance, np.var(y), rtol=1e-12)


def test_without_updates_it_is_the_law_of_the_kernel():
    """At the rows at hand both are leave-one-out of the same kernel, read off ridges of their own (a free intercept, or
    a large constant that stands for it): far closer than leave-one-out is to the risk, its standard error."""
    X, y = index(60, 3)
    machine = FeatureMachineRegressor("laplace", updates=0, n_jobs=1)
    fitted = machine.fit(X, y)
    found = machine.learning_curve(X, y, [60.0])
    wanted = unlazy.learning_curve(fitted.kernel_, fitted.standardized(X), y, [60.0])
    K = np.asarray(fitted.kernel_.gram(fitted.standardized(X)), float) + INTERCEPT_CONSTANT
    inverse = np.linalg.inv(K + found.ridge[0] * np.eye(60))
    left_out = (np.dot(inverse, y) / np.diag(inverse)) ** 2
    error = np.std(left_out) / np.sqrt(60)
    np.testing.assert_allclose([*found.risk, *wanted.risk], np.mean(left_out), rtol=0, atol=error / 20)


def test_a_metric_fitted_to_the_labels_is_too_optimistic():
    """Noise alone: the metric of all labels finds something in it, folds do not."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 12)), rng.normal(size=150)
    machine = FeatureMachineRegressor(
        "gaussian", metric="full", updates=3, iterate="last", relative_ridge=0.1, relative_bandwidth=1.0, n_jobs=1
    )
    honest = machine.learning_curve(X, y, [150.0]).risk[0]
    fitted = machine.fit(X, y)
    kernel = fitted.kernel_ + unlazy.Constant(INTERCEPT_CONSTANT)
    hopeful = unlazy.learning_curve(kernel, fitted.standardized(X), y, [150.0]).risk[0]
    # the variance is the best there is; a mean of 150 squares has a relative standard error of √(2/150) = 0.12
    assert honest > 0.95 * np.var(y) and hopeful < honest - 0.12 * np.var(y)


def test_failed_metrics_are_left_out():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 40))
    seen = []
    for a, rows in ((x, np.arange(20)), (z, np.arange(20, 40)), (x, np.arange(20, 40))):
        values, vectors = np.linalg.eigh(np.exp(-0.5 * np.subtract.outer(a, a) ** 2))
        seen.append(EvaluatedSpectrum(values, vectors, rows))
    kept = _without_failures(seen, np.sin(x)[:, None])  # the second sees another input
    assert len(kept) == 2 and kept[0] is seen[0] and kept[1] is seen[2]


def test_units_and_classes():
    X, y = index(60, 3)
    machine = FeatureMachineRegressor(**CHEAP | {"updates": 1})
    few, many = machine.learning_curve(X, y, [120]), machine.learning_curve(X, 8 * y + 5, [120])
    np.testing.assert_allclose(many.risk, 64 * few.risk, rtol=1e-5)  # as in the test above: ridges condition
    classes = FeatureMachineClassifier(**CHEAP | {"updates": 1}).learning_curve(X, y > 0, [60])
    p = np.mean(y > 0)
    np.testing.assert_allclose(classes.variance, 2 * p * (1 - p), rtol=1e-12)  # two columns of labels
    assert 0 < classes.risk[0] < classes.variance


def test_impossible_arguments_are_rejected():
    X, y = index(60, 3)
    machine = FeatureMachineRegressor(**CHEAP)
    with pytest.raises(ValueError, match="40 points or more, got 20"):
        machine.learning_curve(X[:20], y[:20])
    with pytest.raises(ValueError, match="not all equal"):
        machine.learning_curve(X, np.ones(60))
    with pytest.raises(ValueError, match="sizes must be numbers"):
        machine.learning_curve(X, y, [0.5])
    with pytest.raises(ValueError, match="do not set class_weight"):
        FeatureMachineClassifier(**CHEAP, class_weight="balanced").learning_curve(X, y > 0)
    with pytest.raises(ValueError, match="ridges and memory apply to kernels only"):
        unlazy.learning_curve(machine, X, y, ridges=[0.1])
    with pytest.raises(ValueError, match="a kernel of unlazy"):
        unlazy.learning_curve(FeatureMachineRegressor, X, y)


@pytest.mark.nightly
@pytest.mark.slow
def test_more_rows_are_predicted_with_a_better_metric():
    """From 300 rows to 1,200: the mean of 5 draws against refits, whose risks are measured on 4,000 rows."""
    foreseen, true, inside = [], [], []
    Z, T = index(4000, seed=50)
    for seed in range(5):
        X, y = index(1200, seed=seed)
        curve = FeatureMachineRegressor("gaussian", n_jobs=1).learning_curve(X[:300], y[:300], [1200])
        wrong = (FeatureMachineRegressor("gaussian", n_jobs=1).fit(X, y).predict(Z) - T) ** 2
        foreseen.append(curve.risk[0])
        true.append(wrong.mean())
        inside.append(curve.low[0] <= wrong.mean() <= curve.high[0])
    ratio = np.log(np.array(foreseen) / true)
    # a mean of 300 squared errors is good to √(2/300) = 8%, and the law repeats it
    assert abs(ratio.mean()) <= 2 * max(ratio.std(ddof=1), 0.08) / np.sqrt(5)
    assert np.mean(inside) >= 0.8
