"""Whitening against its definition: unit second moments, and rows of mean 0 and norm 1."""

import numpy as np

from unlazy.theory.numerics.whitening import unit_rows, zca_matrix


def test_whitened_points_have_unit_moments():
    X = np.random.default_rng(0).normal(size=(50, 4)) @ np.diag([3.0, 1.0, 0.5, 0.1])
    M = X.T @ X / 50
    W = zca_matrix(M, 0.2)
    np.testing.assert_allclose(W @ (M + 0.2 * np.eye(4)) @ W, np.eye(4), atol=1e-13)
    np.testing.assert_allclose(W, W.T, atol=1e-14)
    assert np.linalg.eigvalsh(W).min() > 0
    assert np.isfinite(zca_matrix(np.array([[-1e-17, 0.0], [0.0, 1.0]]), 1e-18)).all()  # as after rounding


def test_rows_of_mean_zero_and_norm_one_of_any_size():
    X = (np.random.default_rng(1).normal(size=(3, 6)) + 5) * [[1e-3], [1.0], [1e3]]
    found = unit_rows(np.concatenate([X, np.full((1, 6), 7.0)]))
    np.testing.assert_allclose(found.mean(1), 0, atol=1e-14)  # rounding of numbers five times their spread
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1, 1, 0], rtol=1e-14)
    centered = X - X.mean(1, keepdims=True)
    np.testing.assert_allclose(np.sum(found[:3] * centered, 1), np.linalg.norm(centered, axis=1), rtol=1e-14)
