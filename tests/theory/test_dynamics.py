"""theory.dynamics.spectral_filters against a matrix exponential, an ODE solver, gradient descent itself, refitting, and
sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from scipy.integrate import solve_ivp

from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.numerics import matrix_functions

N, M, P, C = 12, 7, 40, 2


@pytest.fixture(scope="module")
def problem():
    """Random features Φ and the kernel they make, in NumPy float64; condition number near 30."""
    rng = np.random.default_rng(0)
    Phi_x, Phi_z = rng.standard_normal((N, P)) / np.sqrt(P), rng.standard_normal((M, P)) / np.sqrt(P)
    K, K_zx, K_zz = Phi_x @ Phi_x.T, Phi_z @ Phi_x.T, Phi_z @ Phi_z.T
    values, vectors = np.linalg.eigh(K)
    y, f0_x, f0_z = rng.standard_normal((N, C)), rng.standard_normal((N, C)), rng.standard_normal((M, C))
    return dict(locals())


def as_jax(problem, *names):
    return [jnp.asarray(problem[name]) for name in names]


def test_flow_equals_the_matrix_exponential_and_an_ode_solve(problem, x64):
    values, vectors, y, f0_x, f0_z, K_zx = as_jax(problem, "values", "vectors", "y", "f0_x", "f0_z", "K_zx")
    times = jnp.array([0.0, 0.3, 2.0, 50.0])
    alpha = spectral_filters.coefficients(vectors, spectral_filters.flow_coefficient(values, times), y - f0_x)
    got = f0_z + K_zx @ alpha

    K, inverse = problem["K"], np.linalg.inv(problem["K"])
    for t, ours in zip(np.asarray(times), np.asarray(got)):
        left = scipy.linalg.expm(-K * t)
        expected = problem["f0_z"] + problem["K_zx"] @ inverse @ (np.eye(N) - left) @ (problem["y"] - problem["f0_x"])
        # rounding through K⁻¹: condition 1e3 at most, n = 12, unit 1e-16
        np.testing.assert_allclose(ours, expected, atol=1e-12)

    def velocity(_, f):
        error = f[: N * C].reshape(N, C) - problem["y"]
        return -np.concatenate([(K @ error).ravel(), (problem["K_zx"] @ error).ravel()])

    start = np.concatenate([problem["f0_x"].ravel(), problem["f0_z"].ravel()])
    solved = solve_ivp(velocity, (0, 2.0), start, method="DOP853", rtol=1e-11, atol=1e-12)
    # the solver's own tolerance 1e-11 per step, a few dozen steps
    np.testing.assert_allclose(got[2], solved.y[N * C :, -1].reshape(M, C), atol=1e-9)


def test_descent_equals_the_loop_on_the_features(problem, x64):
    values, vectors, y, f0_x, f0_z, K_zx = as_jax(problem, "values", "vectors", "y", "f0_x", "f0_z", "K_zx")
    rate, Phi_x, Phi_z = 1.7 / problem["values"][-1], problem["Phi_x"], problem["Phi_z"]  # above 1/λ_max: signs flip
    theta = np.zeros((P, C))
    found = {}
    for step in range(401):
        found[step] = problem["f0_z"] + Phi_z @ theta
        theta = theta - rate * Phi_x.T @ (problem["f0_x"] + Phi_x @ theta - problem["y"])
    steps = jnp.array([0, 1, 2, 7, 400])
    alpha = spectral_filters.coefficients(vectors, spectral_filters.descent_coefficient(values, rate, steps), y - f0_x)
    # each of 400 steps rounds at 40-term dot products: 400·40·1e-16 = 2e-12 at worst
    np.testing.assert_allclose(f0_z + K_zx @ alpha, np.stack([found[int(s)] for s in steps]), atol=2e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_filters_are_accurate_at_every_eigenvalue(dtype):
    """Against mpmath at λ from 0 to λ_max; relative error a few units, where 1 - (1 - ηλ)^s would lose all."""
    import mpmath

    lam = np.array([0, 1e-30, 1e-12, 1e-6, 0.3, 0.999, 1.0, 1.7], dtype)
    t = 1000.0
    with jax.enable_x64(dtype == np.float64):
        values = jnp.asarray(lam)
        got = {
            "flow": spectral_filters.flow_coefficient(values, t),
            "descent": spectral_filters.descent_coefficient(values, 1.0, t),
            "flow left": spectral_filters.flow_residual(values, t),
            "descent left": spectral_filters.descent_residual(values, 1.0, t),
        }  # fmt: skip
    with mpmath.workdps(60):
        exact = [mpmath.mpf(float(x)) for x in lam]
        left = {"flow": [mpmath.exp(-x * t) for x in exact], "descent": [(1 - x) ** int(t) for x in exact]}
        coefficient = {k: [(1 - r) / x if x else t for r, x in zip(v, exact)] for k, v in left.items()}
    for name in ("flow", "descent"):
        unit = float(np.finfo(dtype).eps)
        np.testing.assert_allclose(got[name], np.array(coefficient[name], float), rtol=8 * unit)
        # e^{-λt} carries the rounding of its exponent, at most λt = 300 units before it underflows to noise;
        # the logarithm inside (1-λ)^s the same
        expected = np.array(left[name], float)
        np.testing.assert_allclose(got[f"{name} left"], expected, rtol=700 * unit, atol=1e-30)


def test_limits_of_time_and_ridge(x64):
    values = jnp.array([0.0, 1e-3, 2.0])
    np.testing.assert_array_equal(spectral_filters.flow_residual(values, jnp.inf), [1, 0, 0])
    np.testing.assert_array_equal(spectral_filters.flow_coefficient(values, jnp.inf), [0, 1e3, 0.5])
    np.testing.assert_array_equal(spectral_filters.descent_coefficient(values, 0.5, jnp.inf), [0, 1e3, 0.5])
    np.testing.assert_array_equal(spectral_filters.descent_residual(values, 0.5, 0), [1, 1, 1])
    np.testing.assert_array_equal(spectral_filters.ridge_coefficient(values, 0.0), [0, 1e3, 0.5])
    for filter_ in (spectral_filters.flow_coefficient, spectral_filters.ridge_coefficient):
        gradient = jax.grad(lambda lam, f=filter_: f(lam, 0.7).sum())(values)
        assert np.all(np.isfinite(gradient))


def test_leave_one_out_and_gcv_equal_refitting(problem, x64):
    values, vectors, y = as_jax(problem, "values", "vectors", "y")
    ridges = jnp.array([1e-8, 0.1, 3.0])
    got = spectral_filters.leave_one_out_residual(vectors, values, y, ridges)
    score = spectral_filters.generalized_cross_validation(vectors, values, y, ridges)
    K = problem["K"]
    for k, ridge in enumerate(np.asarray(ridges)):
        for i in range(N):
            rest = np.arange(N) != i
            alpha = np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(N - 1), problem["y"][rest])
            np.testing.assert_allclose(got[k, i], problem["y"][i] - K[i, rest] @ alpha, rtol=1e-10, atol=1e-12)
        left = np.eye(N) - K @ np.linalg.inv(K + ridge * np.eye(N))
        expected = np.mean((left @ problem["y"]) ** 2) / np.mean(np.diag(left)) ** 2
        # at ridge 1e-8 the direct formula loses 8 digits by cancellation
        np.testing.assert_allclose(score[k], expected, rtol=1e-16 / ridge * 100 + 1e-11)


@pytest.mark.slow
def test_padding_changes_nothing(problem, x64):
    values, vectors, y = as_jax(problem, "values", "vectors", "y")
    size = 16
    weights = (jnp.arange(size) < N).astype(y.dtype)
    padded = jnp.full((size, size), 7.0).at[:N, :N].set(jnp.asarray(problem["K"]))
    values_p, vectors_p = jnp.linalg.eigh(spectral_filters.masked_gram(padded, weights))
    y_p = jnp.zeros((size, C)).at[:N].set(y)
    ridge = jnp.array([1e-6, 0.1])
    for function in (spectral_filters.leave_one_out_residual, lambda U, v, y, r: spectral_filters.coefficients(
        U, spectral_filters.flow_coefficient(v, r), y)):  # fmt: skip
        got = function(vectors_p, values_p, y_p, ridge)
        np.testing.assert_allclose(got[:, :N], function(vectors, values, y, ridge), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(got[:, N:], 0, atol=1e-9)
    np.testing.assert_allclose(
        spectral_filters.generalized_cross_validation(vectors_p, values_p, y_p, ridge, weights),
        spectral_filters.generalized_cross_validation(vectors, values, y, ridge),
        rtol=1e-9,
    )


def test_covariances_equal_their_definition_and_sampling(problem, x64):
    """f_t = f₀ + A(y - f₀(X)) is linear in the start: Cov = B C₀ Bᵀ with C₀ that of (f₀(Z), f₀(X))."""
    values, vectors, K_zx, K_zz, K = as_jax(problem, "values", "vectors", "K_zx", "K_zz", "K")
    rng = np.random.default_rng(1)
    root = rng.standard_normal((M + N, M + N)) / 4
    S = root @ root.T  # any NNGP-like covariance of (Z, X)
    t = jnp.array([0.0, 0.8, jnp.inf])
    c = spectral_filters.flow_coefficient(values, t)
    S_j = jnp.asarray(S)
    wide = spectral_filters.ensemble_covariance(S_j[:M, :M], S_j[:M, M:], S_j[M:, M:], K_zx, vectors, c)
    features = spectral_filters.random_features_covariance(K_zz, K_zx, vectors, values, c)
    same = spectral_filters.ensemble_covariance(K_zz, K_zx, K, K_zx, vectors, c)
    np.testing.assert_allclose(features, same, atol=1e-13)  # one kernel is the special case

    left = scipy.linalg.expm(-problem["K"] * 0.8)
    A = problem["K_zx"] @ np.linalg.inv(problem["K"]) @ (np.eye(N) - left)
    B = np.hstack([np.eye(M), -A])
    np.testing.assert_allclose(wide[1], B @ S @ B.T, atol=1e-12)
    np.testing.assert_allclose(wide[0], S[:M, :M], atol=1e-14)
    posterior = problem["K_zz"] - problem["K_zx"] @ np.linalg.solve(problem["K"], problem["K_zx"].T)
    np.testing.assert_allclose(features[2], posterior, atol=1e-12)

    draws = rng.multivariate_normal(np.zeros(M + N), S, size=20000, method="eigh") @ B.T
    sample = draws.T @ draws / len(draws)
    expected = np.asarray(wide[1])
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / len(draws))
    assert np.max(np.abs(sample - expected) / error) < 4  # 28 entries at 4 standard errors: chance 0.2%


def test_largest_step_size_is_the_edge_of_stability(problem, x64):
    values = jnp.asarray(problem["values"])
    edge = spectral_filters.largest_step_size(values)
    assert np.max(np.abs(spectral_filters.descent_residual(values, 0.999 * edge, 20000))) < 1e-8
    assert np.max(np.abs(spectral_filters.descent_residual(values, 1.001 * edge, 20000))) > 1e8


def test_null_directions_are_dropped_only_below_rounding(x64):
    values = jnp.array([1e-20, 1.0])
    floor = 1e-15
    short = spectral_filters.drop_null_directions(spectral_filters.flow_coefficient(values, 1e3), values, floor)
    np.testing.assert_allclose(short, [1e3, 1.0])
    long = spectral_filters.drop_null_directions(spectral_filters.flow_coefficient(values, 1e18), values, floor)
    np.testing.assert_array_equal(long, [0.0, 1.0])


def test_masked_rows_are_null_directions():
    K = np.arange(9.0).reshape(3, 3) + 1
    found = spectral_filters.masked_gram(jnp.asarray(K), jnp.asarray([1.0, 0.0, 2.0]))
    np.testing.assert_array_equal(found, K * np.outer([1, 0, 1], [1, 0, 1]))


def test_floor_of_eigenvalues_is_proportional_to_the_largest():
    for scale in (1e-6, 1.0, 1e6):
        values = np.array([-0.2, 0.5, 4.0]) * scale
        assert spectral_filters.rounding_floor(values) == pytest.approx(3 * 2.0**-53 * 4 * scale, rel=1e-12)
        assert spectral_filters.rounding_floor(-values) == spectral_filters.rounding_floor(values)


def test_descent_has_derivatives_in_the_eigenvalues_and_the_number_of_steps(problem, x64):
    """Of (1 - ηλ)^s and (1 - (1 - ηλ)^s)/λ; beyond 1/η the sign of the power alternates, its size is differentiated."""
    lam, eta = jnp.asarray([0.02, 0.7, 1.4]), 0.9

    def residual(lam, s):
        return spectral_filters.descent_residual(lam, eta, s)

    def coefficient(lam, s):
        return spectral_filters.descent_coefficient(lam, eta, s)

    x = eta * np.asarray(lam)
    power, size = (1 - x) ** 7, np.log(np.abs(1 - x))
    wanted = {residual: (-7 * eta * (1 - x) ** 6, power * size)}
    wanted[coefficient] = ((7 * x * (1 - x) ** 6 - (1 - power)) / np.asarray(lam) ** 2, -power * size / np.asarray(lam))
    for function, (by_value, by_step) in wanted.items():
        along = jax.jvp(lambda v, f=function: f(v, 7.0), (lam,), (jnp.ones(3),))[1]
        np.testing.assert_allclose(np.ravel(along), by_value, rtol=1e-11)  # 1 - power loses two digits at 0.02
        along = jax.jvp(lambda s, f=function: f(lam, s), (jnp.asarray(7.0),), (jnp.ones(()),))[1]
        np.testing.assert_allclose(np.ravel(along), by_step, rtol=1e-12)


def test_null_directions_are_those_that_the_floor_decides():
    """λ ≤ floor and c ≥ 1/floor: λ = 0.7 floor is dropped without ridge, and kept with half a floor of it."""
    floor, lam = 1e-3, jnp.array([0.0, 7e-4, 1.1e-3, 1.0])
    for ridge, dropped in (
        (1e-9, [True, True, False, False]),
        (5e-4, [True, False, False, False]),
        (2e-3, [False] * 4),
    ):
        c = 1 / (lam + ridge)
        found = spectral_filters.drop_null_directions(c, lam, floor)
        np.testing.assert_array_equal(found, np.where(dropped, 0, c))
        np.testing.assert_array_equal(matrix_functions._dropped(c, lam, floor), dropped)


def test_steps_that_solve_a_direction_at_once_have_no_derivative_in_their_number():
    """(1 - ηλ)^s at ηλ = 1 is 0 for every s > 0; beside it the derivative is (1 - ηλ)^s log|1 - ηλ|."""
    lam = jnp.array([0.3, 1.0, 1.5])
    found = jax.jvp(lambda s: spectral_filters.descent_residual(lam, 1.0, s), (jnp.asarray(4.0),), (jnp.asarray(1.0),))[
        1
    ]
    np.testing.assert_allclose(found, [0.7**4 * np.log(0.7), 0, 0.5**4 * np.log(0.5)], rtol=1e-5)
