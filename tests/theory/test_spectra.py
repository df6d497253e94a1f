"""theory.spectra.eigenvalues against Bessel functions, Mehler's formula, traces, Gauss-Jacobi, and measured kernel
ridge risk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gamma, ive, roots_jacobi

from unlazy.theory.spectra import eigenvalues


@pytest.mark.parametrize("d", [2, 3, 8])
def test_gegenbauer_polynomials_are_orthogonal_with_the_right_count(d, x64):
    t, projection = eigenvalues.angle_rule(d, 6, 200)
    products = projection @ eigenvalues.gegenbauer(t, d, 6).T
    np.testing.assert_allclose(products, np.diag(1 / eigenvalues.multiplicities(d, 6)), atol=1e-13)
    if d == 3:
        np.testing.assert_array_equal(eigenvalues.multiplicities(3, 6), 2 * np.arange(7) + 1)
    if d == 2:
        np.testing.assert_allclose(eigenvalues.gegenbauer(t, 2, 6)[5], np.cos(5 * np.arccos(t)), atol=1e-12)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_gaussian_kernel_on_the_sphere_has_bessel_eigenvalues(d, x64):
    """e^{-(1-t)/h²}: λ_ℓ = Γ(d/2)(2/x)^ν e^{-x} I_{ℓ+ν}(x), x = 1/h², ν = d/2 - 1."""
    x, nu, degrees = 2.0, d / 2 - 1, 12
    got = eigenvalues.sphere_eigenvalues(lambda t: jnp.exp(-x * (1 - t)), d, degrees)
    expected = gamma(d / 2) * (2 / x) ** nu * ive(np.arange(degrees + 1) + nu, x)
    # A smooth kernel: only rounding is left. A sum of `nodes` terms that add up to at most 1 in absolute value, in any
    # order, and the recurrence of P_ℓ, whose roundings grow as ℓ².
    nodes = 2 * degrees + d + 200
    np.testing.assert_allclose(got, expected, atol=(nodes + degrees**2) * 2.0**-53)


@pytest.mark.slow
def test_rough_kernels_converge_geometrically_in_the_angle(x64):
    """e^{-|x-z|} at d = 5: 200 nodes in θ agree with 1,000 to rounding; Gauss-Jacobi in t needs 20,000 for 1e-9."""

    def laplace(t):
        return jnp.exp(-jnp.sqrt(jnp.maximum(2 - 2 * t, 0)))

    few = eigenvalues.sphere_eigenvalues(laplace, 5, 20, nodes=200)
    rounding = (200 + 1000 + 2 * 20**2) * 2.0**-53  # two sums in any order, two recurrences: 2.2e-13
    np.testing.assert_allclose(few, eigenvalues.sphere_eigenvalues(laplace, 5, 20, nodes=1000), atol=rounding)
    nodes, weights = roots_jacobi(400, 1.0, 1.0)  # (d-3)/2 = 1
    direct = eigenvalues.gegenbauer(nodes, 5, 20) @ (weights / weights.sum() * np.asarray(laplace(nodes)))
    np.testing.assert_allclose(few, direct, atol=1e-7)
    counts = eigenvalues.multiplicities(5, 200)
    values = eigenvalues.sphere_eigenvalues(laplace, 5, 200)
    # λ_ℓ ~ ℓ^-5 and counts ~ ℓ³/3, so the tail beyond 200 is about C/200; degrees 100 to 200 carry as much
    tail = float(1 - counts @ np.asarray(values))
    assert 0 < tail < 1.5 * float(counts[100:] @ np.asarray(values)[100:])
    errors = [abs(float(eigenvalues.decay_exponent(values, 5, a, 2 * a)) + 5) for a in (12, 25, 50)]
    # → -d as ℓ^-2: a quarter at each doubling
    assert errors[2] < 0.35 * errors[1] and errors[1] < 0.35 * errors[0] < 0.05


def test_gaussian_measure_gives_mehlers_hermite_eigenvalues(x64):
    h, d = 1.5, 3

    def entry(xz, xx, zz):
        return jnp.exp(-(xx + zz - 2 * xz) / (2 * h**2))

    got = eigenvalues.gaussian_eigenvalues(entry, d, 3)
    line = eigenvalues.mehler_eigenvalues(h, 8)
    ratio = line[1] / line[0]
    for ell in range(4):  # total degree ℓ + 2j
        np.testing.assert_allclose(got[ell, :3], line[0] ** d * ratio ** (ell + 2 * np.arange(3)), rtol=1e-10)
    np.testing.assert_allclose(line.sum(), 1, atol=line[-1] / (1 - ratio))  # trace = k(x,x) = 1
    linear = eigenvalues.gaussian_eigenvalues(lambda xz, xx, zz: xz + 0 * (xx + zz), d, 2)
    expected = np.zeros((3, 2))
    expected[1, 0] = 1  # ⟨x,z⟩: the d coordinates, each with variance 1
    np.testing.assert_allclose(linear[:, :2], expected, atol=1e-12)


def test_kappa_solves_its_equation_and_has_the_right_limits(x64):
    values, counts = jnp.array([0.5, 0.1, 0.01]), jnp.array([1.0, 4.0, 20.0])
    n = jnp.array([3.0, 10.0, 24.0])
    kappa = eigenvalues.effective_regularization(values, counts, n, 1e-3, 1e-2)
    left = (counts * values / (values + kappa[:, None])).sum(1) + (1e-3 + 1e-2) / kappa
    np.testing.assert_allclose(left, n, rtol=1e-12)
    assert (
        float(eigenvalues.effective_regularization(values, counts, jnp.array(30.0))) == 0
    )  # rank 25 < n: interpolated
    power = jnp.array([0.2, 0.3, 0.5])
    assert float(eigenvalues.learning_curve(values, counts, power, jnp.array(30.0))) < 1e-12
    # noise on a rank-25 least-squares fit: excess risk noise · 25/(30 - 25)
    noisy = eigenvalues.learning_curve(values, counts, power, jnp.array(30.0), noise_variance=0.1)
    np.testing.assert_allclose(noisy, 0.1 * 25 / 5, rtol=1e-10)


@pytest.mark.slow
def test_predicted_learning_curve_against_measured_kernel_ridge_risk(x64):
    """Laplace kernel on S⁴, target of degrees 1 and 2, noise 0.3, 200 data sets: the ratio is 1 up to 4 standard
    errors and the theory's own error, of order 1/n times the effective dimension: 5% allowed."""
    d, n, m, seeds, ridge, noise = 5, 64, 400, 200, 0.05, 0.3

    def kernel(t):
        return jnp.exp(-jnp.sqrt(jnp.maximum(2 - 2 * t, 0)))

    def target(X):
        return jnp.sqrt(d / 2) * X[:, 0] + jnp.sqrt(14 / 2) * (d * X[:, 1] ** 2 - 1) / (d - 1)

    @jax.jit
    @jax.vmap
    def risk(key):
        a, b = jax.random.split(key)
        X = jax.random.normal(a, (n + m, d))
        X = X / jnp.linalg.norm(X, axis=1, keepdims=True)
        y = target(X[:n]) + noise * jax.random.normal(b, (n,))
        f = kernel(X[n:] @ X[:n].T) @ jnp.linalg.solve(kernel(X[:n] @ X[:n].T) + ridge * jnp.eye(n), y)
        return jnp.mean(jnp.square(f - target(X[n:])))

    measured = np.asarray(risk(jax.random.split(jax.random.key(0), seeds)))
    degrees = 60
    values = eigenvalues.sphere_eigenvalues(kernel, d, degrees)
    counts = jnp.asarray(eigenvalues.multiplicities(d, degrees))
    power = jnp.zeros(degrees + 1).at[jnp.array([1, 2])].set(0.5)
    predicted = eigenvalues.learning_curve(
        values, counts, power, jnp.array(float(n)), ridge, 1 - (counts * values).sum(), noise**2
    )
    error = measured.std(ddof=1) / np.sqrt(seeds)
    assert abs(measured.mean() - predicted) < 4 * error + 0.05 * predicted


def test_gegenbauer_polynomials_of_few_degrees():
    t = np.linspace(-1, 1, 5)
    for degrees in (0, 1, 2):
        rows = eigenvalues.gegenbauer(t, 3, degrees)
        np.testing.assert_allclose(rows, [np.ones(5), t, 1.5 * t**2 - 0.5][: degrees + 1], atol=1e-15)


def test_nodes_grow_with_the_degree(x64):
    """P_400 has one eigenvalue, 1/801 by the norm of Legendre polynomials: the rule must resolve its square."""

    def profile(t):
        return jnp.asarray(eigenvalues.gegenbauer(np.asarray(t), 3, 400)[-1])

    values = eigenvalues.sphere_eigenvalues(profile, 3, 400)
    np.testing.assert_allclose(values, np.eye(401)[400] / 801, atol=1e-11)


def test_kappa_just_below_the_rank(x64):
    """Rank 25 and n = 24.5, no ridge: κ is small but not zero, as the sum at κ = 0 exceeds n by a half."""
    values, counts = jnp.array([0.5, 0.1, 0.01]), jnp.array([1.0, 4.0, 20.0])
    kappa = float(eigenvalues.effective_regularization(values, counts, jnp.array(24.5)))
    assert kappa > 0
    np.testing.assert_allclose(np.sum(np.asarray(counts * values / (values + kappa))), 24.5, rtol=1e-12)


def test_exponents_of_exact_power_laws(x64):
    """λ_ℓ ∝ (ℓ + d/2 - 1)^{-p} has the slope -p, and a line its own."""
    for d, p in ((3, 2.5), (7, 7.0)):
        values = 3.0 * (np.arange(30) + d / 2 - 1) ** -p
        np.testing.assert_allclose(eigenvalues.decay_exponent(jnp.asarray(values), d, 4, 20), -p, rtol=1e-12)
    x = np.array([0.0, 1.0, 5.0])
    assert eigenvalues.slope(x, 2 - 3 * x) == pytest.approx(-3, rel=1e-14)
