"""Hermite series against NumPy's own, mpmath, exact identities and sampling."""

import math
import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from numpy.polynomial import hermite_e as he

from unlazy.core.errors import UnlazyWarning
from unlazy.theory.activations import hermite
from unlazy.theory.activations.functions import activation

EPS64, EPS32 = 2.0**-53, 2.0**-24


def normalized(k):
    """NumPy's unnormalized coefficients of h_k."""
    return np.eye(k + 1)[k] / math.sqrt(math.factorial(k))


def test_basis_and_series_equal_numpys_polynomials():
    x = np.linspace(-5, 5, 41)
    values = hermite.basis(x, 12)
    expected = np.stack([he.hermeval(x, normalized(k)) for k in range(13)], -1)
    # A recurrence of 12 steps on values up to max|h|: 12·4 roundings, of the largest value on the way.
    assert np.max(np.abs(values - expected)) <= 48 * EPS64 * np.max(np.abs(expected))
    with jax.enable_x64(True):
        c = np.arange(1.0, 14.0)
        got = hermite.series(jnp.asarray(x), c)
        bound = 48 * EPS64 * np.max(np.abs(expected) @ c)
        assert np.max(np.abs(got - expected @ c)) <= bound
    got32 = hermite.basis(jnp.asarray(x, jnp.float32), 12)
    assert got32.dtype == jnp.float32
    assert np.max(np.abs(got32 - expected)) <= 48 * EPS32 * np.max(np.abs(expected))


def test_derivative_equals_autodiff(x64):
    c = np.array([0.3, -1.0, 0.5, 2.0, 0.25])
    x = jnp.linspace(-3, 3, 13)
    expected = jax.vmap(jax.grad(lambda t: hermite.series(t, c)))(x)
    got = hermite.series(x, hermite.derivative(c))
    assert np.max(np.abs(got - expected)) <= 100 * EPS64 * np.max(np.abs(expected))
    assert hermite.derivative([3.0]).tolist() == [0.0]


def test_product_of_series_is_the_product_of_functions(x64):
    a, b = np.array([1.0, 2.0, -0.5]), np.array([0.1, 0.0, 0.7, 1.3])
    x = jnp.linspace(-2, 2, 9)
    got, expected = hermite.series(x, hermite.product(a, b)), hermite.series(x, a) * hermite.series(x, b)
    assert np.max(np.abs(got - expected)) <= 200 * EPS64 * np.max(np.abs(expected))


def test_monomial_conversion_round_trip():
    powers = np.array([1.0, -2.0, 0.5, 0.0, 3.0, 0.0, -1.0])
    back = hermite.to_monomials(hermite.from_monomials(powers))
    # Intermediate terms reach 6!·3 / 1: roundings of that size.
    assert np.max(np.abs(back - powers)) <= 20 * EPS64 * 6 * math.factorial(6)
    # x⁴ = h_4 √24 + 6√2 h_2 + 3: three quarters of its variance sit in degree 2.
    c = hermite.from_monomials([0, 0, 0, 0, 1.0])
    np.testing.assert_allclose(c, [3, 0, 6 * math.sqrt(2), 0, math.sqrt(24)], rtol=4 * EPS64)
    assert c[2] ** 2 / (c[2] ** 2 + c[4] ** 2) == pytest.approx(0.75)


@pytest.mark.parametrize("nodes", [1, 2, 7, 40, 120])
def test_gauss_hermite_has_exact_moments(nodes):
    z, w = hermite.gauss_hermite(nodes)
    for k in range(0, min(2 * nodes, 40), 2):
        moment = float(np.prod(np.arange(1, k, 2, dtype=float)))  # (k-1)!!
        # Nodes carry an absolute error of about nodes·eps·‖J‖ ≤ 2√nodes·eps; the moment multiplies it by k.
        assert np.sum(w * z**k) == pytest.approx(moment, rel=max(1, k) * nodes * 4 * EPS64)
    assert abs(np.sum(w * z)) <= nodes * EPS64  # the terms cancel in pairs; Σ w|z| < 1, summed in any order


def reference_coefficient(function, k, cuts):
    """E f(z) h_k(z) with 30 digits."""
    mpmath.mp.dps = 30
    integrand = lambda z: function(z) * mpmath.hermite(k, z / mpmath.sqrt(2)) * mpmath.mpf(2) ** (-mpmath.mpf(k) / 2)  # noqa: E731
    value = mpmath.quad(lambda z: integrand(z) * mpmath.npdf(z), [-15, *cuts, 15])
    return float(value / mpmath.sqrt(mpmath.factorial(k)))


@pytest.mark.slow_cases("step-<lambda>-cuts1")
@pytest.mark.parametrize(
    ("name", "reference", "cuts"),
    [
        ("relu", lambda z: max(z, mpmath.mpf(0)), [0]),
        ("step", lambda z: mpmath.mpf(z > 0), [0]),
        pytest.param(
            "truncated_relu", lambda z: min(mpmath.mpf(1), max(z, mpmath.mpf(0))), [0, 1], marks=pytest.mark.slow
        ),
        pytest.param("erf", mpmath.erf, [-5, 0, 5], marks=pytest.mark.slow),
    ],
)
def test_coefficients_against_mpmath(name, reference, cuts):
    phi = activation(name)
    got = hermite.coefficients(phi, 12, phi.kinks)
    # About 1,700 nodes, each term rounded once, |f h_k| φ summed to at most ‖f‖: ~√1700·eps, asked with slack 25.
    for k in (0, 1, 2, 3, 4, 7, 12):
        assert got[k] == pytest.approx(reference_coefficient(reference, k, cuts), abs=1000 * EPS64)


def test_relu_closed_form_and_second_moment():
    c = hermite.coefficients(activation("relu"), 4, (0.0,))
    root = math.sqrt(2 * math.pi)
    expected = [1 / root, 0.5, math.sqrt(2) / (2 * root), 0, -1 / root / math.sqrt(24)]
    np.testing.assert_allclose(c, expected, atol=1e-13)
    assert hermite.second_moment(activation("relu"), (0.0,)) == pytest.approx(0.5, abs=1e-13)


def test_pair_moments_of_correlated_gaussians_in_closed_form(x64):
    """Step: 1/4 + asin(ρ)/2π. Product of Hermite polynomials: ρ^k. Jumps are split, so both come to rounding."""
    rho = jnp.array([-0.999, -0.5, 0.0, 0.3, 0.9])
    step = activation("step")
    expected = 0.25 + np.arcsin(rho) / (2 * math.pi)
    np.testing.assert_allclose(hermite.pair_moment(step, rho, step.kinks), expected, atol=1e-9)
    cubic = lambda z: hermite.series(z, [0.0, 0.0, 0.0, 1.0])  # noqa: E731
    np.testing.assert_allclose(hermite.pair_moment(cubic, rho), rho**3, atol=1e-12)
    np.testing.assert_allclose(hermite.pair_moment(step, jnp.array([1.0, -1.0]), (0.0,)), [0.5, 0.0], atol=1e-9)


def test_an_undeclared_kink_is_detected():
    with pytest.warns(UnlazyWarning, match="kinks"):
        hermite.coefficients(lambda z: jnp.where(z > 0.3, 1.0, 0.0), 4)


def test_coefficients_inside_jit_and_in_float32_scope():
    outside = hermite.coefficients(jnp.tanh, 5)

    @jax.jit
    def inside(x):
        return hermite.series(x, hermite.coefficients(jnp.tanh, 5))

    x = jnp.linspace(-1, 1, 5)
    np.testing.assert_allclose(inside(x), hermite.series(x, outside), rtol=20 * EPS32, atol=20 * EPS32)


def test_information_exponent():
    assert hermite.information_exponent([5.0, 0.0, 0.0, 1.0]) == 3
    assert hermite.information_exponent([5.0]) is None
    assert hermite.information_exponent([0.0, 1e-15, 1.0]) == 2


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([(1, 0, 0), (1, 1, 0), (1, 1, 1)], 1),  # the staircase
        ([(1, 1, 1)], 3),  # the parity
        ([(1, 0, 0), (1, 1, 1)], 2),
        ([(2, 0), (2, 3)], 3),
        ([(0, 0)], None),
        ([(4,), (2,)], 2),
    ],
)
def test_leap(terms, expected):
    assert hermite.leap(terms) == expected


def test_panels_have_about_the_nodes_that_were_asked_for():
    for nodes, half_width, kinks, wanted in ((6, 3.0, (), 6), (96, 8.0, (), 96), (20, 5.0, (0.0, 9.0, -7.0), 20)):
        z, w = hermite.panel_rule(nodes, half_width, kinks)
        assert len(z) == len(w) == wanted and np.all(w > 0) and np.all(np.diff(z) > 0) and np.all(abs(z) < half_width)
    # 96 nodes integrate e^{-z²/2} z² on ±8 to rounding of some ten units
    z, w = hermite.panel_rule(96, 8.0)
    assert abs(w.sum() - 1) < 1e-13 and abs(w @ z**2 - 1) < 1e-12


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_smooth_functions_of_any_size_raise_no_warning(size):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnlazyWarning)
        found = hermite.coefficients(lambda z: size * jnp.tanh(z), 3)
    norm = hermite._project(lambda z: size * jnp.tanh(z), 3, *hermite.panel_rule(200, 12.0))[1]
    assert abs(norm / math.sqrt(hermite.second_moment(lambda z: size * jnp.tanh(z))) - 1) < 1e-13
    np.testing.assert_allclose(found / size, hermite.coefficients(jnp.tanh, 3), rtol=0, atol=1e-14)
