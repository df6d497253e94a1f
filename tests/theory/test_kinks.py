"""Steps and ramps: the split of a function at its kinks, their coefficients and duals, against quadrature."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from numpy.polynomial import hermite_e

from oracles_gaussian import _rule, bivariate_expectation
from unlazy.theory.activations import dual_errors, kink_splitting, numeric_duals, step_ramp_duals
from unlazy.theory.activations.functions import ActivationFunction, activation
from unlazy.theory.activations.kink_splitting import KinkSplit, kink_sum
from unlazy.theory.activations.step_ramp_duals import Kink
from unlazy.theory.numerics.geometry import covariance

KINKS = (Kink(1, 0.7, 0.5, -0.8), Kink(-1, 0.4, -0.3, 1.2), Kink(1, 0.0, 0.2, 0.9))
"""Both sides, and steps and ramps at each kink."""
PLACES = (0.7, -0.4, 0.0)
ROOTS = np.array([0.5, 1.0, 2.3])


def hermite_coefficients(function, root, terms, places):
    """E f(s x) h_k(x), h_k = He_k/√k!, by panels that end at the kinks."""
    x, w = (v[0] for v in _rule(np.array([places]) / root))
    return [
        np.sum(w * function(root * x) * hermite_e.hermeval(x, np.eye(terms)[k]) / math.sqrt(math.factorial(k)))
        for k in range(terms)
    ]


def test_coefficients_of_steps_and_ramps(x64):
    """Terms h_k of order one by a recurrence of 12 steps: some units each. The tails beyond 9 hold 1e-18."""
    wanted = [hermite_coefficients(lambda x: kink_sum(KINKS, x), root, 12, PLACES) for root in ROOTS]
    found = kink_splitting.kink_coefficients(KINKS, jnp.asarray(ROOTS), 12)
    np.testing.assert_allclose(found, wanted, atol=1e-13)
    np.testing.assert_allclose(dual_errors._parts(KinkSplit(KINKS, None), ROOTS)[:, :12], wanted, atol=1e-13)


@pytest.mark.slow
def test_duals_of_steps_and_ramps(x64):
    for q12, q11, q22 in ((0.3, 1.2, 0.7), (-0.5, 0.6, 1.5), (0.69, 0.7, 0.72)):
        pair = covariance(*(jnp.asarray([q]) for q in (q12, q11, q22)))
        wanted = bivariate_expectation(lambda x: kink_sum(KINKS, x), q12, q11, q22, PLACES)
        # the quadrature is off by 2e-11 where a is near b
        np.testing.assert_allclose(step_ramp_duals.expectation(KINKS, pair), [wanted], atol=1e-10)
        shared = step_ramp_duals.tail_probabilities(KINKS, pair)
        np.testing.assert_allclose(step_ramp_duals.expectation(KINKS, pair, shared), [wanted], atol=1e-10)


def test_differences_of_parallel_points_have_no_rounding(x64):
    """Up to four units at sines below √eps: 0. Elsewhere the difference as it is, however small."""
    eps = np.finfo(float).eps
    a, b = jnp.asarray([1 + 3 * eps, 1 + 3 * eps, 1 + 8 * eps, 2.0]), jnp.ones(4)
    sine = jnp.asarray([1e-9, 1e-3, 1e-9, 0.0])
    np.testing.assert_array_equal(step_ramp_duals._difference(a, b, sine), [0, 3 * eps, 8 * eps, 1])
    np.testing.assert_array_equal(step_ramp_duals._difference(b, a, sine), [0, -3 * eps, -8 * eps, -1])


@pytest.mark.slow
def test_duals_of_ramps_at_zero_on_both_sides(x64):
    """E φφ = ½(q12 + …): by the known duals of ReLU for the same side, the opposite side and a step at 0."""
    q12, q11, q22 = 0.3, 1.2, 0.7
    pair = covariance(*(jnp.asarray([q]) for q in (q12, q11, q22)))
    alone = Kink(1, 0.0, 0.0, 1.0)
    for kinks in ((alone,), (Kink(-1, 0.0, 0.0, 1.0), Kink(1, 0.0, 0.4, 1.0)), (Kink(1, 0.3, 0.5, 0.0), alone)):
        wanted = bivariate_expectation(lambda x, kinks=kinks: kink_sum(kinks, x), q12, q11, q22, (0.0, 0.3))
        np.testing.assert_allclose(step_ramp_duals.expectation(kinks, pair), [wanted], atol=1e-10)


def test_owens_function_and_its_derivatives(x64):
    h, a = (v.ravel() for v in np.meshgrid([0.0, 0.3, 1.0, 2.5], [-3.0, -0.7, 0.2, 1.0, 6.0]))
    # 13 nodes with a factor 20 each: below rounding
    np.testing.assert_allclose(
        step_ramp_duals.owens_t(jnp.asarray(h), jnp.asarray(a)), scipy.special.owens_t(h, a), atol=1e-15
    )
    step = 1e-5  # central differences of values good to 1e-17: 1e-12 of rounding, step²/6 · 3 of truncation
    inner, along = jnp.asarray(np.where(h > 0, h, 0.1)), jnp.asarray(a)
    for direction in ((1.0, 0.0), (0.0, 1.0)):
        moved = [step * d * np.ones_like(h) for d in direction]
        ends = [scipy.special.owens_t(inner + sign * moved[0], along + sign * moved[1]) for sign in (1, -1)]
        tangents = tuple(jnp.full(h.shape, d) for d in direction)
        value, found = jax.jvp(step_ramp_duals.owens_t, (inner, along), tangents)
        np.testing.assert_allclose(value, scipy.special.owens_t(inner, along), atol=1e-15)
        np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * step), atol=1e-10)


@pytest.mark.parametrize("function, parameter, kinks, rest", [
    ("truncated_relu", None, ((1, 0.0, 0.0, 1.0), (1, 1.0, 0.0, -1.0)), (0.0, 0.0, 0.0)),
    ("leaky_relu", 0.25, ((1, 0.0, 0.0, 0.75),), (0.0, 0.25, 0.0)),
    ("jax.nn.hard_tanh", None, ((-1, 1.0, 0.0, 1.0), (1, 1.0, 0.0, -1.0)), (0.0, 1.0, 0.0)),
    ("jax.nn.hard_silu", None, ((-1, 3.0, 0.0, -0.5), (1, 3.0, 0.0, -0.5)), None),
])  # fmt: skip
def test_split_of_known_functions(function, parameter, kinks, rest):
    """Changes of slope by hand: x(x + 3)/6 has slopes -1/2 at -3, after 0, and 3/2 at 3, before 1."""
    found = kink_splitting.split_kinks(activation(function, parameter))
    for ours, wanted in zip(found.kinks, kinks, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-10)  # FIT_NOISE
    assert found.rest == rest


def test_kinks_close_to_each_other_are_told_apart():
    """0.06 apart, less than a fit is wide: its nodes end halfway."""
    phi = ActivationFunction("bends", lambda x: jnp.maximum(x, 0) + 2 * jnp.maximum(x - 0.06, 0), kinks=(0.0, 0.06))
    found = kink_splitting.split_kinks(phi)
    for ours, wanted in zip(found.kinks, ((1, 0.0, 0.0, 1.0), (1, 0.06, 0.0, 2.0)), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-10)  # FIT_NOISE
    assert found.rest == (0.0, 0.0, 0.0)
    widths = [kink_splitting._width(at, (0.0, 0.06, 9.0)) for at in (0.0, 0.06, 9.0)]
    np.testing.assert_allclose(widths, [0.03, 0.03, kink_splitting.WIDTH])


@pytest.mark.parametrize("factor", [-1.0, 0.25, -0.25 - 2e-8])
def test_slopes_are_short_decimals_or_as_fitted(factor):
    """Slopes of short decimals are exact, of either sign; others, 2e-8 away, are those of the fits: FIT_NOISE."""
    phi = ActivationFunction("bent", lambda x: jnp.where(x > 0, factor * x, 0.5 * x), kinks=(0.0,))
    found = kink_splitting.split_kinks(phi)
    ((side, level, jump, slope),) = found.kinks
    assert (side, level, jump, found.rest[0], found.rest[2]) == (1, 0.0, 0.0, 0.0, 0.0)
    if round(factor, 4) == factor:
        assert slope == factor - 0.5 and found.rest[1] == 0.5
    assert abs(slope - (factor - 0.5)) < 1e-10 and abs(found.rest[1] - 0.5) < 1e-10


def test_a_remainder_that_is_a_polynomial_is_recognized_far_out():
    """Rounding of x² at x = 10⁴ is 1e-8: allowed relative to the terms there, not to those near 0."""
    phi = activation(lambda x: 3.0 * jnp.maximum(x, 0) - 0.1234567 * x)
    assert kink_splitting.split_kinks(phi).rest is None  # no kink is declared
    known = kink_splitting._polynomial
    x = np.concatenate([-np.geomspace(3, 1e4, 50), np.linspace(-2.9, 2.9, 301)])
    noise = 2.0**-53 * np.random.default_rng(0).uniform(-1, 1, x.size)
    kink = Kink(1, 0.0, 0.0, 3.0)
    values = kink_sum((kink,), x) - 0.5 * x
    assert known(x, values + 1e4 * noise * np.abs(x), (kink,), 8.0) == (0.0, -0.5, 0.0)
    assert known(x, values + 1e-6 * np.sin(x), (kink,), 8.0) is None
    assert known(x, values + 1e-3 * np.where(np.abs(x) > 100, x, 0), (kink,), 8.0) is None


def test_series_with_kinks_away_from_zero(x64):
    """Coefficients of the smooth part by panels that move with the kink, and of φ' of the same function."""
    phi = activation("jax.nn.hard_silu")

    def plain(x):
        return x * np.clip(x + 3, 0, 6) / 6

    def slope(x):
        return np.where(x > 3, 1.0, np.where(x < -3, 0.0, (2 * x + 3) / 6))

    for derivative, function in ((False, plain), (True, slope)):
        whole = kink_splitting.split_kinks(phi, derivative)
        smooth, rest = numeric_duals.coefficients(phi, jnp.asarray(ROOTS), derivative, whole)
        smooth = np.pad(smooth, ((0, 0), (0, 12)))[:, :12]  # of φ' a line is left, with two coefficients
        total = smooth + kink_splitting.kink_coefficients(whole.kinks, jnp.asarray(ROOTS), 12)
        wanted = [hermite_coefficients(function, root, 12, (-3.0, 3.0)) for root in ROOTS]
        np.testing.assert_allclose(total, wanted, atol=1e-9)  # kinks by fits, FIT_NOISE times 10 for h_k
        assert np.all(np.asarray(rest) < 1e-3)


def test_recognized_functions_keep_their_parameters():
    squareplus = activation(functools.partial(jax.nn.squareplus, b=0))
    assert (squareplus.name, squareplus.parameter, squareplus.kinks) == ("jax.nn.squareplus", 0, (0.0,))
    assert activation(functools.partial(jax.nn.squareplus, b=2.0)).kinks == ()
    assert activation("jax.nn.silu").function is jax.nn.silu
    assert activation("jax.numpy.fabs").kinks == (0.0,)
    other = functools.partial(jax.nn.leaky_relu, 0.3)  # an argument without its name: an unknown function
    assert activation(other).parameter is None and activation(other).function is other
    both = functools.partial(jnp.clip, min=0.0, max=2.0)
    assert activation(both).parameter is None and activation(both).function is both


@pytest.mark.slow
def test_expansion_with_a_kink_against_quadrature(x64):
    """φ = e^{-max(x, 0)}: a ramp and a part that bends, which 128 terms describe within the stated error."""
    phi = ActivationFunction("bend", lambda x: jnp.exp(-jnp.maximum(x, 0)), kinks=(0.0,))
    q12, q11, q22 = 0.3, 1.2, 0.7
    pair = covariance(*(jnp.asarray([q]) for q in (q12, q11, q22)))
    functions = (lambda x: np.exp(-np.maximum(x, 0))), (lambda x: -np.exp(-np.maximum(x, 0)) * (x > 0))
    for derivative, dual in ((False, 0), (True, 1)):
        stated = np.sqrt(np.prod([dual_errors.dual_error(phi, np.sqrt([q]), derivative) for q in (q11, q22)]))
        wanted = bivariate_expectation(functions[dual], q12, q11, q22, (0.0,))
        found = float(numeric_duals.dual_functions(phi)[dual](pair)[0])
        assert abs(found - wanted) <= stated + 1e-10 < 1e-3  # E φ² and E φ'² are below one
