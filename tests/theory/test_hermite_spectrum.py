"""Spectra from a covariance: modes against all products, the sphere, Gaussian inputs; coefficients without bias."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.radial import Gaussian
from unlazy.theory.spectra import eigenvalues
from unlazy.theory.spectra import hermite_spectrum as hs


def profile(kernel):
    return lambda t, square: kernel.entry(t, jnp.full_like(t, square), jnp.full_like(t, square))


def test_the_largest_modes_of_all():
    gamma, levels = np.array([0.9, 0.5, 0.3, 0.05]), np.array([0.2, 0.5, 0.7, 1.5])
    every = []
    for degree, level in enumerate(levels):
        for inputs in itertools.combinations_with_replacement(range(4), degree):
            every.append((level * math.prod(gamma[i] for i in inputs), inputs))
    every.sort(reverse=True)
    found = hs.largest_modes(gamma, levels, 20)
    np.testing.assert_allclose(found.eigenvalues, [value for value, _ in every[:20]], rtol=1e-14)
    named = [tuple(int(i) for i in row if i >= 0) for row in found.inputs]
    assert set(named) == {inputs for _, inputs in every[:20]}
    for value, inputs in zip(found.eigenvalues, named):
        assert value == pytest.approx(levels[len(inputs)] * math.prod(gamma[i] for i in inputs), rel=1e-14)
    assert len(hs.largest_modes(gamma, levels, 1000).eigenvalues) == len(every)
    with pytest.raises(ValueError, match="largest first"):
        hs.largest_modes(gamma[::-1], levels, 5)
    for bad, also in (([np.nan, 1.0], [1.0, 1.0]), ([1.0, -0.5], [1.0, 1.0]), ([], [1.0]), ([1.0], [np.nan, 1.0])):
        with pytest.raises(ValueError, match="finite and not negative"):
            hs.largest_modes(np.array(bad), np.array(also), 5)
    for bad in (np.zeros(3), np.array([np.nan, 1.0])):
        with pytest.raises(ValueError, match="do not vary"):
            hs.effective_dimension(bad)


def test_equal_variances_are_the_sphere(x64):
    """λ_α of degree ℓ is then the sphere's eigenvalue of that degree; multiplicities differ by what a sphere lacks."""
    d, kernel = 12, Gaussian(3.0)
    levels = hs.level_coefficients(profile(kernel), np.ones(d), 4)
    expected = np.asarray(eigenvalues.sphere_eigenvalues(lambda t: profile(kernel)(d * t, float(d)), d, 4))
    np.testing.assert_allclose(
        hs.largest_modes(np.ones(d), levels, 1 + d).eigenvalues, [expected[0], *[expected[1]] * d]
    )
    assert hs.effective_dimension(np.ones(d)) == d
    assert hs.effective_dimension(np.array([1.0, 1e-9])) == 2


def test_eigenfunctions_are_orthonormal_under_the_normal_law():
    """By Gauss-Hermite in two dimensions, exact for these degrees; rounding of 400 terms."""
    z, w = np.polynomial.hermite_e.hermegauss(20)
    Z = np.array(list(itertools.product(z, z)))
    weight = np.outer(w, w).ravel() / (2 * np.pi)
    inputs = hs.largest_modes(np.array([1.0, 0.8]), np.ones(5), 15).inputs
    F = hs.eigenfunctions(Z, inputs)
    np.testing.assert_allclose(F.T @ (weight[:, None] * F), np.eye(15), atol=1e-11)
    np.testing.assert_allclose(F[:, 0], 1)


def test_coefficients_are_unbiased():
    """Sums of squares and the rest: means over 200 draws within four standard errors."""
    inputs = hs.largest_modes(np.array([1.0, 0.5, 0.25]), np.ones(3), 8).inputs
    v = np.array([0.0, 1.0, 0.5, 0.0, -0.3, 0.0, 0.2, 0.0])
    powers, rests = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        F = hs.eigenfunctions(rng.normal(size=(400, 3)), inputs)
        y = F @ v + 0.5 * rng.normal(size=400)
        found = hs.target_power(F, y[:, None])
        powers.append(found.power)
        rests.append(found.rest)
    powers, rests = np.array(powers), np.array(rests)
    assert abs(rests.mean() - 0.25) < 4 * rests.std() / np.sqrt(200)
    total = powers.sum(1)
    assert abs(total.mean() - v @ v) < 4 * total.std() / np.sqrt(200)
    # features are orthonormal on average only: each takes up E h²h'² ≤ 15 times v²/n of those behind it
    assert np.all(np.abs(powers.mean(0) - v**2) < 4 * powers.std(0) / np.sqrt(200) + 15 * (v @ v) / 400)
    with pytest.raises(ValueError, match="take fewer modes"):
        hs.target_power(np.ones((5, 5)), np.ones((5, 1)))


@pytest.mark.slow
def test_learning_curve_of_gaussian_inputs(x64):
    """Power-law covariance, wide bandwidth, known coefficients: the risk from theory within 5% of the measured one (the
    structure is exact as the bandwidth grows; at twice the root of the trace eigenvalues are off by up to a fifth) and
    of its four standard errors."""
    d, kernel, ridge, noise = 30, Gaussian(2.0), 1e-2, 0.09
    gamma = np.arange(1, d + 1) ** -1.2
    gamma /= gamma.sum()
    found = hs.largest_modes(gamma, hs.level_coefficients(profile(kernel), gamma, 5), 3000)
    v = 1 / np.arange(1.0, 61)
    v /= np.linalg.norm(v)
    power = np.concatenate([v**2, np.zeros(2940)])
    for n in (100, 400):
        risks = []
        for seed in range(12):
            rng = np.random.default_rng(100 + seed)
            Z = rng.normal(size=(n + 1000, d))
            X, f = Z * np.sqrt(gamma), hs.eigenfunctions(Z, found.inputs[:60]) @ v
            y = f[:n] + np.sqrt(noise) * rng.normal(size=n)
            alpha = np.linalg.solve(np.asarray(kernel.gram(X[:n])) + ridge * np.eye(n), y)
            risks.append(np.mean((np.asarray(kernel.gram(X[n:], X[:n])) @ alpha - f[n:]) ** 2) + noise)
        theory = hs.learning_curve(found, hs.TargetPower(power, noise), 1.0, np.array([float(n)]), ridge)[0]
        error = np.std(risks, ddof=1) / np.sqrt(len(risks))
        assert abs(theory / np.mean(risks) - 1) < 0.05 + 4 * error / np.mean(risks)


def test_effective_dimension_of_any_scale():
    for scale in (1e-9, 0.1, 1.0, 1e9):
        assert hs.effective_dimension(scale * np.ones(5)) == 5
        assert hs.effective_dimension(scale * np.array([4.0, 2.0, 2.0, 0.0])) == round(64 / 24)
    for bad in (np.zeros(3), np.array([1.0, np.inf])):
        with pytest.raises(ValueError, match="do not vary or are not finite"):
            hs.effective_dimension(bad)
