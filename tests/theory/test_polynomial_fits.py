"""Kernels of an angle by polynomials, against the recursion in float64."""

import math

import numpy as np
import pytest

from unlazy.theory.infinite_width.homogeneous import kernels_at_angle
from unlazy.theory.numerics import polynomial_fits
from unlazy.theory.numerics.angle_polynomials import minimax_fit


def _cut(number):
    return np.clip(number, 0, 1)


@pytest.mark.slow_cases("10-0.0-fit_half_angles", "10-0.3-fit_half_angles", "10-0.0-fit_sines")
@pytest.mark.parametrize("fit", [polynomial_fits.fit_half_angles, polynomial_fits.fit_sines])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("depth", [1, 3, 10])
def test_fits_keep_their_bound_in_float32(fit, depth, slope):
    def ntk(theta):
        return kernels_at_angle(theta, depth, slope)[1:].mean(0)

    found = fit(ntk, 6e-6)
    theta = np.random.default_rng(depth).uniform(0, np.pi, 5000)  # not the grid that the bound was found on
    one_root = isinstance(found, polynomial_fits.SineFit)
    sides = (np.cos(theta) / 2, np.sin(theta) / 2) if one_root else (np.sin(theta / 2), np.cos(theta / 2))
    values = found.scaled(2.0).evaluate(*(side.astype(np.float32) for side in sides))
    assert values.dtype == np.float32 and found.error <= 6e-6
    size = np.maximum(np.abs(ntk(theta)), 0.1)
    # between points of the grid, 0.0016 apart, errors of degree 12 move by little, and rounding by some units
    assert np.max(np.abs(values / 2 - ntk(theta)) / size) <= 1.1 * 6e-6
    assert found.evaluate(*found.arguments(np.full(1, 0.5), np.sqrt, _cut)) == pytest.approx(1, abs=1e-12)


def test_acute_angles_need_fewer_steps():
    def passing(theta):
        return 1 - theta / np.pi

    all_angles, acute = (polynomial_fits.fit_half_angles(passing, 2e-6, largest) for largest in (np.pi, np.pi / 2))
    assert len(acute.near) + len(acute.far) < len(all_angles.near) + len(all_angles.far)


@pytest.mark.slow
@pytest.mark.slow_cases("fit_half_angles")
@pytest.mark.parametrize("fit", [polynomial_fits.fit_half_angles, polynomial_fits.fit_sines])
def test_deep_networks_are_squares_above_most_of_their_smallest_value(fit):
    """Functions that are a square plus a constant need fewer steps; scaling them keeps the fit."""

    def ntk(theta):
        return kernels_at_angle(theta, 10, 0.0)[1:].mean(0)

    found = fit(ntk, 6e-6)
    assert len(found.squares) == 2 and 0 < found.squares[1] < ntk(np.linspace(0, np.pi, 2001)).min()
    theta = np.linspace(0, np.pi, 50)
    values = found.scaled(2.5).evaluate(*found.arguments(np.cos(theta) / 2, np.sqrt, _cut))
    # 6e-6 of F or of a tenth, which is less than F; the root of 1 - sin² is 1e-8 off at a straight angle
    np.testing.assert_allclose(values, 2.5 * ntk(theta), rtol=6e-6 + 1e-7)


@pytest.mark.nightly_cases("50")
@pytest.mark.parametrize(
    "depth", [pytest.param(k, marks=[] if k == 3 else pytest.mark.slow) for k in (1, 2, 3, 5, 20, 50)]
)
def test_the_shortest_is_within_the_tolerance_and_costs_the_least(depth):
    def ntk(theta):
        return kernels_at_angle(theta, depth, 0.0)[1:].mean(0)

    fits = [fit(ntk, 6e-6) for fit in (polynomial_fits.fit_half_angles, polynomial_fits.fit_sines)]
    found = polynomial_fits.cheapest_fit(ntk, 6e-6)
    assert found.error <= 6e-6 and found.cost == min(fit.cost for fit in fits if fit.error <= 6e-6)


def test_the_best_fit_is_returned_if_none_suffices():
    fit = polynomial_fits.fit_half_angles(lambda theta: kernels_at_angle(theta, 30, 0.0)[1:].mean(0), 1e-9, most=8)
    assert 1e-9 < fit.error < np.inf


def test_the_derivative_dual_is_odd_about_a_right_angle():
    """1 - θ/π is ½ and an odd part: P is a number."""
    fit = polynomial_fits.fit_sines(lambda theta: 1 - theta / np.pi, 3e-6)
    assert len(fit.near) == 1 and fit.error <= 3e-6


@pytest.mark.parametrize("fit", [polynomial_fits.fit_half_angles, polynomial_fits.fit_sines])
def test_candidates_of_a_cost_have_that_cost(fit, monkeypatch):
    """Deep enough that squares are tried: with constants, with and without a second root and a center."""
    asked, search = {}, polynomial_fits._cheapest

    def capture(of_cost, tolerance, most):
        asked["of_cost"] = of_cost
        return search(of_cost, math.inf, most)  # the first that is found

    monkeypatch.setattr(polynomial_fits, "_cheapest", capture)
    fit(lambda theta: kernels_at_angle(theta, 6, 0.0)[1:].mean(0), 1e-6)
    kinds = set()
    for cost in (9, 13):
        for candidate in asked["of_cost"](cost):
            kind = len(candidate.shares), candidate.center, candidate.far > 0
            if kind not in kinds:  # one of every kind and cost
                kinds.add(kind)
                assert candidate.evaluated_fit().cost == cost
    assert {count for count, *_ in kinds} == {0, 1, 2} and len(kinds) >= 3


@pytest.mark.parametrize("errors, costs, chosen", [
    ((1e-6, 2e-6), (12, 9), "sines"), ((1e-6, 2e-5), (12, 9), "half angles"), ((2e-5, 1e-6), (9, 12), "sines"),
    ((3e-5, 2e-5), (28, 28), "sines"), ((2e-5, 3e-5), (28, 28), "half angles"),
])  # fmt: skip
def test_the_choice_between_both_forms(errors, costs, chosen, monkeypatch):
    """Within the tolerance the cheaper, so the sines are asked for less; else the more accurate."""
    of_halves = polynomial_fits.HalfAngleFit(0.0, (1.0,) * (costs[0] - polynomial_fits.SQRT_COST + 1), (), errors[0])
    of_sines = polynomial_fits.SineFit((1.0,) * (costs[1] - polynomial_fits.SQRT_COST), (1.0,), errors[1])
    assert (of_halves.cost, of_sines.cost) == costs
    asked = []
    monkeypatch.setattr(polynomial_fits, "fit_half_angles", lambda f, tolerance, most: of_halves)
    monkeypatch.setattr(polynomial_fits, "fit_sines", lambda f, tolerance, most: asked.append(most) or of_sines)
    found = polynomial_fits.cheapest_fit(np.cos, 6e-6, most=28)
    assert found is (of_sines if chosen == "sines" else of_halves)
    assert asked == [costs[0] - 1 if errors[0] <= 6e-6 else 28]


@pytest.mark.parametrize("kind", [polynomial_fits._HalfAngleCandidate, polynomial_fits._SineCandidate])
def test_stated_errors_are_the_largest_at_all_angles(kind):
    """Of the root by its terms in float64, and of F from float32 arguments, relative to F or a tenth."""

    def ntk(theta):
        return kernels_at_angle(theta, 6, 0.0)[1:].mean(0)

    target = polynomial_fits._Target(ntk, np.pi)
    candidate = kind(target, 5, 3, (0.9,))
    found, (constant,), error = candidate.coefficients(3)
    root, scale = np.sqrt(target.values - constant), np.maximum(target.values, 0.1)
    wrong = np.abs(candidate.terms(target.theta) @ found - root) * 2 * root / scale
    np.testing.assert_allclose(error, wrong.max(), rtol=1e-9)
    np.testing.assert_allclose(candidate.terms(np.zeros(1)) @ found, math.sqrt(1 - constant), rtol=1e-13)
    fit, grid = candidate.evaluated_fit(), target.grid
    half = isinstance(fit, polynomial_fits.HalfAngleFit)
    sides = (np.sin(grid / 2), np.cos(grid / 2)) if half else (np.cos(grid) / 2, np.sin(grid) / 2)
    off = np.abs(fit.evaluate(*(side.astype(np.float32) for side in sides)) - ntk(grid)) / np.maximum(ntk(grid), 0.1)
    assert fit.error == off.max() > 1e-6


def test_a_fit_without_error_ends_the_rounds():
    terms = np.stack([np.ones(5), np.arange(5.0)], 1)
    found, error = minimax_fit(terms, np.zeros(5), np.ones(5))
    assert error == 0 and not np.any(found)
    # x² by a line on {0, 1, 2}: 2x - 1/2, off by a half everywhere, as Chebyshev's theorem has it
    x = np.arange(3.0)
    found, error = minimax_fit(np.stack([np.ones(3), x], 1), x**2, np.ones(3), rounds=60)
    np.testing.assert_allclose(found, [-0.5, 2.0], atol=0.02)
    assert 0.5 - 1e-12 <= error < 0.51
