"""The learning curve from one decomposition: leave-one-out at n, the closed form of a known population beyond it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.kernels.dot_product import Linear
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers.path import decompose
from unlazy.theory.spectra import eigenvalues

P = 400
LAM = np.arange(1.0, P + 1) ** -1.5
POWER = np.arange(1.0, P + 1) ** -2.0
NOISE = 0.05


def sample(n, seed, noise=NOISE):
    """Gaussian features with eigenvalues LAM, so that Linear() is the kernel; the target's power by mode is POWER."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, P))
    return Z * np.sqrt(LAM), Z @ np.sqrt(POWER) + np.sqrt(noise) * rng.normal(size=n)


def known(n, noise=NOISE):
    """The risk of the best ridge [G1], noise included."""
    lam, power = jnp.asarray(LAM), jnp.asarray(POWER)
    excess = jax.jit(
        lambda r: eigenvalues.learning_curve(lam, jnp.ones(P), power, jnp.asarray(float(n)), r, 0.0, noise)
    )
    return min(float(excess(r)) for r in np.geomspace(1e-4, 30, 80)) + noise


def rough_fit(seed, variance):
    """The learning curve of a kernel much rougher than the target, whose noise has this variance."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (400, 4))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + np.sqrt(variance) * rng.normal(size=400)
    return unlazy.learning_curve(Laplace(2.0), X, y, [400, 3200, 1e6], ridges=[1e-3, 1.0])


def test_at_the_given_size_it_is_leave_one_out(x64):
    X, y = sample(60, 0)
    ridges = np.geomspace(0.2, 3, 5)
    curve = decompose(Linear(), X).learning_curve(y, [60.0], ridges)
    K = X @ X.T
    refits = []
    for ridge in ridges:
        errors = []
        for i in range(60):
            keep = np.arange(60) != i
            errors.append(y[i] - K[i, keep] @ np.linalg.solve(K[np.ix_(keep, keep)] + ridge * np.eye(59), y[keep]))
        refits.append(np.mean(np.square(errors)))
    # read off lines between 81 ridges over 11 decades: log steps of 0.3, so 0.3²/8 of the curvature, which is below 1/2
    np.testing.assert_allclose(curve.risks[0], refits, rtol=0.006)
    assert curve.risk[0] <= min(refits) * 1.02 and curve.low[0] < curve.risk[0] < curve.high[0]


def test_the_intercept_is_free(x64):
    """Against refits with the border of ones, and whatever is added to the labels."""
    X, y = sample(60, 0)
    ridges, K, refits = np.geomspace(0.2, 3, 5), X @ X.T, []
    for ridge in ridges:
        errors = []
        for i in range(60):
            keep = np.arange(60) != i
            A = np.block([[K[np.ix_(keep, keep)] + ridge * np.eye(59), np.ones((59, 1))], [np.ones((1, 59)), 0]])
            solved = np.linalg.solve(A, np.append(y[keep], 0))
            errors.append(y[i] - K[i, keep] @ solved[:-1] - solved[-1])
        refits.append(np.mean(np.square(errors)))
    curve, moved = (unlazy.learning_curve(Linear(), X, y + more, [60, 240], ridges=ridges) for more in (0.0, 3.0))
    np.testing.assert_allclose(curve.risks[0], refits, rtol=0.006)  # as above
    np.testing.assert_allclose(moved.risk, curve.risk, rtol=1e-9)  # rounding of 60 labels by 3 + y


@pytest.mark.slow
def test_more_points_are_predicted(x64):
    """From 200 points to 3,200: the mean of 12 draws is near the closed form, and intervals of 90% cover it."""
    sizes = [100, 200, 400, 800, 3200]
    truth = np.array([known(n) for n in sizes])
    curves = [unlazy.learning_curve(Linear(), *sample(200, seed), sizes) for seed in range(12)]
    found = np.array([c.risk for c in curves])
    error = found.std(0, ddof=1) / np.sqrt(12)
    # the minimum over ridges of a noisy curve is low by about its variance: 2 of the standard errors of one draw
    assert np.all(np.abs(found.mean(0) - truth) <= 4 * error + 0.05 * truth)
    inside = np.mean([(c.low <= truth) & (truth <= c.high) for c in curves])
    assert inside >= 0.8
    assert np.all(np.diff(found.mean(0)) < 0)


VARIANCES = (0.002, 0.01, 0.05, 0.2)


def test_no_forecast_is_below_the_noise():
    """A mean of 400 squares of the noise is 2.8 standard errors, √(2/400) each, above 0.8 of its variance: such a draw
    nobody can recognize, and one in a hundred settings has one. Each limit fails in one draw of twenty."""
    for seed, variance in enumerate(VARIANCES):
        curve = rough_fit(seed, variance)
        assert min(curve.risk.min(), curve.risks.min()) >= 0.8 * variance
        assert curve.noise_low <= variance <= curve.noise_high and curve.noise_low <= curve.noise <= curve.noise_high
        assert np.all((curve.low <= curve.risk) & (curve.risk < curve.high)) and np.all(curve.low >= curve.noise_low)


def test_without_noise_the_interval_includes_zero():
    """At a twentieth of the risk with as many points there is room for the risk to fall."""
    curve = rough_fit(0, 0.0)
    assert curve.noise_low == 0 and curve.noise_high < curve.risk[0] / 10 and curve.risk[1] < curve.risk[0] / 4


@pytest.mark.slow
def test_the_noise_is_covered_in_forty_draws():
    curves = [(variance, rough_fit(10 * i + k, variance)) for i, variance in enumerate(VARIANCES) for k in range(10)]
    inside = [c.noise_low <= variance <= c.noise_high for variance, c in curves]
    assert np.mean(inside) >= 0.85
    assert min(c.risk.min() / variance for variance, c in curves) >= 0.8


def test_sizes_beyond_those_of_the_calibration_are_marked(x64):
    X, y = sample(60, 1)
    curve = unlazy.learning_curve(Gaussian(2.0), X[:, :5], y, [60, 240, 241])
    assert list(curve.calibrated) == [True, True, False]
    marked = ["not calibrated" in line for line in str(curve).splitlines()]
    assert marked == [False, False, False, True] and "noise" in str(curve).splitlines()[0]


def test_learning_curve_values_and_text(x64):
    X, y = sample(60, 1)
    curve = unlazy.learning_curve(Gaussian(2.0), X[:, :5], y)
    assert curve.risk.shape == curve.ridge.shape == (7,) and np.all(np.diff(curve.risk) <= 1e-12)
    assert np.all((curve.learned >= 0) & (curve.learned <= 1))
    assert 0 <= curve.noise_low <= curve.noise <= curve.noise_high and curve.noise <= curve.variance
    assert "240 points" in str(curve) and curve.risks.shape == (7, 0)
    two = unlazy.learning_curve(Gaussian(2.0), X[:, :5], np.stack([y, y], 1), [60])
    np.testing.assert_allclose(two.risk, 2 * curve.risk[2], rtol=1e-9)  # the same fit twice


def test_noise_remains_if_few_modes_are_learned(x64):
    """A smooth kernel of one input learns a parabola by four modes; the rest of the error is noise, of every size."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=200)
    y = x**2 - 1 + 0.3 * rng.normal(size=200)
    curve = unlazy.learning_curve(Gaussian(30.0), x[:, None], y, [200, 3200])
    # a mean of 200 squares is good to √(2/200) = 10%; two standard errors
    np.testing.assert_allclose(curve.risk, 0.09, rtol=0.2)


def test_a_kernel_that_sees_no_neighbors_learns_nothing(x64):
    X, y = sample(60, 1)
    curve = unlazy.learning_curve(Gaussian(1e-3), X, y, [60, 240])
    # every point is left out of a fit that is zero there: the risk is that of the mean, with one ridge or another
    np.testing.assert_allclose(curve.risk, np.var(y), rtol=0.05)


def test_impossible_arguments_are_rejected(x64):
    X, y = sample(60, 1)
    for sizes in ([], [0.5], [np.nan]):
        with pytest.raises(ValueError, match="sizes must be numbers of training points"):
            unlazy.learning_curve(Linear(), X, y, sizes)
    with pytest.raises(ValueError, match="40 points or more, got 20"):
        unlazy.learning_curve(Linear(), X[:20], y[:20])
    with pytest.raises(ValueError, match="not all zero"):
        unlazy.learning_curve(Linear(), X, np.ones(60))
    with pytest.raises(ValueError, match="ridges must be positive"):
        unlazy.learning_curve(Linear(), X, y, [60], ridges=[0.0])
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda y: decompose(Linear(), X).learning_curve(y, [60.0]).noise)(y)
