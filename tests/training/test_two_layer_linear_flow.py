"""The flow of two linear layers through its modes: against the same flow of whole matrices."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from unlazy.theory.spectra import scaling_laws as sl
from unlazy.training.descent.two_layer_linear_flow import flow

RNG = np.random.default_rng(0)
N, M = 4, 7
TAU = np.geomspace(1e-3, 300, 1200)


def on_matrices(A0, rates, target, richness, times):
    """Risk along w' = γ A g, A' = γ w gᵀ A₀ᵀA₀/N, by an ODE solver to 1e-10."""
    P = A0.T @ A0 / N

    def parts(state):
        w, A = state[:N], state[N:].reshape(N, M)
        return w, A, target - A.T @ w / (richness * N)

    def move(_, state):
        w, A, v = parts(state)
        g = rates * v
        return np.concatenate([richness * A @ g, richness * np.outer(w, P @ g).ravel()])

    start = np.concatenate([np.zeros(N), A0.ravel()])
    states = solve_ivp(move, (0, times[-1]), start, "DOP853", times, rtol=1e-10, atol=1e-12).y.T
    return np.array([np.sum(rates * parts(state)[2] ** 2) for state in states])


@pytest.mark.parametrize("richness", [pytest.param(0.3, marks=pytest.mark.slow), 3.0])
def test_modes_move_as_the_matrices_do(x64, richness):
    rates, target = (np.asarray(v) for v in sl.power_law(1.5, 0.5, M))
    A0 = RNG.normal(size=(N, M))
    modes = sl.finite_width_modes(jnp.asarray(A0), jnp.asarray(rates), jnp.asarray(target))
    path, coarse = flow(modes, richness, TAU), flow(modes, richness, TAU[1::2])
    at = np.array([399, 599, 799, 1199])
    exact = on_matrices(A0, rates, target, richness, np.asarray(path.time)[at])
    found, twice = np.asarray(path.risk)[at], np.asarray(coarse.risk)[(at - 1) // 2]
    # of second order: what twice the steps change is three times the error that is left
    np.testing.assert_allclose(found, exact, rtol=0, atol=float(np.abs(found - twice).max()) + 1e-9)
    assert np.abs(found - twice).max() < 1e-3
    assert float(path.risk[-1]) < float(path.risk[0]) and float(path.gain[-1]) > 0


@pytest.mark.slow
def test_lazy_is_the_closed_form(x64):
    modes = sl.infinite_width_modes(*sl.power_law(2.0, 0.5, 64))
    path, coarse = flow(modes, 0.0, TAU), flow(modes, 0.0, TAU[1::2])
    exact = np.asarray(sl.lazy_risk(modes, TAU))[1::2]
    np.testing.assert_allclose(path.time, TAU, rtol=1e-12)
    error = np.abs(np.asarray(path.risk)[1::2] - np.asarray(coarse.risk)).max()
    np.testing.assert_allclose(np.asarray(path.risk)[1::2], exact, rtol=0, atol=error)
    assert error < 1e-4
