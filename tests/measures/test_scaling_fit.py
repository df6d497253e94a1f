"""Fits on made-up laws whose exponents are known."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from unlazy.measures.scaling_fit import (  # fmt: skip
    EXPONENTS,
    crossing,
    first_n,
    floored_laws,
    power_law,
    scaling_exponent,
    slope,
)


def test_a_power_law_is_found_exactly():
    x = np.array([10, 30, 100, 1_000])
    law = power_law(x, 2.5 * x**-0.75)
    assert law.exponent == pytest.approx(-0.75, abs=1e-13)
    assert law.constant == pytest.approx(2.5, rel=1e-12)
    np.testing.assert_allclose(law(x), 2.5 * x**-0.75, rtol=1e-12)


def test_a_law_with_a_floor():
    """An exponent of the grid is found exactly; between two of them the fit is as good as SciPy's optimum up to the
    grid's step. Risks that do not fall have no power, a pure power has no floor, and signs are kept."""
    x, on_grid = np.array([50.0, 100, 200, 400]), float(EXPONENTS[90])
    exact, flat = 0.3 + 5 * x**on_grid, np.full(4, 0.7)
    pure, rising = 3 * x ** float(EXPONENTS[60]), np.array([0.5, 0.6, 0.65, 0.7])
    one, level, power, up = floored_laws(x, np.stack([exact, flat, pure, rising]))
    np.testing.assert_allclose([one.exponent, one.constant, one.floor], [on_grid, 5, 0.3], rtol=1e-8)
    np.testing.assert_allclose(level([1000.0]), 0.7, rtol=1e-12)
    np.testing.assert_allclose([power.exponent, power.constant, power.floor], [EXPONENTS[60], 3, 0], atol=1e-8)
    assert up.constant >= 0 and up.floor >= 0 and np.ptp(up(x)) < 1e-6

    noisy = exact * np.exp(0.05 * np.random.default_rng(0).normal(size=4))

    def misfit(numbers):
        return np.sum(((numbers[0] + numbers[1] * x ** numbers[2]) / noisy - 1) ** 2)

    best = minimize(misfit, [0.3, 5.0, on_grid], bounds=[(0, None), (0, None), (-4, -0.02)], tol=1e-14)
    law = floored_laws(x, noisy[None])[0]
    step = np.log(EXPONENTS[91] / EXPONENTS[90])
    # at most half a step from the optimum, where the misfit is flat: four points move by slope·step/2 each
    slope_there = np.max(np.abs(best.x[2] * np.log(x / x[-1])))
    assert misfit([law.floor, law.constant, law.exponent]) <= best.fun + 4 * (slope_there * step / 2) ** 2
    assert floored_laws(x[:2], noisy[None, :2])[0].floor == 0
    with pytest.raises(ValueError, match="at least two"):
        floored_laws([3.0], np.ones((1, 1)))


def test_slope_equals_numpys_polyfit_and_its_interval_covers():
    """With log-normal noise the median's slope has a known spread: the 95% interval should cover 90-99% of the time."""
    rng = np.random.default_rng(0)
    x = np.array([1.0, 2, 4, 8, 16])
    covered = 0
    runs = 60
    for run in range(runs):
        y = x[:, None] ** -0.5 * np.exp(0.3 * rng.normal(size=(5, 12)))
        fit = slope(x, y, seed=run)
        covered += fit.low <= -0.5 <= fit.high
    assert fit.value == pytest.approx(np.polyfit(np.log(x), np.log(np.median(y, 1)), 1)[0], abs=1e-12)
    # A true coverage of 0.9 (percentile bootstraps of a median are rough) gives ≥ 46 of 60 with probability 0.9995.
    assert covered >= 46


def test_crossing_interpolates_logarithms():
    n = [10, 100, 1_000]
    assert crossing(n, [1.0, 0.5, 0.125], 0.25) == pytest.approx(math.sqrt(100 * 1_000), rel=1e-12)
    assert crossing(n, [0.2, 0.1, 0.1], 0.25) == 10
    assert math.isnan(crossing(n, [1.0, 0.9, 0.8], 0.25))
    assert crossing(n, [1.0, 0.2, 0.9], 0.25) < 100  # the first crossing counts


def test_first_n_of_a_noiseless_law_is_exact_and_without_spread():
    n = np.array([10, 20, 40, 80])
    risks = np.tile((10 / n)[:, None], (1, 5))
    found = first_n(n, risks, 0.3)
    assert found.value == pytest.approx(10 / 0.3, rel=1e-12)
    assert found.low == found.high == pytest.approx(found.value, rel=1e-12)
    never = first_n(n, risks + 1, 0.3)
    assert math.isnan(never.value) and math.isnan(never.low) and never.failed == 1


def test_scaling_exponent_of_a_law():
    """risk(n, d) = d^1.5/n with log-normal noise per seed: n*(d) ∝ d^1.5."""
    rng = np.random.default_rng(1)
    curves = {}
    for d in (8, 16, 32, 64):
        n = np.geomspace(d, 40 * d**1.5, 12)
        curves[d] = (n, d**1.5 / n[:, None] * np.exp(0.2 * rng.normal(size=(1, 10))))
    found = scaling_exponent(curves, 0.25)
    # Median of 10 log-normal factors: spread 0.2·1.25/√10 = 0.08 of each log n*; over log d of spread 0.775·2 the
    # slope's standard error is 0.08/(√4·0.775) = 0.051.
    assert abs(found.value - 1.5) <= 4 * 0.051
    assert found.low < found.value < found.high < found.low + 0.5


@pytest.mark.parametrize(
    "bad",
    [
        lambda: power_law([1.0, 1.0], [1.0, 2.0]),
        lambda: power_law([1.0, 2.0], [1.0, -2.0]),
        lambda: crossing([2.0, 1.0], [1.0, 0.5], 0.1),
        lambda: crossing([1.0, 2.0], [1.0, 0.5], 0.0),
        lambda: first_n([1.0, 2.0], np.ones((3, 4)), 0.5),
        lambda: slope([1.0, 2.0], np.ones((3, 4))),
    ],
)
def test_misuse_raises(bad):
    with pytest.raises(ValueError):
        bad()
