"""Directions and inputs of functions that are known."""

import numpy as np
import pytest

from unlazy.measures.dependence import (
    count_directions,
    finite_difference_gradients,
    leading_directions,
    permutation_importance,
)
from unlazy.measures.spectra import participation_ratio

X = np.random.default_rng(0).normal(size=(128, 4))
U = np.array([0.6, 0.8, 0.0, 0.0])


def test_one_direction_of_a_ridge_function():
    G = finite_difference_gradients(lambda Z: (Z @ U)[:, None] ** 2, X, range(4))
    M = np.einsum("nci,ncj->ij", G, G) / len(G)
    values, vectors = leading_directions(M)
    # central differences are exact for a quadratic: M = mean(4 (u·x)²) u uᵀ up to rounding
    np.testing.assert_allclose(M, 4 * np.mean((X @ U) ** 2) * np.outer(U, U), atol=1e-11)
    assert abs(vectors[0] @ U) == pytest.approx(1, abs=1e-12)
    assert participation_ratio(values) == pytest.approx(1, abs=1e-9) and count_directions(values) == 1


def test_ranks_of_known_spectra():
    assert participation_ratio(np.ones(5)) == pytest.approx(5) and count_directions(np.ones(10) / 10) == 9
    assert participation_ratio(np.zeros(3)) == 0 and count_directions(np.zeros(3)) == 0
    assert count_directions(np.array([0.8, 0.15, 0.05])) == 2


def test_shuffling_an_unused_input_changes_nothing():
    y = X[:, 0] + X[:, 2]
    rise = permutation_importance(
        lambda Z: float(np.mean((Z[:, 0] + Z[:, 2] - y) ** 2)), X, np.array([0, 0, 1, 2]), 0, 20
    )
    assert rise.shape == (3,) and rise[2] == 0
    # E (x_i - x_π(i))² = 2·variance: the mean of 20 shuffles of 128 rows has a relative error below √(8/(20·128))·4
    np.testing.assert_allclose(rise[:2], 2 * X[:, [0, 2]].var(0), rtol=4 * np.sqrt(8 / 2560))
