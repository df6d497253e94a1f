"""Descent on the population risk of balanced neurons: against plain steps, and its lazy limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations.functions import activation
from unlazy.training.descent.population import descend_population, random_start

ABS = activation("abs")
U, HEADS = np.eye(3)[:2], np.array([0.8, 0.3])


def descend(V, **options):
    return descend_population(V, jnp.asarray(U), jnp.asarray(HEADS), ABS, **options)


def moment(m):
    """E |a||b| at correlation m."""
    m = np.clip(m, -1, 1)
    return 2 / np.pi * (np.sqrt(1 - m * m) + m * np.arcsin(m))


@pytest.mark.slow
def test_steps_are_those_of_the_risk(x64):
    V = random_start(jax.random.key(0), 4, 3, 0.5)
    path = descend(V, step_size=0.1, steps=6, every=2)
    W = np.asarray(V)
    np.testing.assert_allclose(np.sum(W**2), 0.25, rtol=1e-14)
    for step in range(6):
        n = np.linalg.norm(W, axis=1)
        unit, s = W / n[:, None], n**2
        atoms, weights = np.concatenate([unit, U]), np.concatenate([s, -HEADS])
        if step % 2 == 0:
            both = moment(atoms @ atoms.T)
            np.testing.assert_allclose(path.risk[step // 2], weights @ both @ weights, rtol=0, atol=1e-14)
            np.testing.assert_allclose(path.second[step // 2], W.T @ W, rtol=0, atol=1e-14)
        m = np.clip(unit @ atoms.T, -1, 1)
        slope = 2 / np.pi * np.arcsin(m)
        pull = ((2 * moment(m) - m * slope) @ weights)[:, None] * unit + (slope * weights) @ atoms
        W = W - 0.1 * n[:, None] * pull
    np.testing.assert_allclose(path.at, [0, 0.2, 0.4], atol=1e-15)
    with pytest.raises(ValueError, match="steps=7 and every=2"):
        descend(V, step_size=0.1, steps=7, every=2)


@pytest.mark.slow
def test_lazy_risk_starts_at_the_targets_and_has_a_limit(x64):
    """Twice the laziness changes the path by half of what half of it does: corrections are O(1/α)."""
    V = random_start(jax.random.key(1), 6, 3, 1.0)
    risks = [np.asarray(descend(V, step_size=0.1, steps=30, laziness=a).risk)
             for a in (50.0, 100.0, 200.0)]  # fmt: skip
    second = moment(np.eye(2))
    np.testing.assert_allclose([r[0] for r in risks], HEADS @ second @ HEADS, rtol=1e-9)
    first, then = (np.abs(risks[i] - risks[i + 1]).max() for i in (0, 1))
    assert then < 0.75 * first < 0.05 and risks[1][-1] < 0.5 * risks[1][0]
