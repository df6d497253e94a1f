"""κ, learned modes and bias of a sample against the population they are drawn from."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.spectra import eigenvalues, renormalization

P, N, DRAWS = 300, 100, 24
LAM = np.arange(1.0, P + 1) ** -1.5


def samples():
    """Eigenvalues of K for Gaussian features φ_i ~ N(0, λ_i)."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        phi = rng.normal(size=(N, P)) * np.sqrt(LAM)
        yield np.linalg.eigvalsh(phi @ phi.T)


def test_population_quantities_are_estimated_from_a_sample(x64):
    ridges = np.array([1e-2, 0.3, 3.0])
    found = np.array([np.stack(renormalization.renormalize(e, ridges)) for e in samples()])
    solve = jax.jit(
        lambda r: eigenvalues.effective_regularization(jnp.asarray(LAM), jnp.ones(P), jnp.asarray(float(N)), r)
    )
    kappa = np.array([float(solve(r)) for r in ridges])
    L = LAM / (LAM + kappa[:, None])
    for values, expected in zip(found.transpose(1, 0, 2), (kappa, L.sum(1), N - (L**2).sum(1))):
        error = values.std(0, ddof=1) / np.sqrt(DRAWS)
        # corrections to the deterministic limit are of relative order 1/n
        assert np.all(np.abs(values.mean(0) - expected) <= 4 * error + 3 / N * expected)
        assert np.all(np.abs(values.mean(0) / expected - 1) < 0.05)


def test_the_spare_points_are_the_slope_of_the_effective_ridge(x64):
    """n - Σ L² = 1/κ'(δ), by central differences with step h: h² of truncation, ε/h of rounding, relatively."""
    e, delta, h = next(samples()), np.array([0.02, 0.5]), 1e-5
    up, down = (np.asarray(renormalization.renormalize(e, delta * (1 + s * h)).kappa) for s in (1, -1))
    slope = (up - down) / (2 * h * delta)
    np.testing.assert_allclose(renormalization.renormalize(e, delta).spare, 1 / slope, rtol=1e-8)


def test_bias_and_risk_are_inverse(x64):
    e, ridges = next(samples()), np.array([0.02, 0.5])
    spare = np.asarray(renormalization.renormalize(e, ridges).spare)
    bias = renormalization.bias(np.array([0.3, 0.4]), spare, N)
    np.testing.assert_allclose(renormalization.risk(bias, N - spare, N), [0.3, 0.4], rtol=1e-12)
    assert np.isinf(renormalization.risk(np.array(1.0), np.array(5.0), 4.0))
