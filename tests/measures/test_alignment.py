"""Alignment and movement against NumPy and against cases with a known answer."""

import jax.numpy as jnp
import numpy as np

from unlazy.measures.alignment import centered_alignment, kernel_alignment, target_alignment
from unlazy.measures.tangent_drift import distance, parameter_movement, relative_change


def test_alignment_of_known_kernels(x64):
    y = jnp.array([1.0, -2.0, 0.5])
    assert np.isclose(target_alignment(jnp.outer(y, y), y), 1, rtol=1e-14)
    assert np.isclose(target_alignment(jnp.eye(3), y), 1 / np.sqrt(3), rtol=1e-14)
    Y = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    K = jnp.asarray(np.cov(np.random.default_rng(1).normal(size=(5, 9))))
    assert np.isclose(target_alignment(K, Y), kernel_alignment(K, Y @ Y.T), rtol=1e-13)


def test_centering_removes_a_constant(x64):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    shifted = centered_alignment(jnp.asarray((A + 10) @ (A + 10).T), jnp.asarray((B - 7) @ (B - 7).T))
    A, B = A - A.mean(0), B - B.mean(0)
    expected = np.sum((A @ A.T) * (B @ B.T)) / np.linalg.norm(A @ A.T) / np.linalg.norm(B @ B.T)
    np.testing.assert_allclose(shifted, expected, rtol=1e-10)  # cancellation of shifts 100 times the rest


def test_movement(x64):
    A = jnp.array([[3.0, 4.0]])
    np.testing.assert_allclose(relative_change(A, 1.5 * A), 0.5, rtol=1e-14)
    start = {"w": (jnp.array([3.0]), jnp.array([4.0])), "v": jnp.array([2.0])}
    now = {"w": (jnp.array([3.0]), jnp.array([9.0])), "v": jnp.array([2.0])}
    np.testing.assert_allclose(parameter_movement(start, now), [0.0, 1.0], rtol=1e-14)  # keys sorted: v, w
    assert float(distance(start, now)) == 5
