"""Two kinds of features: who has which, and what each says of the label."""

import jax
import numpy as np
import pytest

from unlazy.tasks.two_features import two_features

SETTING = {"d": 50, "margin": 0.3, "size": 4.0, "gap": 0.5}


def test_points_have_the_intended_features(x64):
    data = two_features(jax.random.key(0), 4000, faint=0.25, bright=0.5, **SETTING)
    X, y = np.asarray(data.X), np.asarray(data.y)
    assert np.all(X[:2000, :50] == 0) and np.all(X[3000:, 50:] == 0)
    assert np.all(X[2000:, 0] != 0) and np.all(X[:3000, 50] == 4)
    expected = np.where(y[:3000] > 0, 2.0, 0.0)
    np.testing.assert_allclose(np.abs(X[:3000, 51]), expected, atol=0)
    faint = X[2000:, :50] * y[2000:, None]
    error = 1 / np.sqrt(50 * 2000)
    assert abs(faint[:, 0].mean() - 0.3) < 4 * error and np.all(np.abs(faint[:, 1:].mean(0)) < 5 * error)
    assert abs(X[:3000, 51].mean()) < 4 * 2 / np.sqrt(3000)  # both sides as often: no linear function tells them


def test_shares_are_checked():
    with pytest.raises(ValueError, match="their sum at most 1, got faint"):
        two_features(jax.random.key(0), 10, faint=0.7, bright=0.5, **SETTING)
