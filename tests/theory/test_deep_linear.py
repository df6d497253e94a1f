"""Deep linear networks of infinite width by algebra [M3]: by hand for one point, one pass over time, the lazy end."""

import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.theory.feature_learning.deep_linear import deep_linear

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 5))
Y = RNG.normal(size=4)
K = X @ X.T / 5


def one_point(K, y, gamma, eta, steps):
    """Two layers, one point: a = E h², b = E z², c = E hz make a map of their own, f = c/γ_0."""
    a, b, c, found = K, 1.0, 0.0, []
    for _ in range(steps + 1):
        found.append((c / gamma, a + b * K))
        up, down = gamma * eta * (y - c / gamma) * K, gamma * eta * (y - c / gamma)
        a, b, c = a + 2 * up * c + up**2 * b, b + 2 * down * c + down**2 * a, c * (1 + up * down) + up * b + down * a
    return np.array(found).T


def test_one_point_and_two_layers_by_hand(x64):
    f, Theta = deep_linear(jnp.array([[0.8]]), jnp.array([1.5]), 1, 2.0, 0.1, 8)
    wanted = one_point(0.8, 1.5, 2.0, 0.1, 8)
    # numbers below 20, eight steps, some tens of roundings each
    np.testing.assert_allclose(f[:, 0], wanted[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(Theta[:, 0, 0], wanted[1], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_algebra_and_one_pass_over_time_agree(x64):
    f, Theta = deep_linear(jnp.asarray(K), jnp.asarray(Y), 3, 1.5, 0.05, 6)
    net = unlazy.MLP(3, "identity", sigma_w=1.0)
    limit = unlazy.rich_limit(net, X, Y, richness=1.5, times=np.arange(7), step_size=4 * 0.05)  # n = 4
    assert np.linalg.norm(Theta[-1] - Theta[0]) > 0.5 * np.linalg.norm(Theta[0])  # features have moved
    # directions of 1e-12 of a variance are left out in one pass, 28 at most in each of three layers
    np.testing.assert_allclose(limit.fitted.value, f, rtol=0, atol=84e-12)
    np.testing.assert_allclose(limit.tangent.value, Theta, rtol=0, atol=84e-12 * float(jnp.max(Theta)))


@pytest.mark.slow
def test_without_richness_it_is_descent_with_a_fixed_kernel(x64):
    f, _ = deep_linear(jnp.asarray(K), jnp.asarray(Y), 2, 1e-4, 0.05, 12)
    shrink = np.eye(4) - 0.05 * 3 * K
    wanted = [Y - np.linalg.matrix_power(shrink, t) @ Y for t in range(13)]
    np.testing.assert_allclose(f, wanted, rtol=0, atol=1e-6)  # γ_0² times a constant of order ten


def test_labels_of_the_other_sign(x64):
    """f is odd in y and Θ even: no step of the iteration may look at a sign."""
    labels = jnp.abs(jnp.asarray(Y)) + 0.1
    for sign in (1, -1):
        f, Theta = deep_linear(jnp.asarray(K), sign * labels, 2, 1.5, 0.05, 3)
        if sign == 1:
            first = f, Theta
    np.testing.assert_allclose(-f, first[0], rtol=0, atol=1e-13)  # the same operations with other signs
    np.testing.assert_allclose(Theta, first[1], rtol=0, atol=1e-13)
