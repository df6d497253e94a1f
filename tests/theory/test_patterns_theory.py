"""Exact gradient components against enumeration of everything and sampling; the two bounds at known values [P4-P6]."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from unlazy.tasks import pattern_task
from unlazy.theory.feature_learning import patterns

SHAPE = dict(background=0.5, spread=0.3)


def everything(q, b, task, spread):
    """T_j by enumerating all 2^D patterns: no central limit theorem."""
    k, D = task.k, len(q)
    bits = np.array(list(itertools.product((0.0, 1.0), repeat=D)))
    count = bits[:, :k].sum(1)
    chance = task.uniform_part / 2**k + (1 - task.uniform_part) / 2 * np.isin(count, (0, k))
    chance = chance * np.prod(np.where(bits[:, k:] == 1, task.background, 1 - task.background), 1)
    phi = (bits - np.r_[np.full(k, 0.5), np.full(D - k, task.background)]) / task.scale
    z = phi @ q + b
    slope = norm.cdf(z / spread) - norm.cdf((z - 1) / spread)
    return (chance * np.where(np.isin(count, task.positive), 1, -1) * slope) @ phi


@pytest.mark.slow
@pytest.mark.parametrize("background", [0.5, 0.3])
def test_components_against_full_enumeration(x64, background):
    """A Gaussian for Σ φ_l q_l errs by its fourth (0.3: third) cumulant: with |z| moved by at most 0.15, half the
    noise's spread of 0.3, that is below 1% of the signal γ/σ̃ E σ' (here ≈ 0.05)."""
    task = pattern_task(12, 12, 3, background=background)
    q = 0.1 * np.asarray(jax.random.normal(jax.random.key(0), (2, 12)))
    b = np.array([0.1, -0.2])
    table = patterns.relevant_patterns(3, task.positive, task.uniform_part)
    T = patterns.gradient_components(
        jnp.asarray(q), jnp.asarray(b), table, background=background, scale=task.scale, spread=0.3
    )
    for i in range(2):
        exact = everything(q[i], b[i], task, 0.3)
        np.testing.assert_allclose(T[i], exact, atol=0.01 * np.abs(exact[:3]).mean())


@pytest.mark.slow
def test_components_of_weights_in_the_relevant_span_are_exact(x64):
    """q = 0 outside A: the background does not reach the neuron, T_j there is zero, inside no limit is used."""
    task = pattern_task(8, 8, 3)
    q = np.zeros((1, 8))
    q[0, :3] = [0.7, -0.4, 0.2]
    table = patterns.relevant_patterns(3, task.positive, task.uniform_part)
    T = np.asarray(patterns.gradient_components(jnp.asarray(q), jnp.array([0.1]), table, scale=task.scale, **SHAPE))
    # 256 terms that add up to at most |φ| = 1/2σ̃ in absolute value, in any order, and some 24 roundings of each
    unit = 2.0**-53 * 0.5 / task.scale
    np.testing.assert_allclose(T[0], everything(q[0], 0.1, task, 0.3), atol=(256 + 24) * unit)
    assert np.abs(T[0, 3:]).max() <= 8 * unit  # half the difference of two equal sums of eight terms


def test_the_table_of_relevant_patterns_gives_gamma():
    task = pattern_task(10, 8, 5)
    bits, chance, label = patterns.relevant_patterns(5, task.positive, task.uniform_part)
    assert chance.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose((chance * label) @ bits, task.gamma, atol=1e-14)
    uneven = patterns.relevant_patterns(2, (1,), 0.2).probability  # 0.05 each, and 0.4 more for all off and all on
    np.testing.assert_allclose(uneven, [0.45, 0.05, 0.05, 0.45], rtol=1e-14)
    with pytest.raises(ValueError, match="at most 16, got 20"):
        patterns.relevant_patterns(20, (1,), 0.5)


def test_smoothed_ramp_is_the_mean_over_noise_and_its_slope_the_derivative(x64):
    z = jnp.linspace(-2, 3, 11)
    x = np.linspace(-8, 8, 16_001)
    w = norm.pdf(x) * 1e-3
    noisy = np.clip(np.asarray(z)[:, None] + 0.3 * x, 0, 1) @ w
    # trapezoids of width h = 1e-3: each of two kinks of slope 0.3 costs at most 0.3·h²/12·0.4 = 1e-8
    np.testing.assert_allclose(patterns.smoothed_ramp(z, 0.3), noisy, atol=3e-8)
    h = 1e-5  # error of the central difference h²/6 · f''' ≈ 1e-9
    difference = (patterns.smoothed_ramp(z + h, 0.3) - patterns.smoothed_ramp(z - h, 0.3)) / (2 * h)
    slope = jax.vmap(jax.grad(lambda t: patterns.smoothed_ramp(t, 0.3)))(z)
    np.testing.assert_allclose(slope, difference, atol=1e-8)


def test_signal_to_noise():
    T = jnp.array([[2.0, 4.0, 1.0, -1.0], [-3.0, -3.0, 0.0, 0.0]])
    ratio = patterns.signal_to_noise(T, 2)
    assert float(ratio[0]) == 3 and float(ratio[1]) > 1e30


def test_bounds():
    assert patterns.fixed_feature_loss(2, 1.0, 3, 0.5) == 0.5 * (1 - 2 / 8)
    assert patterns.fixed_feature_loss(10**6, 1.0, 3, 0.5) == 0
    needed = patterns.fixed_features_needed(0.1, 2.0, 10, 0.5)
    assert patterns.fixed_feature_loss(needed, 2.0, 10, 0.5) == pytest.approx(0.1, abs=1e-12)
    assert patterns.queries_needed(100, 5) == pytest.approx(0.5 * math.comb(100, 5) ** (1 / 3))
    assert round(patterns.queries_needed(100, 5)) == 211


@pytest.mark.slow
def test_components_with_a_gaussian_background_against_quadrature(x64):
    """The background as the formula takes it, a Gaussian of its variance, by 80 Gauss-Hermite nodes: the integrands are
    entire and vary over more than the spread, so that the rule is exact to rounding."""
    task, spread = pattern_task(9, 9, 3, background=0.3), 0.5
    rng = np.random.default_rng(4)
    q, b = rng.normal(size=(2, 9)) / 2, np.array([0.1, -0.2])
    chance, table = task.background, patterns.relevant_patterns(3, task.positive, task.uniform_part)
    values = np.array([1 - chance, -chance]) / task.scale  # φ_j of a pattern that is there, or not
    weights = np.array([chance, 1 - chance])
    variance = weights @ values**2 - (weights @ values) ** 2
    x, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()

    def slope(mean, others):
        z = mean[:, None] + np.sqrt(variance * np.sum(others**2)) * x
        return (norm.cdf(z / spread) - norm.cdf((z - 1) / spread)) @ w

    phi, signed = (table.bits - 0.5) / task.scale, table.probability * table.label
    T = patterns.gradient_components(
        jnp.asarray(q), jnp.asarray(b), table, background=chance, scale=task.scale, spread=spread
    )
    for i in range(2):
        mean = phi @ q[i, :3] + b[i]
        inside = (signed * slope(mean, q[i, 3:])) @ phi
        outside = [
            sum(p * v * signed @ slope(mean + v * q[i, j], np.delete(q[i, 3:], j - 3)) for p, v in zip(weights, values))
            for j in range(3, 9)
        ]
        np.testing.assert_allclose(T[i], [*inside, *outside], rtol=0, atol=1e-12)
