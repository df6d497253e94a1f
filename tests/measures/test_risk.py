"""Risk, normalized risk and accuracy against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.measures.risk import accuracy, normalized_risk, risk

RNG = np.random.default_rng(0)
TRUTH, GUESS = RNG.normal(size=(40, 3)), RNG.normal(size=(40, 3))
EPS = float(jnp.finfo(jnp.float32).eps)


def as_jax(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


def test_risk_and_normalized_risk_equal_numpys():
    truth, guess = as_jax(TRUTH, GUESS)
    expected = np.mean(np.sum((GUESS - TRUTH) ** 2, 1))
    # Sums of 120 float32 terms: at most 120 roundings.
    assert float(risk(guess, truth)) == pytest.approx(expected, rel=120 * EPS)
    spread = np.mean(np.sum((TRUTH - TRUTH.mean(0)) ** 2, 1))
    assert float(normalized_risk(guess, truth)) == pytest.approx(expected / spread, rel=300 * EPS)
    assert float(normalized_risk(truth.mean(0) + 0 * truth, truth)) == pytest.approx(1, rel=300 * EPS)


def test_zero_weights_equal_removing_the_rows():
    truth, guess = as_jax(TRUTH[:, 0], GUESS[:, 0])
    weights = (jnp.arange(40) < 25).astype(jnp.float32)
    for measure in (risk, normalized_risk, accuracy):
        assert float(measure(guess, truth, weights)) == pytest.approx(
            float(measure(guess[:25], truth[:25])), rel=200 * EPS
        )


def test_normalized_risk_of_a_constant_truth():
    constant = jnp.ones(5)
    assert float(normalized_risk(constant, constant)) == 0
    assert float(normalized_risk(2 * constant, constant)) == np.inf


def test_accuracy_by_sign_and_by_largest_column():
    guesses, labels = jnp.array([0.2, -3.0, 1.0, 0.0]), jnp.array([1.0, -1.0, -1.0, 1.0])
    assert float(accuracy(guesses, labels)) == pytest.approx(2.5 / 4)
    one_hot = jnp.eye(3)[jnp.array([0, 1, 2, 1])]
    scores = jnp.array([[0.5, 0.1, 0.1], [0.1, 0.9, 0.2], [0.3, 0.2, 0.1], [0.0, 1.0, 0.5]])
    assert float(accuracy(scores, one_hot)) == pytest.approx(3 / 4)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"shape \(4, 1\)"):
        risk(jnp.zeros((4, 1)), jnp.zeros(4))
