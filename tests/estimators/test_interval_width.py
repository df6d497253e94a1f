"""Intervals whose width follows the row: coverage where the noise varies, equal width where it does not."""

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.estimators import FeatureMachineRegressor, KernelRegressor, interval_width
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_machine.held_out_scale import error_of_more_rows
from unlazy.estimators.feature_search import constants, effort
from unlazy.estimators.interval_width import (
    FOLDS,
    HeldOutRows,
    choose_width,
    conformal_quantile,
    held_out_folds,
    local_quantile,
    mean_of_nearest,
)
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
    held_out, part = machine._fit(machine._validate_regression(X, y), regression=True)
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
