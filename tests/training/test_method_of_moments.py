"""Method of moments: the contracted tensor against its definition, exact recovery from exact moments, misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations import hermite
from unlazy.training.one_step.method_of_moments import contracted_fourth_moment, hessian_moment, spectral_start


def test_contraction_is_the_hermite_tensor(x64):
    """y He_4(z)[v, v, ·, ·] with He_4 = ∇⁴ of the Gaussian density over itself, here along axes: He_4(z)[e_i, e_i, e_j,
    e_j] = He_2(z_i) He_2(z_j), [e_i, e_i, e_i, e_i] = He_4(z_i). Labels enter centered."""
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    found = np.asarray(contracted_fourth_moment(jnp.asarray(Z), jnp.asarray(y), jnp.array([1.0, 0, 0])))
    y, z = y - y.mean(), Z
    he2 = z**2 - 1
    he4 = z[:, 0] ** 4 - 6 * z[:, 0] ** 2 + 3
    expected = np.diag([np.mean(y * he4), *(np.mean(y * he2[:, 0] * he2[:, j]) for j in (1, 2))])
    expected[1, 2] = expected[2, 1] = np.mean(y * he2[:, 0] * z[:, 1] * z[:, 2])
    he3 = z[:, 0] ** 3 - 3 * z[:, 0]
    for j in (1, 2):
        expected[0, j] = expected[j, 0] = np.mean(y * he3 * z[:, j])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.slow
def test_exact_moments_give_the_neurons(x64):
    """A quartic teacher on a Gauss–Hermite grid: moments are exact, so neurons come out to rounding. The rule's weights
    are imitated by repeating nodes in proportion; instead labels carry them, y → n w y, which the means undo."""
    z, w = hermite.gauss_hermite(7)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(w, w).ravel() * len(grid)
    angle = 0.4
    W = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    h = np.asarray(hermite.basis(grid @ W.T, 4))
    y = (h[:, 0, 2] + h[:, 0, 4]) + 0.5 * (h[:, 1, 2] + h[:, 1, 4])  # mean zero: centering must not spoil the weights
    labels = weights * y
    labels = labels - labels.mean()
    found = spectral_start(jnp.asarray(grid), jnp.asarray(labels), 2, key=jax.random.key(0))
    C = np.abs(np.asarray(found.W) @ W.T)
    np.testing.assert_allclose(C.max(1), 1, atol=1e-8)
    assert set(C.argmax(1)) == {0, 1}
    H = hessian_moment(jnp.asarray(grid), jnp.asarray(labels))
    np.testing.assert_allclose(H, np.sqrt(2) * W.T @ np.diag([1, 0.5]) @ W, atol=1e-10)


def test_too_many_neurons_are_rejected(x64):
    with pytest.raises(ValueError, match="at most d = 3 neurons, got 4"):
        spectral_start(jnp.ones((5, 3)), jnp.ones(5), 4, key=jax.random.key(0))
