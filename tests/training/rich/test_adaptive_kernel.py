"""The Bayesian adaptive kernel [M4]: in closed form where φ is linear, the NNGP without richness, Langevin networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import unlazy
from unlazy.core.arrays import precision
from unlazy.training.options import LangevinChains
from unlazy.training.rich.adaptive import adaptive_kernel, slice_sweep
from unlazy.training.rich.langevin import langevin

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3))
Y = RNG.normal(size=5)
Z = RNG.normal(size=(4, 3))


def linear_solution(K, y, gamma, ridge):
    """φ = id: p(h) is Gaussian with precision K⁻¹ - γ_0² ΔΔᵀ, so Φ = K + γ_0² KΔΔᵀK/(1 - γ_0² ΔᵀKΔ)."""
    delta = np.linalg.solve(K + ridge * np.eye(len(y)), y)
    for _ in range(4000):
        v = K @ delta
        strength = gamma**2 * delta @ v
        if strength >= 1:
            delta = delta * 0.9 / np.sqrt(strength)
            continue
        Phi = K + gamma**2 * np.outer(v, v) / (1 - strength)
        delta = 0.98 * delta + 0.02 * np.linalg.solve(Phi + ridge * np.eye(len(y)), y)
    return Phi, delta


@pytest.mark.slow
def test_the_scale_of_the_head_is_one_of_richness_and_ridge():
    """Features times s with γ_0 and λ are plain ones with γ_0/s and λ/s²: Φ is s² times as large, Δ 1/s², and the tilt
    the same. With s = 2 the same chains move, to rounding; a chain would turn elsewhere for another tilt."""
    ask = {"draws": 64, "sweeps": 4}
    found = adaptive_kernel(unlazy.MLP(1, "erf", sigma_w=(1.0, 2.0)), X, Y, richness=2.0, ridge=1.0, **ask)
    plain = adaptive_kernel(unlazy.MLP(1, "erf", sigma_w=(1.0, 1.0)), X, Y, richness=1.0, ridge=0.25, **ask)
    np.testing.assert_allclose(found.kernel.weights, plain.kernel.weights, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.gram, 4 * np.asarray(plain.gram), rtol=1e-9)
    np.testing.assert_allclose(found.predict(Z), plain.predict(Z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_the_kernel_of_the_draws_by_hand():
    """σ_w² mean φφ + σ_b² of the head, of which Φ of a single sweep is the value at the training points."""
    net = unlazy.MLP(1, "erf", sigma_w=(1.2, 1.5), sigma_b=(0.4, 0.7))
    found = adaptive_kernel(net, X, Y, richness=1.0, ridge=0.5, draws=64, sweeps=1)
    h = np.c_[1.2 * X / np.sqrt(3), np.full(5, 0.4)] @ np.asarray(found.kernel.weights).T
    wanted = 1.5**2 * erf(h) @ erf(h).T / 64 + 0.7**2
    np.testing.assert_allclose(found.gram, wanted, rtol=1e-12)
    with precision("float64"):
        np.testing.assert_allclose(found.kernel.gram(jnp.asarray(X)), wanted, rtol=1e-12)
    np.testing.assert_allclose(found.pull[:, 0], np.linalg.solve(wanted + 0.5 * np.eye(5), Y), rtol=1e-10)


@pytest.mark.slow
def test_a_linear_network_has_a_closed_form():
    net = unlazy.MLP(1, "identity", sigma_w=1.0, sigma_b=(0.5, 0.0))
    found = adaptive_kernel(net, X, Y, richness=1.0, ridge=0.3, draws=4096, sweeps=300)
    K = X @ X.T / 3 + 0.25
    Phi, delta = linear_solution(K, Y, 1.0, 0.3)
    assert np.linalg.norm(Phi - K) > 0.1 * np.linalg.norm(K)  # features have moved
    # 4,096 chains × 150 sweeps: well over 4,096 independent draws, so entries are off by 1/64 of the largest at most
    np.testing.assert_allclose(found.gram, Phi, rtol=0, atol=4 * np.abs(Phi).max() / 64)
    np.testing.assert_allclose(found.predict(X), Phi @ delta, rtol=0, atol=0.05 * np.abs(Y).max())


@pytest.mark.slow
def test_without_richness_it_is_the_nngp_and_it_serves_solve_and_estimators():
    net = unlazy.MLP(1, "relu", sigma_b=0.3)
    found = adaptive_kernel(net, X, Y, richness=1e-3, ridge=0.1, draws=16384, sweeps=20)
    with precision("float64"):
        wanted = np.asarray(unlazy.NNGP(net).gram(jnp.asarray(X)))
    np.testing.assert_allclose(found.gram, wanted, rtol=0, atol=4 * wanted.max() / 128)
    with precision("float64"):
        K, at_z = (np.asarray(found.kernel.gram(jnp.asarray(A), jnp.asarray(X))) for A in (X, Z))
    # predictions are those of ridge regression with the kernel itself; condition below 1e3, rounding
    np.testing.assert_allclose(found.predict(Z), at_z @ np.linalg.solve(K + 0.1 * np.eye(5), Y), rtol=0, atol=1e-11)
    solution = unlazy.solve(found.kernel, X, Y, 0.1)
    np.testing.assert_allclose(solution.predict(Z), found.predict(Z), rtol=0, atol=0.05)
    model = unlazy.KernelRegressor(kernel=found.kernel).fit(X, Y)
    assert model.predict(Z).shape == (4,)


@pytest.mark.slow
@pytest.mark.nightly
def test_langevin_networks_have_the_same_features_and_predictions():
    net = unlazy.MLP(1, "erf", sigma_w=1.5)
    ask = {"richness": 1.0, "ridge": 0.5}
    found = adaptive_kernel(net, X, Y, draws=4096, sweeps=200, **ask)
    sampled = langevin(net, X, Y, Z, width=512, chains=LangevinChains(4000, 0.02), **ask)
    for mine, theirs in ((found.gram, sampled.features), (found.predict(Z), sampled.predictions)):
        off = np.sqrt(np.mean(np.square(np.asarray(mine) - np.asarray(theirs.value))))
        error = np.sqrt(np.mean(np.square(theirs.error)))
        # errors of four runs, ε = 0.02 times a curvature of a few, 1/width
        assert off <= 3 * error + 0.06 * np.sqrt(np.mean(np.square(theirs.value)))


@pytest.mark.slow
def test_slices_keep_the_distribution(x64):
    """A tilt ½ c w² of N(0, 1) is N(0, 1/(1 - c))."""
    w = jnp.asarray(RNG.normal(size=(20000, 1)))
    for i in range(30):
        w = slice_sweep(jax.random.key(i), w, lambda w: 0.25 * w[:, 0] ** 2)
    # variance 2; the variance's own standard error is 2 √(2/20000) = 0.02
    assert abs(float(jnp.mean(w**2)) - 2.0) < 5 * 0.02


def test_impossible_arguments_are_rejected():
    ask = {"richness": 1.0, "ridge": 0.1}
    for net, change, match in [
        (unlazy.MLP(2), {}, "depth 1; got depth 2"), (unlazy.MLP(1), {"ridge": 0.0}, "ridge must be positive"),
        (unlazy.MLP(1), {"richness": -1.0}, "richness γ_0 must be positive"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=match):
            adaptive_kernel(net, X, Y, **(ask | change))
