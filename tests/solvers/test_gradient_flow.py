"""Gradient flow on any loss: against closed forms, small steps, and a damped oscillator."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.radial import Gaussian
from unlazy.solvers.gradient_flow import flow
from unlazy.solvers.path import decompose

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(6, 2)), RNG.normal(size=(3, 2))
KERNEL = Gaussian(1.0)


@pytest.mark.slow
def test_squared_error_is_the_closed_form(x64):
    """The solver keeps 1e-8 a step, and errors do not grow under a contracting flow."""
    y, f0 = RNG.normal(size=6), RNG.normal(size=6)
    times = [0.5, 2.0, 5.0]
    ours, exact = flow(KERNEL, X, y, times, f0=f0), decompose(KERNEL, X).flow(y, times, f0=f0)
    np.testing.assert_allclose(ours.fitted, exact.fitted, atol=1e-6)
    np.testing.assert_allclose(ours.predict(Z, f0=np.zeros(3)), exact.predict(Z, f0=np.zeros(3)), atol=1e-6)
    assert ours.evidence.converged


def test_cross_entropy_is_the_limit_of_small_steps(x64):
    """Euler's method with step h is off by about h·t²·|f''|/2: h = 1e-3 to time 1, curvatures under 2."""
    Y = np.eye(2)[RNG.integers(0, 2, 6)]
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / 2)
    f = np.zeros((6, 2))
    for _ in range(1000):
        p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
        f = f - 1e-3 * K @ (p - Y)
    np.testing.assert_allclose(flow(KERNEL, X, Y, [1.0], "cross_entropy").fitted[0], f, atol=2e-3)


@pytest.mark.slow
def test_friction_is_a_damped_oscillator_in_every_eigendirection(x64):
    """v'' = -γ v' - λ v from v = y, v' = 0, v the residual: v = y e^{-γt/2}(cos ωt + γ/2ω sin ωt), ω² = λ - γ²/4."""
    y, gamma, t = RNG.normal(size=6), 0.3, 2.0
    values, U = np.linalg.eigh(np.asarray(KERNEL.gram(X)))
    omega = np.sqrt((values - gamma**2 / 4).astype(complex))
    left = np.exp(-gamma * t / 2) * (np.cos(omega * t) + gamma / (2 * omega) * np.sin(omega * t))
    exact = y - U @ (left.real * (U.T @ y))
    np.testing.assert_allclose(flow(KERNEL, X, y, [t], friction=gamma).fitted[0], exact, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"times": [2.0, 1.0]}, {"times": [1.0], "friction": -1.0}, {"times": [jnp.inf]}])
def test_errors(wrong):
    with pytest.raises(ValueError, match=r"increasing|zero or more|finite"):
        flow(KERNEL, X, np.zeros(6), **wrong)
