"""Dual activations against brute-force quadrature, and where they are hard: a = b, q = 0, large q, no closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles_gaussian import bivariate_expectation
from unlazy.theory.activations import dual_errors, duals
from unlazy.theory.activations.functions import ACTIVATIONS, ActivationFunction, activation

COVARIANCES = [(0.3, 1.2, 0.7), (-0.5, 0.6, 1.5), (0.69, 0.7, 0.72)]
EVERY = [activation(name) for name in ACTIVATIONS] + [
    activation("leaky_relu", -0.3),
    activation("sin", 2.0),
    activation("monomial", 5),
    activation("hermite", 4),
]
NAMES = [f"{a.name}-{a.parameter}" for a in EVERY]
HEAVY = ("truncated_relu", "tanh", "sigmoid", "softplus", "gelu")
"""Their formulas compile for seconds."""
MOST = [pytest.param(a, id=n, marks=pytest.mark.slow if a.name in HEAVY else []) for a, n in zip(EVERY, NAMES)]


def _numpy(phi: ActivationFunction, derivative: bool):
    function = jax.jit((lambda x: jax.jvp(phi, (x,), (jnp.ones_like(x),))[1]) if derivative else phi)

    def of(x):
        padded = np.zeros(1 << max(12, (np.size(x) - 1).bit_length()))  # few shapes: every one is compiled
        padded[: np.size(x)] = np.ravel(x)
        return np.asarray(function(jnp.asarray(padded)))[: np.size(x)].reshape(np.shape(x))

    return of


@pytest.mark.slow_cases(
    "relu-None", "tanh-None", "truncated_relu-None", "softplus-None", "sigmoid-None", "gelu-None", "leaky_relu--0.3"
)
@pytest.mark.parametrize("phi", EVERY, ids=NAMES)
def test_against_quadrature(phi, x64):
    # the quadrature itself is off by 2e-11 where it is worst (the truncated ReLU near a = b, against mpmath)
    q12, q11, q22 = (jnp.asarray(q) for q in zip(*COVARIANCES))
    value = jax.jit(lambda *q: duals.dual(*q, phi))(q12, q11, q22)
    expected = [bivariate_expectation(_numpy(phi, False), *q, phi.kinks) for q in COVARIANCES]
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    if phi.name == "step":
        with pytest.raises(ValueError, match="no derivative"):
            duals.dual_derivative(q12, q11, q22, phi)
        return
    expected = [bivariate_expectation(_numpy(phi, True), *q, phi.kinks) for q in COVARIANCES]
    slope = jax.jit(lambda *q: duals.dual_derivative(*q, phi))(q12, q11, q22)
    np.testing.assert_allclose(slope, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow_cases("leaky_relu--0.3", "sin-1.0")
@pytest.mark.parametrize("phi", MOST)
def test_price_theorem(phi, x64):
    # d/dq12 E φφ = E φ'φ': the formula's own derivative against the other formula. Rounding only; 1e-8 leaves room for
    # the fitted arccos (1e-15) differentiated through degree 19
    if phi.name == "step":
        pytest.skip("no derivative")
    q12, q11, q22 = (jnp.asarray(q) for q in zip(*COVARIANCES))
    slope, formula = jax.jit(
        lambda q12: (
            jax.grad(lambda q: duals.dual(q, q11, q22, phi).sum())(q12),
            duals.dual_derivative(q12, q11, q22, phi),
        )
    )(q12)
    np.testing.assert_allclose(slope, formula, rtol=1e-8, atol=1e-8)


@pytest.mark.slow_cases("float32-relu-None", "float32-leaky_relu--0.3", "float32-sin-1.0")
@pytest.mark.parametrize("phi", MOST)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_values_and_gradients_are_finite_at_duplicates_and_zero(phi, dtype):
    with jax.enable_x64(dtype == "float64"):
        q = jnp.asarray([1.0, 0.0, 1e-30, 0.3], dtype)
        q12 = jnp.asarray([1.0, 0.0, 1e-30, 0.3], dtype)

        def both(q12, q11, q22):
            value = duals.dual(q12, q11, q22, phi)
            return value.sum() + (0 if phi.name == "step" else duals.dual_derivative(q12, q11, q22, phi).sum())

        value, gradient = jax.jit(jax.value_and_grad(both, argnums=(0, 1, 2)))(q12, q, q)
        assert all(np.isfinite(g).all() for g in gradient)
        assert np.isfinite(value)


@pytest.mark.slow_cases("truncated_relu")
@pytest.mark.parametrize("name", ["relu", "abs", "step", "erf", "gelu", "sin", "cos", "truncated_relu"])
def test_large_variances_do_not_overflow(name):
    q11, q22, q12 = jnp.float32(1e30), jnp.float32(2e30), jnp.float32(1e30)
    phi = activation(name)
    ask = (duals.dual,) if name == "step" else (duals.dual, duals.dual_derivative)
    found = jax.jit(lambda *q: [formula(*q, phi) for formula in ask])(q12, q11, q22)
    assert np.isfinite(found).all()


def test_saturated_erf_is_the_sign_function():
    # E erf erf → (2/π) arcsin ρ as q → ∞, with a gap of order q^{-1/2} at ρ = 1/√2: 1e-15 here
    value = duals.dual(jnp.float32(1e30), jnp.float32(1e30), jnp.float32(2e30), activation("erf"))
    assert abs(float(value) - 0.5) < 4e-7  # some units of float32 rounding


def test_small_inputs_keep_relative_accuracy(x64):
    # odd functions are linear at 0: E φφ → φ'(0)² q12, with a relative correction of order q = 1e-12
    q = jnp.asarray(1e-12)
    for name, slope in (("erf", 2 / np.sqrt(np.pi)), ("sin", 1.0), ("tanh", 1.0)):
        np.testing.assert_allclose(duals.dual(0.4 * q, q, q, activation(name)), slope**2 * 0.4 * q, rtol=1e-10)


def test_user_function_and_its_error_estimate(x64):
    smooth = ActivationFunction("swish", lambda x: x * jax.nn.sigmoid(x))
    assert float(dual_errors.dual_error(smooth, np.array([1.1]))[0]) < 1e-12
    q = COVARIANCES[0]
    expected = bivariate_expectation(_numpy(smooth, False), *q)
    np.testing.assert_allclose(duals.dual(*map(jnp.asarray, q), smooth), expected, rtol=1e-10)


KINKED = {
    "ramp": ActivationFunction("ramp", lambda x: jnp.maximum(x - 0.5, 0), kinks=(0.5,)),
    "bent": ActivationFunction("bent", lambda x: jnp.where(x > 0.5, jnp.sin(x), x * x), kinks=(0.5,)),
    "unnamed": ActivationFunction("unnamed", lambda x: jnp.maximum(x - 0.5, 0)),
}
"""Closed but for its kink; jumps and bends at a named one; a kink that was not named."""


@pytest.mark.slow_cases("bent")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "bent" else pytest.mark.slow) for n in KINKED])
def test_kinked_user_function_is_within_its_stated_error(name, x64):
    phi = KINKED[name]
    q12 = jnp.asarray([1.05, 1.2, -1.0])
    q = jnp.full_like(q12, 1.21)
    for derivative in (False, True):
        if name == "bent" and derivative:
            with pytest.raises(ValueError, match=r"jumps at 0\.5"):
                duals.dual_derivative(q12, q, q, phi)
            continue
        stated = float(dual_errors.dual_error(phi, np.array([1.1]), derivative)[0])
        assert stated > 1e-8 or duals.has_closed_form(phi, derivative)  # a kink is not hidden
        assert (name == "ramp") == duals.has_closed_form(phi, derivative)
        formula = duals.dual_derivative if derivative else duals.dual
        ours = np.asarray(jax.jit(lambda *q, f=formula: f(*q, phi))(q12, q, q))
        of = _numpy(phi, derivative)
        scale = bivariate_expectation(of, 1.21 * (1 - 1e-6), 1.21, 1.21, (0.5,))
        for value, at in zip(ours, np.asarray(q12)):
            expected = bivariate_expectation(of, at, 1.21, 1.21, (0.5,))
            assert abs(value - expected) <= stated * scale + 1e-10  # the oracle's own error


def test_expansion_is_exact_at_duplicates(x64):
    # the mass left out goes to the last power of ρ, so a = b gives E φ² to rounding however large the input
    phi = activation("tanh")
    q = jnp.asarray([0.1, 1.0, 25.0])
    x, w = np.polynomial.hermite_e.hermegauss(150)
    expected = [np.sum(w * np.tanh(np.sqrt(v) * x) ** 2) / np.sqrt(2 * np.pi) for v in (0.1, 1.0)]
    np.testing.assert_allclose(duals.dual(q, q, q, phi)[:2], expected, rtol=1e-10)


@pytest.mark.slow_cases("leaky_relu--0.3", "sin-1.0")
@pytest.mark.parametrize("phi", MOST)
def test_duplicates_are_the_limit(phi):
    # float32, q from 0.05 to 4: equal covariances in another shape and through another program than the diagonal's;
    # a few roundings, and values of order up to 1e4 for the monomial of degree 5
    q = np.linspace(0.05, 4, 7, dtype=np.float32)
    ask = (duals.dual,) if phi.name == "step" else (duals.dual, duals.dual_derivative)
    diagonals = jax.jit(lambda q: [formula(q, q, q, phi) for formula in ask])(q)
    several = jax.jit(lambda q12, a, b: [formula(q12, a, b, phi) for formula in ask])
    for matrix, diagonal in zip(several(np.minimum(q[:, None], q), q[:, None], q[None]), diagonals):
        np.testing.assert_allclose(np.diagonal(matrix), diagonal, rtol=64 * 2.0**-24, atol=64 * 2.0**-24)


@pytest.mark.slow_cases("jax.nn.hard_tanh")
@pytest.mark.parametrize("name", ["truncated_relu", "jax.nn.hard_tanh"])
def test_parallel_points_of_different_norm(name, x64):
    # a = s1 x, b = s2 x, and opposite: one dimension. The midpoint rule of 2e6 cells on [-9, 9]: (1e-5)²/24 times φφ''
    # in all, and one cell of 1e-5 around each of the kinks of φ' with its jumps
    x = (np.arange(2_000_000) + 0.5) * 9e-6 - 9
    w = np.exp(-0.5 * x * x) * 9e-6 / np.sqrt(2 * np.pi)
    low = 0 if name == "truncated_relu" else -1
    phi = activation(name)
    q12, q11, q22 = jnp.asarray([1.2, -1.2]), jnp.asarray(1.44), jnp.asarray(1.0)
    value, slope = jax.jit(lambda *q: (duals.dual(*q, phi), duals.dual_derivative(*q, phi)))(q12, q11, q22)
    for i, sign in enumerate((1, -1)):
        a, b = 1.2 * x, sign * x
        expected = np.sum(w * np.clip(a, low, 1) * np.clip(b, low, 1))
        assert abs(float(value[i]) - expected) < 1e-9
        inside = np.sum(w * ((a > low) & (a < 1) & (b > low) & (b < 1)))
        assert abs(float(slope[i]) - inside) < 2e-5


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_mean_squares_against_a_trapezoidal_rule(shape, x64):
    """E tanh(a)² and E tanh'(a)² by a fine trapezoidal rule in NumPy, which is exact to rounding for such functions."""
    q = np.array([0.09, 0.7, 3.0])
    t = np.linspace(-12, 12, 4801)
    weights = np.exp(-t * t / 2) / np.exp(-t * t / 2).sum()
    a = np.sqrt(q)[:, None] * t
    expected = np.tanh(a) ** 2 @ weights, np.cosh(a) ** -4.0 @ weights
    found = duals.diagonal_dual(activation("tanh"), jnp.asarray(q.reshape(shape)))
    for one, other in zip(found, expected):
        np.testing.assert_allclose(np.asarray(one).ravel(), other, rtol=1e-13)  # sums of hundreds of positive terms
