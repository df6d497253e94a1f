"""Derivatives through decompositions and processes where eigenvalues repeat: against central differences of NumPy.

A circle of equal steps and a square grid have eigenvalues in pairs; autodiff through eigenvectors fails there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian
from unlazy.solvers.gaussian_process import posterior as gp
from unlazy.solvers.path import decompose
from unlazy.theory.infinite_width.architecture import MLP

N, M = 16, 3
ANGLES = 2 * np.pi * np.arange(N) / N
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
GRID = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), -1).reshape(-1, 2)
RNG = np.random.default_rng(0)
Y, Z = RNG.normal(size=N), RNG.normal(size=(M, 2))
AT = {"bandwidth": 0.8, "amount": 0.3, "shift": 0.0}
"""No shift: a point that leaves the circle or the grid would take the pairs apart."""
STEP = 1e-5


def gram(A, B, bandwidth):
    return np.exp(-np.sum((A[:, None] - B[None]) ** 2, -1) / (2 * bandwidth**2))


def squared_sine(values):
    """One number that weighs all entries differently."""
    values = values.ravel()
    return (np if isinstance(values, np.ndarray) else jnp).sum(values * np.sin(np.arange(values.size) + 1.0))


def ours(name):
    """The number as a function of (bandwidth, amount, shift); the shift moves one point, so X has derivatives too."""

    def value(bandwidth, amount, shift, X=CIRCLE, y=Y):
        kernel, points, y = Gaussian(bandwidth), jnp.asarray(X).at[0, 0].add(shift), jnp.asarray(y)
        spectrum, z = decompose(kernel, points), jnp.asarray(Z)
        if name == "posterior":
            process = gp.posterior(kernel, points, y, z, amount)
            return squared_sine(process.mean) + squared_sine(process.covariance)
        if name == "features":
            process = gp.trained_random_features(kernel, points, y, z, amount)
            return squared_sine(process.mean) + squared_sine(process.covariance)
        if name == "ensemble":
            process = gp.ensemble(2.0 * kernel, kernel, points, y, z, amount)
            return squared_sine(process.mean) + squared_sine(process.covariance)
        if name == "fitted":
            return squared_sine(spectrum.flow(y, amount).fitted) + squared_sine(spectrum.ridge_path(y, amount).fitted)
        if name == "descent":
            path = spectrum.descent(y, 0.5 * amount, [3.0, 50.0])
            return squared_sine(path.coefficients) + squared_sine(path.fitted)
        if name == "leave one out":
            return squared_sine(spectrum.leave_one_out(y, amount)) + spectrum.gcv(y, amount)
        return jnp.sum(jnp.log(spectrum.eigenvalues + amount))

    return value


def oracle(name, X):
    """The same in NumPy without an eigendecomposition."""

    def value(bandwidth, amount, shift):
        points = X.copy()
        points[0, 0] += shift
        K, K_zx, K_zz = (gram(*pair, bandwidth) for pair in ((points, points), (Z, points), (Z, Z)))
        P = np.linalg.inv(K + amount * np.eye(N))
        left = scipy.linalg.expm(-amount * K)
        c = np.linalg.solve(K + 0.0, np.eye(N) - left)
        if name == "posterior":
            return squared_sine(K_zx @ P @ Y) + squared_sine(K_zz - K_zx @ P @ K_zx.T)
        if name == "features":
            covered = np.linalg.solve(K, np.eye(N) - left @ left)
            return squared_sine(K_zx @ c @ Y) + squared_sine(K_zz - K_zx @ covered @ K_zx.T)
        if name == "ensemble":
            A = K_zx @ c
            S = 2 * (K_zz - A @ K_zx.T - K_zx @ A.T + A @ K @ A.T)
            return squared_sine(A @ Y) + squared_sine(S)
        if name == "fitted":
            return squared_sine(Y - left @ Y) + squared_sine(K @ P @ Y)
        if name == "descent":
            alpha, found = np.zeros(N), []
            for step in range(50):
                alpha = alpha + 0.5 * amount * (Y - K @ alpha)
                if step in (2, 49):
                    found.append(alpha)
            return squared_sine(np.stack(found)) + squared_sine(np.stack([K @ a for a in found]))
        if name == "leave one out":
            H = np.eye(N) - K @ P
            score = np.mean((H @ Y) ** 2) / np.mean(np.diag(H)) ** 2
            return squared_sine(P @ Y / np.diag(P)) + score
        return np.linalg.slogdet(K + amount * np.eye(N))[1]

    return value


NAMES = ["posterior", "fitted", "leave one out"]
SLOW = ["features", "ensemble", "descent", "eigenvalues"]


@pytest.mark.parametrize("name", NAMES + [pytest.param(name, marks=pytest.mark.slow) for name in SLOW])
def test_derivatives_are_those_of_the_function_of_K(name, x64):
    value = jax.jit(jax.value_and_grad(ours(name), argnums=(0, 1, 2)))
    for X in (CIRCLE, GRID):
        check(name, X, value(*AT.values(), X))


def check(name, X, found):
    value, gradient = found
    f = oracle(name, X)
    # K⁻¹ of the oracle meets (I - e^{-Kt}), as small as K there: 1e-16 times the condition of the circle's K, 2e5.
    # Differences then carry 1e-11/h of it and h² of the third derivative.
    np.testing.assert_allclose(value, f(*AT.values()), rtol=1e-6)
    for k, at in enumerate(np.eye(3) * STEP):
        up, down = (f(*(np.array(list(AT.values())) + sign * at)) for sign in (1, -1))
        expected = (up - down) / (2 * STEP)
        np.testing.assert_allclose(gradient[k], expected, rtol=1e-5, atol=1e-5 * np.max(np.abs(gradient)), err_msg=name)


def network_gram(A, B, sigma_b, same):
    """NTK of one hidden ReLU layer, σ_w² = 2, in NumPy; the angle of a point with itself is 0."""
    q, p, r = (2 * s / 2 + sigma_b**2 for s in (A @ B.T, np.sum(A * A, 1)[:, None], np.sum(B * B, 1)))
    angle = np.arccos(np.clip(q / np.sqrt(p * r), -1, 1))
    if same:
        np.fill_diagonal(angle, 0.0)
    value = np.sqrt(p * r) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi + sigma_b**2
    return value + q * (np.pi - angle) / np.pi


@pytest.mark.nightly_cases("circle")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["circle", "grid"])
def test_a_network_trained_by_gradient_flow(name, x64):
    """d/dσ_b of the predictions of an NTK flow; differences as above, and arccos loses half of its digits nowhere but
    on the diagonal."""
    X, time = {"circle": CIRCLE, "grid": GRID - 1.5}[name], 0.3

    def found(sigma_b):
        spectrum = decompose(NTK(MLP(1, "relu", np.sqrt(2), sigma_b)), jnp.asarray(X))
        return squared_sine(spectrum.flow(jnp.asarray(Y), time).predict(jnp.asarray(Z)))

    def exact(sigma_b):
        K = network_gram(X, X, sigma_b, True)
        alpha = np.linalg.solve(K, Y - scipy.linalg.expm(-time * K) @ Y)
        return squared_sine(network_gram(Z, X, sigma_b, False) @ alpha)

    value, slope = jax.jit(jax.value_and_grad(found))(0.5)
    np.testing.assert_allclose(value, exact(0.5), rtol=1e-6)
    np.testing.assert_allclose(slope, (exact(0.5 + STEP) - exact(0.5 - STEP)) / (2 * STEP), rtol=1e-5)


@pytest.mark.slow
def test_forward_mode_vmap_labels_and_errors(x64):
    """jvp equals grad; a batch of bandwidths gives each its own; functions without derivatives raise."""
    value = ours("fitted")
    at = tuple(AT.values())

    @jax.jit
    def everything(bandwidths):
        gradient = jax.grad(value, argnums=(0, 1, 2))(*at)
        forward = [jax.jvp(value, at, tuple(1.0 * (j == k) for j in range(3)))[1] for k in range(3)]
        batch = jax.vmap(jax.grad(value), in_axes=(0, None, None))(bandwidths, *at[1:])
        mixed = jax.jvp(lambda y: jax.grad(value)(*at, CIRCLE, y), (Y,), (Y,))[1]
        return gradient, forward, batch, mixed

    gradient, forward, batch, mixed = everything(jnp.array([0.8, 0.9]))
    np.testing.assert_allclose(forward, gradient, rtol=1e-9)  # the same sums in another order, condition 1e5
    np.testing.assert_allclose(batch[0], gradient[0], rtol=1e-9)
    np.testing.assert_allclose(mixed, gradient[0], rtol=1e-9)  # the value is linear in y

    def top(bandwidth):
        return decompose(Gaussian(bandwidth), jnp.asarray(CIRCLE)).eigenvectors[0, -1]

    with pytest.raises(ValueError, match="eigenvectors are not differentiable"):
        jax.make_jaxpr(jax.grad(top))(0.5)
    with pytest.raises(ValueError, match="second derivatives"):
        jax.make_jaxpr(jax.grad(jax.grad(value)))(*at)


def test_evidence_has_second_derivatives_and_forward_mode(x64):
    y = jnp.asarray(Y)

    def ours(b):
        return gp.log_marginal_likelihood(Gaussian(b), jnp.asarray(CIRCLE), y, 0.2)

    def evidence(b):
        K = gram(CIRCLE, CIRCLE, b) + 0.2 * np.eye(N)
        return -0.5 * Y @ np.linalg.solve(K, Y) - 0.5 * np.linalg.slogdet(K)[1] - N / 2 * np.log(2 * np.pi)

    h = 1e-4  # second differences: h² f⁗ and 1e-15/h² = 1e-7
    expected = (evidence(0.5 + h) - 2 * evidence(0.5) + evidence(0.5 - h)) / h**2
    first, second = jax.jit(lambda b: jax.jvp(jax.grad(ours), (b,), (1.0,)))(0.5)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    np.testing.assert_allclose(first, (evidence(0.5 + h) - evidence(0.5 - h)) / (2 * h), rtol=1e-5)


def test_draws_have_derivatives(x64):
    """Pathwise: A = C^{1/2} solves AȦ + ȦA = Ċ (Sylvester), which needs no eigenvectors."""
    Zs, key = jnp.asarray(CIRCLE), jax.random.key(0)
    found = jax.jit(jax.jacfwd(lambda b: gp.prior(Gaussian(b), Zs).sample(1, key=key)[0]))(0.5)
    h = 1e-6
    C, change = gram(CIRCLE, CIRCLE, 0.5), (gram(CIRCLE, CIRCLE, 0.5 + h) - gram(CIRCLE, CIRCLE, 0.5 - h)) / (2 * h)
    A = scipy.linalg.sqrtm(C).real
    noise = np.asarray(jax.random.normal(key, (1, N, 1), jnp.float64))[0, :, 0]
    expected = scipy.linalg.solve_sylvester(A, A, change) @ noise
    # the smallest √λ is 1e-3: differences of 1e-10 grow to 1e-7
    np.testing.assert_allclose(found, expected, atol=1e-6)
