"""Online SGD on one neuron through its overlaps: against the same steps on whole vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.training.descent.one_neuron import OnlineRule, OverlapSample, draw, samples_until, update_overlap

RNG = np.random.default_rng(0)
D = 12


def target(Z):
    return Z[:, 0] ** 3 - 3 * Z[:, 0] + (0.5 * Z[:, 1] if Z.shape[1] > 1 else 0.0)


def on_vectors(U, w, x, rule):
    """w after a sample, as the definition says."""
    y = float(target((U @ x)[None])[0])
    a = 1 + rule.output_step * y * -np.sin(w @ x)
    for _ in range(rule.repeats):
        w = w + rule.step_size * a * y * -np.cos(w @ x) * x
    return w / np.linalg.norm(w)


@pytest.mark.parametrize(
    "rule", [OnlineRule(0.1), OnlineRule(0.05, repeats=3), OnlineRule(0.03, output_step=0.7)], ids=str
)
@pytest.mark.parametrize("r", [1, 2])
def test_overlaps_move_as_the_vectors_do(x64, rule, r):
    U = np.linalg.qr(RNG.normal(size=(D, D)))[0][:r]
    w = RNG.normal(size=D)
    w /= np.linalg.norm(w)
    step = jax.jit(lambda m, s: update_overlap(m, s, target, lambda v: -jnp.sin(v), rule))
    for _ in range(4):
        x = RNG.normal(size=D)
        m, z = U @ w, U @ x
        p = (w @ x - m @ z) / np.sqrt(1 - m @ m)
        sample = OverlapSample(z, np.array(p), np.array(x @ x - z @ z - p**2))
        after = on_vectors(U, w, x, rule)
        # sums of 12 terms twice, and slopes at w·x + c‖x‖² with ‖x‖² up to 40: some hundred units of rounding
        np.testing.assert_allclose(step(m, sample), U @ after, rtol=0, atol=1e-13)
        w = after


def test_samples_have_the_distribution_of_x(x64):
    """‖x‖² outside two directions is χ² with d - 2 degrees of freedom: mean and variance within 4 standard errors and
    what the cube of a normal number is off."""
    n, freedom = 40_000, 30.0
    found = draw(jax.random.key(1), n, 1, int(freedom) + 2)
    rest = np.asarray(found.rest)
    assert abs(rest.mean() - freedom) < 4 * np.sqrt(2 * freedom / n) + 1e-5 * freedom
    # Var of the sample variance: (μ_4 - σ^4)/n with excess kurtosis 12/ν
    spread = 2 * freedom * np.sqrt((2 + 12 / freedom) / n)
    assert abs(rest.var() - 2 * freedom) < 4 * spread + 1e-3 * 2 * freedom
    for v in (found.latent[:, 0], found.beside):
        assert abs(float(v.mean())) < 4 / np.sqrt(n) and abs(float(v.var()) - 1) < 4 * np.sqrt(2 / n)


def test_first_passage_of_a_linear_target(x64):
    """y = u·x and a linear neuron: m follows m' = η(1 - m²) for small steps, so atanh(level)/η samples."""
    eta, d = 1e-3, 20
    count = jax.jit(
        jax.vmap(
            lambda key: samples_until(
                jnp.zeros(1), 0.5, 10_000, lambda Z: Z[:, 0], lambda s: s, OnlineRule(eta), d, key=key
            )
        )
    )
    found = np.asarray(count(jax.random.split(jax.random.key(0), 16)))
    # drift off by η d/2 of m relatively (the norm), plus the error of the mean
    off = abs(found.mean() / (np.arctanh(0.5) / eta) - 1)
    assert off < eta * d / 2 + 4 * found.std() / 4 / found.mean()


def test_runs_that_never_arrive_are_infinite(x64):
    key, one = jax.random.key(0), jnp.full(1, 0.1)
    found = samples_until(one, 0.9, 300, lambda Z: Z[:, 0], lambda s: s, OnlineRule(1e-6), 20, key=key)
    assert np.isinf(found)
    assert np.isnan(
        samples_until(one * jnp.nan, 0.9, 300, lambda Z: Z[:, 0], lambda s: s, OnlineRule(1e-6), 20, key=key)
    )
    with pytest.raises(ValueError, match="3 inputs or more, got d=2"):
        samples_until(one, 0.9, 300, lambda Z: Z[:, 0], lambda s: s, OnlineRule(1e-6), 2, key=key)
