"""Generative exponents against transformations of the labels and known cases."""

import numpy as np
import pytest

from unlazy.theory.activations import hermite
from unlazy.theory.feature_learning.generative_exponent import conditional_moments, generative_exponent


@pytest.mark.slow_cases("coefficients1-2", "coefficients3-2", "coefficients0-1")
@pytest.mark.parametrize("coefficients, expected", [
    ([0, 1], 1), ([0, 0, 1], 2), ([0, 0, 0, 1], 1), ([0, 0, 0, 0, 1], 2), ([0, 0, 1, 0.5], 1), ([0, 0, 1, 0, 1], 2),
])  # fmt: skip
def test_known_cases(coefficients, expected):
    """Odd polynomials show u, even ones u up to its sign (Damian et al. 2024)."""
    assert generative_exponent(coefficients) == expected


def test_moments_bound_every_transformation():
    """E T(y) h_k(z) ≤ ‖T‖ ζ_k, with equality where y tells z: y = h_1 gives ζ_1 = 1, the rest too."""
    np.testing.assert_allclose(conditional_moments([0, 1.0], 4), 1.0, atol=1e-9)
    z, w = hermite.panel_rule(2000, 9.0)
    y = hermite.basis(z, 3)[:, 3]
    found = conditional_moments([0, 0, 0, 1.0], 3)
    for T in (np.tanh(y), y**3 / (1 + y**2), np.sign(y) * np.sqrt(np.abs(y))):
        for k in (1, 2, 3):
            seen = abs(np.sum(w * T * hermite.basis(z, 3)[:, k]))
            assert seen <= found[k - 1] * np.sqrt(np.sum(w * T**2)) + 1e-6
    # the best transformation itself: z on the one branch, where |y| is larger than at the turning points
    outside = np.abs(z) > 2
    share = np.sum(w * outside * z * hermite.basis(z, 1)[:, 1])
    assert share <= found[0] * np.sqrt(np.sum(w * outside * z**2))
    assert found[0] > 0.3


def test_moments_against_bins_of_the_labels():
    """E[h_k | y] as means over bins of y, of equal probability 1/B, on a fine grid: no roots and no slopes.

    Branches have different slopes, so that their weights matter. Bins lose the variance inside, most of it in the
    first and the last one: there z²/2 is nearly exponential and h_2 = (z² - 1)/√2 has variance 2, h_1 less. That is
    4/B of the square of a moment, and twice that is allowed.
    """
    B, z = 1600, np.linspace(-7, 7, 200_001)
    w, basis = np.exp(-(z**2) / 2), hermite.basis(z, 3)
    for coefficients in ([0, 0.5, 0, 1.0], [0, 0.3, 0.4, 0.8]):
        order = np.argsort(basis @ coefficients)
        bins = np.minimum((np.cumsum(w[order]) / w.sum() * B).astype(int), B - 1)
        mass = np.bincount(bins, w[order])
        expected = [np.sum(np.bincount(bins, (w * basis[:, k])[order]) ** 2 / mass) / mass.sum() for k in (1, 2)]
        np.testing.assert_allclose(conditional_moments(coefficients, 2) ** 2, expected, rtol=0, atol=8 / B)


def test_a_weak_linear_part_is_detected():
    """h_2 + ε h_1 has exponent 1 for every ε ≠ 0, by a moment of order ε; without it 2."""
    moment = conditional_moments([0, 0.02, 1.0], 1)[0]
    assert 1e-3 < moment < 0.05
    assert generative_exponent([0, 0.02, 1.0]) == 1 and generative_exponent([0, 0.0, 1.0]) == 2
