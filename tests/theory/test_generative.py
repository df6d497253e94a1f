"""Generative exponents against transformations of the labels and known cases."""

import numpy as np
import pytest

from unlazy.theory.activations import hermite
from unlazy.theory.feature_learning.generative_exponent import conditional_moments, generative_exponent


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
