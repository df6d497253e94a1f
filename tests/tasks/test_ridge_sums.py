"""Polynomials and teachers against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import tasks
from unlazy.tasks.polynomials import monomial_share

KEY = jax.random.key(13)


def test_second_moment_of_a_relu_teacher_is_the_arc_cosine_kernel(x64):
    """E ReLU(a)ReLU(b) = (sin θ + (π - θ) cos θ)/2π; kinks are split, so quadrature agrees to rounding."""
    task = tasks.teacher(6, 4, "relu", key=KEY, orthogonal=False, heads=jnp.array([1.0, -2.0, 0.5, 1.0]))
    W, a = np.asarray(task.W), np.asarray(task.heads)
    angle = np.arccos(np.clip(W @ W.T, -1, 1))
    kernel = (np.sin(angle) + (math.pi - angle) * np.cos(angle)) / (2 * math.pi)
    # arccos of 1 - 1e-16 is 1e-8, but the kernel is flat there to second order.
    assert float(task.second_moment) == pytest.approx(a @ kernel @ a, abs=1e-12)
    # H = Σ a_j E[δ(w_j·x)] w_j w_jᵀ with E δ = 1/√(2π).
    np.testing.assert_allclose(task.hessian, (W.T * a) @ W / math.sqrt(2 * math.pi), atol=1e-13)
    assert task.information_exponent == 1


@pytest.mark.slow
def test_second_moment_of_an_erf_teacher_is_the_arc_sine_kernel(x64):
    task = tasks.teacher(5, 3, "erf", key=KEY, orthogonal=False)
    W, a = np.asarray(task.W), np.asarray(task.heads)
    kernel = 2 / math.pi * np.arcsin(2 * W @ W.T / 3)
    assert float(task.second_moment) == pytest.approx(a @ kernel @ a, abs=1e-12)
    assert np.max(np.abs(task.hessian)) == 0 and float(task.kappa) == math.inf  # an odd teacher has no H


def test_cancelling_heads_raise_the_information_exponent():
    weights = jnp.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    assert tasks.teacher(3, 2, "relu", weights=weights, heads=jnp.ones(2)).information_exponent == 2
    assert tasks.teacher(3, 2, "relu", weights=weights, heads=jnp.array([1.0, -1.0])).information_exponent == 1


def test_a_wide_teacher_spans_everything():
    task = tasks.teacher(4, 9, "gelu", key=KEY, orthogonal=False)
    np.testing.assert_array_equal(task.subspace, np.eye(4))


@pytest.mark.slow
@pytest.mark.parametrize("r", [1, 3])
def test_quadratic_is_xtax_with_exact_moments(x64, r):
    """E (Σ z_s²)² = r² + 2r, so the heads are 1/√(r² + 2r) and H = 2·heads·WᵀW."""
    task = tasks.quadratic(5, r, key=KEY)
    W, head = np.asarray(task.W), 1 / math.sqrt(r * r + 2 * r)
    X = np.asarray(task.inputs(KEY, 30))
    np.testing.assert_allclose(task.target(jnp.asarray(X)), head * np.sum((X @ W.T) ** 2, 1), rtol=1e-12)
    np.testing.assert_allclose(task.hessian, 2 * head * W.T @ W, atol=1e-14)
    assert float(task.second_moment) == pytest.approx(1, abs=1e-14)
    assert float(task.kappa) == pytest.approx(1 / (2 * head * math.sqrt(r)))


def test_a_raw_fourth_power_is_mostly_degree_two_and_hermite_is_not():
    assert monomial_share(4, 2) == pytest.approx(0.75)
    pure = tasks.hermite_polynomial(6, 4)
    assert (pure.information_exponent, pure.kappa, pure.second_moment) == (4, math.inf, 1.0)
    assert tasks.rank_polynomial(6, (4,)).information_exponent == 2


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: tasks.teacher(3, 4), "do not fit in dimension 3"),
        (lambda: tasks.teacher(3, 0), "got 0"),
        (lambda: tasks.teacher(3, 2, "rellu"), "did you mean"),
        (lambda: tasks.teacher(3, 2, orthogonal=False), "pass a key"),
        (lambda: tasks.teacher(3, 2, heads=jnp.ones(3)), r"shape \(2,\), got \(3,\)"),
        (lambda: tasks.teacher(3, 2, weights=2 * jnp.eye(2, 3)), "norm 1"),
        (lambda: tasks.teacher(3, 2, weights=jnp.eye(2, 4)), r"shape \(2, 3\)"),
        (lambda: tasks.rank_polynomial(3, ()), "empty"),
        (lambda: tasks.rank_polynomial(3, (2, 0)), "got 0"),
        (lambda: tasks.quadratic(2, 3), "do not fit"),
    ],
)
def test_misuse_raises(bad, says):
    with pytest.raises(ValueError, match=says):
        bad()
