"""Scaling laws of two linear layers: the closed forms against matrices, sampling and their own power laws."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.spectra import scaling_laws as sl

RNG = np.random.default_rng(0)


def test_the_floor_of_given_neurons_is_that_of_least_squares(x64):
    rates, target = sl.power_law(1.5, 0.7, 12)
    A = RNG.normal(size=(5, 12))
    found = sl.finite_width_modes(jnp.asarray(A), rates, target)
    root = np.sqrt(np.asarray(rates))
    best, *_ = np.linalg.lstsq((A * root).T, root * np.asarray(target), rcond=None)
    left = np.sum((root * (np.asarray(target) - A.T @ best)) ** 2)
    # a difference of numbers of size one, through an eigendecomposition of condition about 1e2: some hundred roundings
    np.testing.assert_allclose(found.floor, left, atol=1e-13)
    np.testing.assert_allclose(np.sort(found.rates), np.linalg.eigvalsh((A * np.asarray(rates)) @ A.T / 5), atol=1e-14)
    np.testing.assert_allclose(found.risk(jnp.zeros(5)), 1.0, atol=1e-13)


def test_dead_neurons_change_nothing(x64):
    """A zero row of A₀ has rate 0 and adds nothing to what is reached: the floor is that of least squares."""
    rates, target = (np.asarray(v) for v in sl.power_law(1.5, 0.7, 12))
    A, root = np.zeros((4, 12)), np.sqrt(rates)
    A[[0, 3]] = np.random.default_rng(1).normal(size=(2, 12))
    found = sl.finite_width_modes(jnp.asarray(A), jnp.asarray(rates), jnp.asarray(target))
    best, *_ = np.linalg.lstsq((A * root).T, root * target, rcond=None)
    assert np.sum(np.abs(found.rates) < 1e-15) == 2
    np.testing.assert_allclose(found.floor, np.sum((root * (target - A.T @ best)) ** 2), atol=1e-13)
    assert float(found.floor) > 0.01


def test_the_mean_floor_is_the_one_by_kappa(x64):
    """Over 40 first layers; the equation is that of N → ∞, its error is O(1/N) of it: 1/32 beside 4 standard errors."""
    rates, target = (np.asarray(v) for v in sl.power_law(2.0, 0.5, 256))
    N, found = 32, []
    for _ in range(40):
        Q = np.linalg.qr((RNG.normal(size=(N, 256)) * np.sqrt(rates)).T)[0]
        v = np.sqrt(rates) * target
        found.append(np.sum(v**2) - np.sum((Q.T @ v) ** 2))
    expected = sl.risk_floor(rates, target, N)
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / np.sqrt(40) + expected / N
    with pytest.raises(ValueError, match="256 neurons span the 256 features"):
        sl.risk_floor(rates, target, 256)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.5, 1.5])
def test_lazy_risk_has_its_exponent(x64, beta):
    """Σ k^{-αβ-1} e^{-2tk^{-α}} → ∝ t^{-β}: corrections are the sum against the integral (beyond all powers) and the
    modes left out, t/M^α to the power β at the most."""
    modes = sl.infinite_width_modes(*sl.power_law(2.0, beta, 4096))
    t = np.array([1e3, 2e3])
    risk = np.asarray(sl.lazy_risk(modes, t))
    off = (t[1] / 4096.0**2) ** beta
    assert abs(np.log(risk[0] / risk[1]) / np.log(2) - beta) < 2 * off
    np.testing.assert_allclose(sl.lazy_risk(modes, np.zeros(1))[0], 1.0, rtol=1e-13)


def test_exponents():
    assert sl.time_exponent(0.5, True) == pytest.approx(2 / 3) and sl.time_exponent(0.5, False) == 0.5
    assert sl.time_exponent(1.5, True) == sl.time_exponent(1.5, False) == 1.5
    assert sl.width_exponent(2.0, 0.5) == 1.0 and sl.width_exponent(2.0, 1.5) == 2.0


def test_the_gain_solves_its_equation(x64):
    """s(1 + s) = γ²‖c‖² over thirty decades, by a formula without cancellation: some ten roundings."""
    for richness in (1e-12, 1e-3, 0.7, 30.0, 1e15):
        c = jnp.asarray([0.6, -0.8, 1.5])
        s = float(sl.kernel_gain(c, richness))
        np.testing.assert_allclose(s * (1 + s), richness**2 * (0.36 + 0.64 + 2.25), rtol=16 * 2.0**-53)


def test_targets_and_risks_by_their_sums(x64):
    rates, target = (np.asarray(v) for v in sl.power_law(1.5, 0.7, 40))
    k = np.arange(1, 41.0)
    share = k ** -(1.5 * 0.7 + 1)
    np.testing.assert_allclose(rates, k**-1.5, rtol=1e-13)
    np.testing.assert_allclose(rates * target**2, share / share.sum(), rtol=1e-13)
    modes = sl.infinite_width_modes(jnp.asarray(rates), jnp.asarray(target))._replace(floor=jnp.asarray(0.3))
    t = np.array([0.0, 2.0, 50.0])
    wanted = 0.3 + np.sum(rates * target**2 * np.exp(-2 * t[:, None] * rates), 1)
    np.testing.assert_allclose(sl.lazy_risk(modes, t), wanted, rtol=1e-13)
    dead = sl.PowerLawModes(jnp.array([0.0, 2.0]), jnp.array([0.0, 1.0]), jnp.asarray(0.1))
    np.testing.assert_allclose(sl.lazy_risk(dead, np.zeros(1)), 0.1 + 0.5, rtol=1e-15)
