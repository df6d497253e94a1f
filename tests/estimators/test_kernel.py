"""KernelRegressor and KernelClassifier against refits, repetition of rows, and the exact solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_roster import data

import unlazy
from unlazy.estimators import kernel as module
from unlazy.estimators.base import TrainingData
from unlazy.estimators.classifiers import calibrate, probabilities
from unlazy.estimators.kernel import KernelClassifier, KernelRegressor
from unlazy.estimators.named_kernels import NAMES, default_bandwidth
from unlazy.solvers.ridge import fit_ridge_path


def gram(kernel, X):
    with jax.enable_x64(True):
        return np.asarray(kernel.gram(jnp.asarray(X)))


def bordered(K, Y, w, ridge):
    """The same problem written down: [K + ρW⁻¹, 1; 1ᵀ, 0][α; b] = [y; 0]."""
    n = len(K)
    A = np.block([[K + ridge * np.diag(1 / w), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    found = np.linalg.solve(A, np.vstack([Y, np.zeros((1, Y.shape[1]))]))
    return found[:n], found[n]


def test_weighted_ridge_and_leave_one_out_against_refits():
    X, y = data(20)
    Y = np.stack([y, np.cos(X[:, 2])], 1)
    w = np.random.default_rng(1).uniform(0.3, 3, 20)
    K = gram(unlazy.Laplace(2.0), X)
    fit = fit_ridge_path(K, Y, w, 0.05)
    alpha, b = bordered(K, Y, w, 0.05)
    # the condition of K + ρ/w is below 1e4: 1e-10 leaves room for four of sixteen digits and a few sums
    np.testing.assert_allclose(fit.alpha, alpha, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fit.intercept, b, rtol=1e-10)
    for i in range(20):
        rest = np.arange(20) != i
        alpha, b = bordered(K[np.ix_(rest, rest)], Y[rest], w[rest], 0.05)
        np.testing.assert_allclose(fit.held_out[i], K[i, rest] @ alpha + b, rtol=1e-9, atol=1e-9)


def test_the_chosen_ridge_has_the_smallest_leave_one_out_error():
    X, y = data()
    y = y + np.random.default_rng(0).normal(size=32)  # noise, so that the best ridge lies inside
    K, Y = gram(unlazy.Gaussian(2.0), X), y[:, None]
    chosen = fit_ridge_path(K, Y, None, None)
    assert 1e-6 < chosen.ridge < 50
    for factor in (0.2, 5.0):
        assert fit_ridge_path(K, Y, None, chosen.ridge * factor).error >= chosen.error


@pytest.mark.parametrize("kind", [KernelRegressor, KernelClassifier])
def test_weights_count_rows(kind):
    """A row of weight 3 is that row three times, in any order: only the rounding of the mean label differs,
    magnified by the condition of K + ρ (below 1e4 at the chosen ridge)."""
    X, y = data()
    rng = np.random.default_rng(0)
    labels = y if kind is KernelRegressor else (y > 0).astype(int)
    counts = rng.integers(0, 4, 32)
    rows = rng.permutation(np.repeat(np.arange(32), counts))
    by_weight, by_copies = kind().fit(X, labels, sample_weight=counts), kind().fit(X[rows], labels[rows])
    says = "predict" if kind is KernelRegressor else "predict_proba"
    np.testing.assert_allclose(getattr(by_weight, says)(X), getattr(by_copies, says)(X), rtol=0, atol=1e-11)


def test_copies_do_not_leak_into_leave_one_out():
    """Noise labels, every row ten times: a leave-one-out that sees the copies would find interpolation perfect."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    model = KernelRegressor().fit(np.tile(X, (10, 1)), np.tile(y, 10))
    # against predicting the mean, which is 1 up to 2/√40 ≈ 0.3 of chance: no fit to noise can be much better
    assert model.leave_one_out_error_ > 0.6


def test_intercept_and_units():
    """y + constant shifts predictions by it; other units of X change nothing (median bandwidth)."""
    X, y = data()
    plain = KernelRegressor().fit(X, y).predict(X)
    np.testing.assert_allclose(KernelRegressor().fit(X, y + 1e4).predict(X) - 1e4, plain, atol=1e-7)
    np.testing.assert_allclose(KernelRegressor().fit(X * 1000 + 5, y).predict(X * 1000 + 5), plain, atol=1e-7)
    several = KernelRegressor().fit(X, np.stack([y, -y], 1)).predict(X)
    np.testing.assert_allclose(several[:, 0], -several[:, 1], atol=1e-12)


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("weighted", [False, True])
def test_large_n_goes_through_the_solvers(monkeypatch, weighted):
    """With the limit lowered, the iterative path agrees with the bordered system up to its tolerance and the
    intercept, which is the mean of the labels there: K cannot tell the difference at this ridge."""
    X, y = data(64)
    w = np.random.default_rng(0).uniform(0.5, 2, 64) if weighted else None
    monkeypatch.setattr(module, "MAX_EXACT_ROWS", 40)
    found = KernelRegressor(ridge=0.1, tolerance=1e-6, random_state=0).fit(X, y, sample_weight=w)
    assert found.solver_ == "direct" and found.converged_
    weights = np.ones(64) if w is None else w
    K = gram(found.kernel_, X - found.offset_)
    mean = np.average(y, weights=weights)
    exact = K @ np.linalg.solve(K + 0.1 * np.diag(1 / weights), y - mean) + mean
    # tolerance 1e-6 of ‖y‖ = 1e-6·√64·1.3 in any one value
    np.testing.assert_allclose(found.predict(X), exact, atol=2e-5)


@pytest.mark.slow
def test_every_kernel_name_fits():
    X, y = data()
    for name in NAMES:
        model = KernelRegressor(name).fit(X, y)
        assert model.score(X, y) > (0.5 if name == "linear" else 0.8), name
        assert model.bandwidth_ == pytest.approx(default_bandwidth(name, X))
    searched = KernelRegressor("gaussian", bandwidth="search").fit(X, y)
    assert searched.leave_one_out_error_ <= KernelRegressor("gaussian").fit(X, y).leave_one_out_error_


def test_misuse():
    X, y = data()
    for given, message in (
        ({"kernel": "gausian"}, "did you mean 'gaussian'"),
        ({"kernel": 3}, "kernel must be a name"),
        ({"kernel": unlazy.Laplace(1.0), "bandwidth": 2.0}, "a kernel object has its own"),
        ({"bandwidth": -1.0}, "bandwidth must be a positive number"),
        ({"ridge": -1.0}, "ridge must be zero, positive or None"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelRegressor(**given).fit(X, y)
    with pytest.raises(ValueError, match="weight"):
        KernelRegressor().fit(X, y, sample_weight=np.zeros(32))


def test_merged_rows_keep_the_problem():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (30, 2)).astype(float)
    Y, w = rng.normal(size=(30, 1)), rng.uniform(1, 2, 30)
    merge_duplicates = TrainingData(X, Y, w).merge_duplicates()
    assert len(merge_duplicates.X) == 4 and merge_duplicates.weights is not None
    np.testing.assert_allclose(merge_duplicates.weights.sum(), w.sum())
    for x, label, weight in zip(*merge_duplicates):
        same = (x == X).all(1)
        np.testing.assert_allclose(label, np.average(Y[same], axis=0, weights=w[same]))
        np.testing.assert_allclose(weight, w[same].sum())


def test_calibration_recovers_known_probabilities():
    """Labels drawn from softmax(a·f + b): the fit finds a and b within 4 standard errors (inverse Fisher information
    of a logistic fit to 20,000 points is below 0.05² for both), and the probabilities add up."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(20_000, 1)) * [[0.5, -0.5]]
    p = 1 / (1 + np.exp(-(3 * (f[:, 0] - f[:, 1]) + 0.7)))
    first = rng.random(20_000) < p
    found = calibrate(f, np.stack([first, ~first], 1).astype(float))
    assert abs(found.slope - 3) < 0.2
    assert abs(found.shift[0] - found.shift[1] - 0.7) < 0.2
    assert np.abs(probabilities(f, found)[:, 0] - p).max() < 0.03


@pytest.mark.slow
def test_probabilities_are_calibrated():
    """Classes with known noise: of the points given p, a share p is right. 2,000 fresh points, in five bins."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2300, 3))
    p = 1 / (1 + np.exp(-3 * X[:, 0]))
    labels = rng.random(2300) < p
    model = KernelClassifier().fit(X[:300], labels[:300])
    guess = model.predict_proba(X[300:])[:, 1]
    for low, high in zip(np.arange(0, 1, 0.2), np.arange(0.2, 1.2, 0.2)):
        inside = (guess >= low) & (guess < high)
        if inside.sum() < 100:
            continue
        error = abs(labels[300:][inside].mean() - guess[inside].mean())
        # 4 standard errors of a share, and 0.08 for 300 training points (their own standard error in a fifth is 0.06)
        assert error < 2 / np.sqrt(inside.sum()) + 0.08, (low, error)


@pytest.mark.slow
def test_progress_and_precision_reach_the_solver(monkeypatch):
    X, y = data(64)
    monkeypatch.setattr(module, "MAX_EXACT_ROWS", 40)
    seen = {}
    original = module.solve
    monkeypatch.setattr(module, "solve", lambda *a, **k: seen.update(k) or original(*a, **k))
    KernelRegressor(progress=True, precision="float32").fit(X, y)
    assert seen["progress"] is True and seen["options"].precision == "float32"
