"""Measures against NumPy in float64, written out by hand."""

import numpy as np
import pytest
from small_model import SmallModel, gradient_step, initial

from unlazy.diagnostics.measures import movement as measures
from unlazy.models import as_model


def forward(params, x):
    """Outputs of every layer of a tanh network, in NumPy."""
    hidden = []
    for name in sorted(params):
        x = (np.tanh(x) if hidden else x) @ np.asarray(params[name], np.float64)
        hidden.append(x)
    return hidden


def linear_change(start, direction, x):
    """J(start) direction, layer by layer: the derivative of a product has two terms."""
    tangent = np.zeros_like(x)
    for i, name in enumerate(sorted(start)):
        W, V = np.asarray(start[name], np.float64), direction[name]
        if i:
            tangent, x = (1 - np.tanh(x) ** 2) * tangent, np.tanh(x)
        tangent, x = tangent @ W + x @ V, x @ W
    return tangent


def exact_gap(start, end, X):
    """The gap of two checkpoints."""
    X = np.asarray(X, np.float64)
    change = forward(end, X)[-1] - forward(start, X)[-1]
    direction = {k: np.asarray(end[k], np.float64) - np.asarray(start[k], np.float64) for k in start}
    return np.linalg.norm(change - linear_change(start, direction, X)) / np.linalg.norm(change)


@pytest.fixture(scope="module")
def checkpoints():
    """Start and end of float32 runs whose gaps go from .01 to 1."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(64, 6)).astype(np.float32)
    y = np.sin(X @ rng.normal(size=(6, 3))).astype(np.float32)
    runs = []
    for seed, steps, scale in ((0, 2, 1.0), (1, 20, 1.0), (2, 300, 1.0), (3, 100, 0.4), (4, 100, 2.0)):
        model = SmallModel(initial(seed, 6, 48, 24, 3, scale=scale))
        start = model.snapshot()
        for _ in range(steps):
            model.update(gradient_step(model, X, y, 0.3))
        runs.append((start, model.snapshot()))
    return X, runs


@pytest.mark.parametrize("run", range(5))
def test_gap_equals_numpy_in_float64(checkpoints, run):
    """Outputs carry rounding of about 2^-24 per operation, some 1e-7 relative for these three layers, and the error of
    a gap is that of the outputs times ‖f‖/(g ‖Δf‖), at most 30 here: a few 1e-6."""
    X, runs = checkpoints
    start, end = runs[run]
    expected = exact_gap(start, end, X)
    for model in (SmallModel(start), as_model((SmallModel(start).f, start))):
        model.update(end)
        assert measures.linearization_gap(model, start, X) == pytest.approx(expected, rel=1e-5)


def test_gap_estimate_scales_as_its_standard_error_says():
    """Gaps of half samples scatter by their stated standard error: over 400 draws the ratio of variances is 1 within
    four standard errors, 4 √(2/400) = 0.28, and the error of the delta method, some 1/√(40 points)."""
    rng = np.random.default_rng(0)
    gaps, errors = [], []
    for _ in range(400):
        change = rng.normal(size=(40, 2)) * rng.lognormal(0, 0.5, (40, 1))
        found = measures.estimate_gap(np.ones((40, 2)), change, change + 0.3 * rng.normal(size=(40, 2)))
        gaps.append(found.value)
        errors.append(found.standard_error)
    assert np.var(gaps) / np.mean(np.square(errors)) == pytest.approx(1, abs=0.45)


def test_derivatives_by_differences_add_their_error():
    """Alike points have no error of sampling: what remains is that of the linear part, 1e-3 of 0.8/1."""
    change = np.ones((8, 1))
    exact, rough = (measures.estimate_gap(np.ones((8, 1)), change, 0.8 * change, e) for e in (0.0, 1e-3))
    assert exact.standard_error == pytest.approx(0, abs=1e-12) and rough.value == exact.value
    assert rough.standard_error == pytest.approx(8e-4)


def test_gap_of_no_change_and_of_overflow():
    still = measures.estimate_gap(np.ones((3, 1)), np.zeros((3, 1)), np.zeros((3, 1)))
    assert np.isnan(still.value) and still.change == 0
    assert np.isnan(measures.estimate_gap(np.ones((3, 1)), np.full((3, 1), np.inf), np.zeros((3, 1))).change)
    assert measures.estimate_gap(np.zeros((3, 1)), np.ones((3, 1)), np.ones((3, 1))).change == np.inf


def test_parameter_movement_equals_numpy(checkpoints):
    """Norms are accumulated in float64; the difference is rounded to float32, relative error 2^-24."""
    _, runs = checkpoints
    start, end = runs[2]
    model = SmallModel(start)
    found = measures.parameter_movement(model, start, params=end)
    for name, value in found.items():
        a, b = (np.asarray(p[name], np.float64) for p in (start, end))
        assert value == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-6)
    frozen = {**{k: 0 * v for k, v in start.items()}, "w1": start["w1"]}
    assert measures.parameter_movement(model, frozen, params=frozen) == dict.fromkeys(start, 0.0)
    assert measures.parameter_movement(model, frozen, params=start)["w2"] == np.inf


def independent_cka(A, B):
    """From cross-covariances of features instead of Gram matrices; Kornblith et al. (2019)."""
    A, B = (H - H.mean(0) for H in (A, B))
    cross = [np.sum((P.T @ Q) ** 2) for P, Q in ((A, B), (A, A), (B, B))]
    return cross[0] / np.sqrt(cross[1] * cross[2])


def test_features_equal_numpy():
    rng = np.random.default_rng(5)
    A, B = rng.normal(size=(20, 6)), rng.normal(size=(20, 6))
    found = measures.feature_changes({"h": A}, {"h": A + B})["h"]
    assert found.movement == pytest.approx(np.linalg.norm(B) / np.linalg.norm(A), rel=1e-12)
    assert found.similarity == pytest.approx(independent_cka(A, A + B), rel=1e-12)
    for H, value in ((A, found.initial_rank), (A + B, found.effective_rank)):
        s = np.linalg.svd(H - H.mean(0), compute_uv=False) ** 2
        p = s / s.sum()
        assert value == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-9)
    still = measures.feature_changes({"h": A}, {"h": A})["h"]
    assert still.movement == 0 and still.similarity == pytest.approx(1, abs=1e-14)


def test_effective_rank_of_known_spectra():
    assert measures.effective_rank(np.diag([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert measures.effective_rank(np.zeros((3, 3))) == 0
    assert measures.effective_rank(np.diag([4.0, 1.0])) == pytest.approx(np.exp(0.8 * np.log(1.25) + 0.2 * np.log(5)))


def test_richness_of_features_that_carry_only_the_function():
    """Collapsed features (class means, of equal distances) are the projection onto the outputs: 0. Independent features
    of many dimensions have a Gram matrix near H, whose alignment with a projection of rank 2 is √(2/(m - 1))."""
    labels = np.repeat(np.eye(3), 10, 0)
    rotated = labels @ np.linalg.qr(np.random.default_rng(0).normal(size=(8, 3)))[0].T
    assert measures.richness(rotated, labels @ np.diag([1.0, 2.0, 3.0])) == pytest.approx(0, abs=1e-12)
    wide = np.random.default_rng(1).normal(size=(30, 100_000))
    # entries of the Gram matrix are wrong by 1/√100,000 relative to its diagonal, and H has 29 directions
    assert measures.richness(wide, labels) == pytest.approx(1 - np.sqrt(2 / 29), abs=0.02)
