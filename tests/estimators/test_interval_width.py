"""Intervals whose width follows the row: coverage where the noise varies, equal width where it does not."""

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.estimators import FeatureMachineRegressor, KernelRegressor, interval_width, kernel
from unlazy.estimators.base import TrainingData, rows_by_place
from unlazy.estimators.feature_machine.held_out_scale import error_of_more_rows
from unlazy.estimators.feature_search import constants, effort
from unlazy.estimators.interval_width import (
    FOLDS,
    HeldOutRows,
    WidthForm,
    choose_width,
    conformal_quantile,
    held_out_folds,
    local_quantile,
    mean_of_nearest,
)
from unlazy.estimators.intervals import conformal_radius
from unlazy.kernels.radial import Gaussian

ROWS, NEW = 400, 3000


def table(kind, n=ROWS, seed=0):
    """A linear signal, with noise of constant size, relative to the prediction, or by an input without effect."""
    rng = np.random.default_rng(seed)
    X, noise = rng.normal(size=(n, 3)), rng.normal(size=n)
    signal = X[:, 0] + 0.5 * X[:, 1]
    if kind == "relative":
        return X, np.exp(signal + 0.3 * noise)
    return X, signal + 0.3 * noise * (np.exp(X[:, 2]) if kind == "by input" else 1)


def fitted(kind):
    return KernelRegressor(Gaussian(3.0), ridge=0.3).fit(*table(kind))


def decile_coverage(model, kind, level=0.9):
    """Coverage in deciles of the prediction, of new rows, and the intervals."""
    Z, truth = table(kind, NEW, 1)
    low, high = model.predict_interval(Z, level).T
    covered = (low <= truth) & (truth <= high)
    order = np.argsort(model.predict(Z), kind="stable")
    return np.array([covered[part].mean() for part in np.array_split(order, 10)]), low, high


def test_constant_noise_keeps_equal_width():
    model = fitted("constant")
    assert model.widths_ == [None] and model.held_out_inputs_ is None
    coverage, low, high = decile_coverage(model, "constant")
    np.testing.assert_allclose(high - low, 2 * model.interval_radius(0.9)[0], rtol=1e-12)
    assert abs(coverage.mean() - 0.9) < 4 * np.sqrt(0.09 * (1 / ROWS + 1 / NEW))  # held-out rows and new rows


def test_relative_noise_is_covered_in_every_decile_and_no_end_is_negative(tmp_path):
    model = fitted("relative")
    coverage, low, high = decile_coverage(model, "relative")
    # a window of 50 rows misses its level by √(0.09/50) = 0.04, and 300 new rows by less
    assert coverage.min() > 0.9 - 3 * np.sqrt(0.09 / 50 + 0.09 / 300) and coverage.mean() < 0.94
    radius = model.interval_radius(0.9)[0]
    Z, truth = table("relative", NEW, 1)
    top = np.argsort(model.predict(Z))[-300:]
    assert np.mean(np.abs(truth - model.predict(Z))[top] <= radius) < 0.7  # what equal width covers there
    assert (low >= 0).all() and np.mean(model.predict(Z) - radius < 0) > 0.1
    assert (high - low)[top].mean() > 3 * (high - low).mean() / 2
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(unlazy.load(tmp_path / "model").predict_interval(Z), np.stack([low, high], 1))


def test_noise_that_an_input_decides_is_followed():
    model = fitted("by input")
    assert model.widths_[0]["ratios"] is not None and model.held_out_inputs_.shape == (ROWS, 3)
    coverage, low, high = decile_coverage(model, "by input")
    assert abs(coverage.mean() - 0.9) < 4 * np.sqrt(0.09 * (1 / ROWS + 1 / NEW))
    Z, _ = table("by input", NEW, 1)
    wide = Z[:, 2] > 1
    assert (high - low)[wide].mean() > 1.5 * (high - low)[~wide].mean()
    assert (high - low).mean() < 2 * model.interval_radius(0.9)[0]


def test_scales_come_from_other_folds():
    """Another residual of a row changes the radii of other folds, not its own, and none of its copies'."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(150, 2)), 2, 0)
    fold = held_out_folds(inputs, 300)
    assert (fold[::2] == fold[1::2]).all() and len(set(fold)) == FOLDS
    f = inputs[:, 0] + 3
    r = np.abs(rng.normal(size=300)) * np.exp(inputs[:, 1])
    form = choose_width(HeldOutRows(f, r, inputs, None, fold))
    assert form is not None and form.ratios is not None
    scale = form.held_out_scale(0.9)
    changed = r.copy()
    changed[7] *= 50
    again = interval_width._with_inputs(form._replace(residuals=changed), inputs).held_out_scale(0.9)
    np.testing.assert_array_equal(again[fold == fold[7]], scale[fold == fold[7]])
    assert np.any(again != scale)


def test_parts_against_direct_sums():
    rng = np.random.default_rng(1)
    A, B, ratios = rng.normal(size=(80, 2)), rng.normal(size=(5, 2)), rng.random(80)
    near = np.argsort(((B[:, None] - A[None]) ** 2).sum(-1), 1)[:, :30]
    np.testing.assert_allclose(mean_of_nearest(A, B, ratios, False), (ratios[near].sum(1) + 30) / 60, rtol=1e-12)
    near = np.argsort(((A[:, None] - A[None]) ** 2).sum(-1), 1)[:, 1:31]
    np.testing.assert_allclose(mean_of_nearest(A, A, ratios, True), (ratios[near].sum(1) + 30) / 60, rtol=1e-12)
    f, e = rng.normal(size=60), rng.random(60)
    order = np.argsort(f)
    found = local_quantile(f, e, None, 0.8)
    np.testing.assert_allclose(found.values[0], np.quantile(e[order[:50]], 0.8), rtol=1e-12)
    np.testing.assert_allclose(found(np.array([-9.0])), found.values[0])
    counts = rng.integers(1, 4, 60)
    weighted = local_quantile(f, e, counts.astype(float), 0.8).values[0]
    repeated = np.sort(np.repeat(e[order[:50]], counts[order[:50]]))
    assert weighted == repeated[int(np.ceil(0.8 * len(repeated))) - 1]
    assert conformal_quantile(e, counts.astype(float), 30) == np.sort(np.repeat(e, counts))[29]


@pytest.mark.parametrize("signal", [0.0, 0.1])
def test_intervals_of_a_nearly_constant_fit_do_not_follow_the_left_out_targets(signal):
    rng = np.random.default_rng(0)
    n = 200
    X, y = rng.normal(size=(n, 4)), rng.normal(size=n)
    Z, truth = rng.normal(size=(NEW, 4)), rng.normal(size=NEW)
    y, truth = y + signal * X[:, 0], truth + signal * Z[:, 0]
    low, high = FeatureMachineRegressor(effort="low").fit(X, y).predict_interval(Z, 0.9).T
    covered = np.mean((low <= truth) & (truth <= high))
    assert abs(covered - 0.9) < 4 * np.sqrt(0.09 * (1 / n + 1 / NEW))  # held-out rows and new rows


def test_two_constants_have_the_radius_of_their_rows():
    """A fit that is constant in each of two groups: held-out predictions are group means without
    the row. Radii are those of the groups, whose quantiles have the standard error √(0.09/n)/(2φ(1.64)) = 0.1."""
    rng = np.random.default_rng(0)
    n = 200
    group, noise = np.repeat([0.0, 4.0], n), rng.normal(size=2 * n)
    mean = np.array([part.mean() for part in np.split(noise, 2)]).repeat(n)
    f = group + (n * mean - noise) / (n - 1)
    form = WidthForm(0.0, f, np.abs(group + noise - f), None, np.arange(2 * n) % FOLDS, None, None, group + noise)
    found = form.scale(0.9, np.array([0.0, 4.0]) + mean[[0, -1]], None, None)
    np.testing.assert_allclose(found, 1.645, atol=4 * 0.1)
    assert (form._replace(targets=None).scale(0.9, np.array([0.0, 4.0]) + mean[[0, -1]], None, None) < 0.5).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_residuals_of_repeated_rows_are_those_of_refits_without_one_row(weighted):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(14, 2)).astype(float)
    Y, w = rng.normal(size=(14, 2)), rng.uniform(0.5, 3, 14) if weighted else np.ones(14)
    make = lambda: KernelRegressor(Gaussian(1.5), ridge=0.3)  # noqa: E731
    assert 3 < len(np.unique(X, axis=0)) < 12
    model = make().fit(X, Y, w)
    missed = [
        Y[i] - make().fit(np.delete(X, i, 0), np.delete(Y, i, 0), np.delete(w, i)).predict(X[i : i + 1])[0]
        for i in range(14)
    ]
    order = np.argsort(np.unique(X, axis=0, return_inverse=True)[1].ravel(), kind="stable")
    # solves of a system of condition about 14/0.3 in float64
    np.testing.assert_allclose(model.held_out_residuals_[0], np.abs(missed)[order], rtol=1e-12, atol=1e-13)


def test_residuals_of_one_repeated_row():
    y = np.arange(12.0)
    model = KernelRegressor().fit(np.ones((12, 1)), y)
    expected = [abs(y[i] - np.delete(y, i).mean()) for i in range(12)]
    np.testing.assert_allclose(model.held_out_residuals_[0][:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "machine", [KernelRegressor(), FeatureMachineRegressor(effort="low")], ids=["kernel", "machine"]
)
def test_intervals_of_repeated_rows_cover_single_targets(machine):
    rng = np.random.default_rng(0)

    def draw(n):
        X = np.stack([rng.integers(0, 10, n), rng.integers(0, 3, n)], 1).astype(float)
        return X, np.sin(X[:, 0]) + X[:, 1] + rng.normal(size=n)

    (X, y), (Z, truth) = draw(400), draw(NEW)
    model = machine.fit(X, y)
    low, high = model.predict_interval(Z, 0.9).T
    assert model.held_out_residuals_[0].shape == (400, 1)
    # held-out rows and new rows; a group of 13 rows is left out at once, which adds at most 1/13 to the variance of
    # residuals, so 1/26 to the width: 2·1.645·φ(1.645)/26 = 0.013 to the coverage
    assert abs(np.mean((low <= truth) & (truth <= high)) - 0.9) < 4 * np.sqrt(0.09 * (1 / 400 + 1 / NEW)) + 0.013
    with pytest.raises(ValueError, match="at most"):
        model.interval_radius(0.999)
    assert model.interval_radius(0.99) > model.interval_radius(0.9)  # 99 rows are enough for it


def repeated_rows():
    rng = np.random.default_rng(0)
    return np.repeat(rng.normal(size=(60, 2)), 2, 0)[:90], rng.normal(size=90)


@pytest.mark.slow
def test_rows_of_the_sample_of_an_iterative_fit(monkeypatch):
    """Each given row is at the place of its own inputs."""
    X, y = repeated_rows()
    monkeypatch.setattr(kernel, "MAX_EXACT_ROWS", 40)
    model = KernelRegressor(Gaussian(1.0), ridge=1e-3)
    _, seen, place = model._fit(model._validate_regression(X, y))
    assert seen.n == 40 and (place >= 0).sum() > 40
    np.testing.assert_allclose(model._centered(X)[place >= 0], seen.X[place[place >= 0]], rtol=1e-12)


@pytest.mark.parametrize("largest", [constants.SINGLE_SPLIT_ROWS, 20])
def test_held_out_rows_of_a_machine(monkeypatch, largest):
    """Each given row is at the place of its own inputs: in the sample of a search, and in the split of a large fit."""
    X, y = repeated_rows()
    monkeypatch.setattr(constants, "SINGLE_SPLIT_ROWS", largest)
    monkeypatch.setitem(effort.EFFORTS, "low", effort.Effort(30, one_kernel=True))
    machine = FeatureMachineRegressor(effort="low")
    _, part, place = machine._fit(machine._validate_regression(X, y), regression=True)
    assert part.n == 30 if largest > 20 else 0 < part.n < 45
    rows, own = rows_by_place(place)
    assert sorted(set(own)) == list(range(part.n)) and (np.diff(own) >= 0).all() and len(rows) > part.n
    np.testing.assert_allclose(machine.standardized(X)[place >= 0], part.X[place[place >= 0]], rtol=1e-12)


def test_weights_of_mean_below_one_are_normalized():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 3)), rng.normal(size=150)
    model = KernelRegressor(Gaussian(3.0), ridge=0.3).fit(X, y, np.full(150, 1 / 150))
    assert model.predict_interval(X).shape == (150, 2)
    w = rng.uniform(0.5, 1, 150)
    for scale in (1e-3, 1.0):
        model.keep_residuals([y], scale * w, predictions=[X[:, 0]], inputs=[X])
        np.testing.assert_allclose(np.mean(model.held_out_weights_[0]), 1, rtol=1e-14)
    counts = rng.integers(1, 3, 150)
    model.keep_residuals([y], counts)
    np.testing.assert_array_equal(model.held_out_weights_[0], counts)
    with pytest.raises(ValueError, match="weights of held-out rows are zero"):
        model.keep_residuals([y], 0 * w)


def test_several_parts_have_their_weights():
    rng = np.random.default_rng(0)
    X, y = table("by input", 240)
    model = KernelRegressor(Gaussian(3.0), ridge=0.3).fit(X, y)
    missed, f = y - model.predict(X), model.predict(X)
    counts = rng.integers(1, 3, 240).astype(float)
    two = [slice(0, 110), slice(110, 240)]
    model.keep_residuals([missed], counts, predictions=[f], inputs=[X])
    once = model.predict_interval(X, 0.8)
    assert model.widths_[0] is not None
    split = [[part[rows] for rows in two] for part in (missed, counts, f, X)]
    model.keep_residuals(split[0], split[1], predictions=split[2], inputs=split[3])
    np.testing.assert_array_equal(model.predict_interval(X, 0.8), once)
    halves = [conformal_radius(r[:, None], 0.8, w) for r, w in zip(*split[:2])]
    np.testing.assert_array_equal(model.interval_radius(0.8), np.median(halves, 0))
    model.keep_residuals([missed, missed], counts)  # one array for all parts
    np.testing.assert_array_equal(model.interval_radius(0.8), conformal_radius(missed[:, None], 0.8, counts))
    with pytest.raises(ValueError, match=r"got \[110\] weights of \[110, 130\] rows"):
        model.keep_residuals(split[0], split[1][:1])


def test_several_outputs_weights_and_frames():
    X, y = table("relative", 240)
    both = np.stack([y, table("constant", 240)[1]], 1)
    counts = np.random.default_rng(0).integers(1, 3, 240)
    model = KernelRegressor(Gaussian(3.0), ridge=0.3).fit(X, both, counts)
    low = model.predict_interval(X, 0.8)[..., 0]
    assert model.widths_[0] is not None and low.shape == (240, 2)
    assert (low[:, 0] >= 0).all() and (low[:, 1] < 0).any()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.where(X[:, 2] > 0, "p", "q"))
    model = KernelRegressor("gaussian", ridge=0.3).fit(frame, y)
    inside = np.mean((model.predict_interval(frame, 0.8) * [1, -1] <= (y[:, None] * [1, -1])).all(1))
    assert inside > 0.75  # training rows are covered more often than new ones


def test_errors_of_a_sample_are_scaled_to_all_rows(monkeypatch):
    """The ratio of leave-one-out errors, by refits without each row in a fixed metric."""
    monkeypatch.setitem(effort.EFFORTS, "medium", effort.Effort(40))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.05 * rng.normal(size=90)
    machine = FeatureMachineRegressor(
        "gaussian", metric="diagonal", updates=0, relative_bandwidth=0.5, relative_ridge=1e-2, robust=False,
        average=False, categorical=[],
    )  # fmt: skip
    held_out, part, _ = machine._fit(machine._validate_regression(X, y), regression=True)
    assert part.n == 40
    Z = machine.standardized(X) * machine.map_ / machine.bandwidth_
    K = np.exp(-0.5 * ((Z[:, None] - Z[None]) ** 2).sum(-1))
    sample = [int(np.argmin(((machine.standardized(X) - row) ** 2).sum(1))) for row in part.X]

    def error(rows):
        missed = []
        for i in sample:
            rest = [j for j in rows if j != i]
            n = len(rest)
            system = np.block([[K[np.ix_(rest, rest)] + 1e-2 * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), 0]])
            solved = np.linalg.solve(system, np.append(y[rest], 0))
            missed.append(abs(y[i] - K[i, rest] @ solved[:n] - solved[n]))
        return np.mean(missed)

    expected = error(range(90)) / error(sample)
    assert expected < 0.9
    np.testing.assert_allclose(error_of_more_rows(machine, part), expected, rtol=1e-8)  # condition 1e4, in float64
    with monkeypatch.context() as patch:  # beyond, held-out rows are those of one split, not of the sample alone
        patch.setattr(constants, "SINGLE_SPLIT_ROWS", 89)
        assert error_of_more_rows(machine, part) == 1.0
    fitted = machine.fit(X, y)
    np.testing.assert_allclose(fitted.held_out_residuals_[0], expected * np.abs(part.Y - held_out), rtol=1e-8)
    assert fitted.widths_ == [None]  # too few rows
    assert error_of_more_rows(machine, TrainingData(machine.X_fit_, machine.X_fit_[:, :1], None)) == 1.0


@pytest.mark.parametrize("m", [99, 100])
def test_few_rows_keep_equal_width(m):
    X, y = table("relative", m)
    model = KernelRegressor(Gaussian(3.0), ridge=0.3).fit(X, y)
    assert (model.widths_ == [None]) == (m < interval_width.MIN_ROWS)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_residuals_and_predictions_must_be_finite(bad):
    model, good = unlazy.KernelRegressor(), np.ones(20)
    wrong = np.where(np.arange(20) == 3, bad, good)
    with pytest.raises(ValueError, match="residuals of held-out rows contain NaN or infinity"):
        model.keep_residuals([wrong])
    with pytest.raises(ValueError, match="predictions of held-out rows contain NaN or infinity"):
        model.keep_residuals([good], predictions=[wrong])
