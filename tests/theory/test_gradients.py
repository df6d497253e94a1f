"""The series of the first gradient against sampling, quadrature and its own leading order."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations import hermite
from unlazy.theory.feature_learning import gradients

LINK = np.array([0.0, 0.0, 1 / math.sqrt(2), 0.3, 1 / math.sqrt(2)])  # degree 3 included: no parity helps


@pytest.mark.parametrize("bias", [0.0, 0.7, -1.3])
def test_relu_coefficients_are_expected_derivatives(x64, bias):
    expected = hermite.coefficients(lambda z: jnp.maximum(z + bias, 0), 8, kinks=(-bias,))
    expected = expected * np.sqrt([math.factorial(k) for k in range(9)])
    # The quadrature's own check is 1e-9 of the norm (about 1); √8! = 200 multiplies it.
    np.testing.assert_allclose(gradients.relu_coefficients(8, bias), expected, atol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
def test_series_is_the_exact_gradient_in_two_dimensions(x64, biased):
    """d = 2, f* = g(u·x) + 2g(v·x)/3: a polar integral of f*(x) x 1{w·x + b > 0}, no sampling, as the oracle."""
    angle = 0.4
    U = jnp.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    links = np.stack([LINK, 2 / 3 * LINK])
    W = jnp.array([[0.3, -1.1], [2.0, 0.5], [-0.2, 0.1]])
    a = jnp.array([1.0, -1.0, 1.0])
    b = jnp.array([0.4, -0.5, 0.02]) if biased else None
    series = gradients.population_gradient_terms(gradients.additive_tensors(links), U, W, a, b).sum(0)
    for j in range(3):
        w, bias = np.asarray(W[j]), 0.0 if b is None else float(b[j])
        t, wt = hermite.panel_rule(400, 12.0, (-bias / np.linalg.norm(w),))  # along w, split at the kink
        s, ws = hermite.gauss_hermite(20)  # across: a polynomial
        along, across = w / np.linalg.norm(w), np.array([-w[1], w[0]]) / np.linalg.norm(w)
        X = t[:, None, None] * along + s[None, :, None] * across
        z = np.asarray(X @ np.asarray(U).T)
        f = sum(hermite.basis(z[..., i], 4) @ links[i] for i in range(2))
        mask = (X @ w + bias > 0)[..., None]
        integral = ((wt[:, None] * ws)[..., None] * f[..., None] * X * mask).sum((0, 1))
        np.testing.assert_allclose(series[j], -2 * float(a[j]) * integral, atol=1e-12)


def test_cross_terms_of_a_product_target(x64):
    """f* = z1 z2 is not additive: C_2 off the diagonal. Its gradient is exact at k = 1 plus -ŵ(ŵᵀHŵ) at k = 2."""
    C = [jnp.zeros(()), jnp.zeros(2), jnp.array([[0.0, 1.0], [1.0, 0.0]])]
    U, W, a = jnp.eye(2, 5), jax.random.normal(jax.random.key(0), (4, 5)), jnp.ones(4)
    got = gradients.population_gradient_terms(C, U, W, a).sum(0)
    X = np.random.default_rng(0).standard_normal((400_000, 5))
    sample = -2 * (X[:, 0] * X[:, 1])[:, None] * X * (X @ np.asarray(W[0]) > 0)[:, None]
    error = sample.std(0) / math.sqrt(len(X))
    assert np.all(np.abs(sample.mean(0) - np.asarray(got[0])) < 4.5 * error)  # 5 comparisons at 4.5 standard errors


@pytest.mark.slow
@pytest.mark.parametrize("r", [1, 2])
def test_leading_order_of_signal_and_residual(x64, r):
    """The root mean square over neurons approaches √(r+4)/(√(2π)d) and its unit-row form as d grows."""
    d, neurons = 256, 10_000
    U = jnp.eye(r, d)
    link = np.array([0, 0, 1 / math.sqrt(2), 0, 1 / math.sqrt(2)])
    C = gradients.additive_tensors(np.stack([link] * r) / math.sqrt(r))
    W = jax.random.normal(jax.random.key(r), (neurons, d)) / math.sqrt(d)
    unit = W / jnp.linalg.norm(W, axis=1, keepdims=True)
    a = jnp.ones(neurons)
    exact = gradients.population_gradient_terms(C, U, W, a).sum(0)
    for rows, is_unit in ((W, False), (unit, True)):
        leading = gradients.hessian_term(U.T @ U / math.sqrt(r), rows, a)
        squares = np.sum((np.asarray(exact) - np.asarray(leading)) ** 2, 1)
        expected = gradients.residual_size(d, r, unit_rows=is_unit) ** 2
        # Next order: the k = 3 term adds 4·C_4² E v⁶/(36·2π) = 20/(2πd³), a share 20/((r+2)d) ≤ 7/d; cumulants of ‖w‖
        # and of v are of order 1/d with smaller constants. 20/d covers them.
        assert abs(squares.mean() - expected) < 4 * squares.std() / math.sqrt(neurons) + 20 / d * expected
    signal = np.sum(np.asarray(gradients.hessian_term(U.T @ U / math.sqrt(r), W, a)) ** 2, 1)
    assert abs(signal.mean() - gradients.signal_size(d) ** 2) < 4 * signal.std() / math.sqrt(neurons)


def test_energy_approaches_its_limits():
    assert gradients.subspace_energy(1e12, 20, 3) == pytest.approx(1, abs=1e-8)
    assert gradients.subspace_energy(1e-9, 20, 3) == pytest.approx(3 / 20, abs=1e-8)  # pure noise: chance
    noisy = gradients.subspace_energy(400.0, 20, 3, label_power=2.0)
    assert noisy == gradients.subspace_energy(200.0, 20, 3)


def test_tensors_of_additive_functions_are_diagonal(x64):
    """E ∂³ of Σ g_i(x_i): √3! ĝ_3 on the diagonal of each variable."""
    links = np.stack([LINK, 2 * LINK])
    C = gradients.additive_tensors(links)
    assert [c.shape for c in C] == [(2,) * k for k in range(5)]
    np.testing.assert_allclose(C[0], 0, atol=0)
    for k in range(1, 5):
        wanted = np.zeros((2,) * k)
        for i in range(2):
            wanted[(i,) * k] = math.sqrt(math.factorial(k)) * links[i, k]
        np.testing.assert_allclose(C[k], wanted, rtol=1e-15)


def test_leading_term_and_its_size(x64):
    """For f* = xᵀHx/2 at k = 1: -2 a E[Hx 1{w·x > 0}] = -2 a Hŵ/√(2π); unit rows, so ŵ = w."""
    rng = np.random.default_rng(3)
    H = rng.normal(size=(5, 5))
    H = (H + H.T) / np.linalg.norm(H + H.T)
    W = rng.normal(size=(20_000, 5))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    heads = jnp.asarray(np.where(np.arange(20_000) % 2, 1.0, -1.0))
    found = np.asarray(gradients.hessian_term(jnp.asarray(H), jnp.asarray(W), heads))
    X = rng.normal(size=(200_000, 5))
    sample = -2 * float(heads[0]) * (X @ H) * (X @ W[0] > 0)[:, None]
    assert np.all(np.abs(sample.mean(0) - found[0]) < 4.5 * sample.std(0) / math.sqrt(len(X)))
    squares = np.sum(found**2, 1)  # E ‖Hw‖² = ‖H‖²/d on the sphere too
    assert abs(squares.mean() - gradients.signal_size(5) ** 2) < 4 * squares.std() / math.sqrt(len(W))
