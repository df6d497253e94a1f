"""Pattern tasks: γ, σ̃, parts and the majority vote, exactly by enumeration and by sampling [P1, P2]."""

import itertools
import math

import jax
import numpy as np
import pytest

from unlazy import tasks

KEY = jax.random.key(11)


def enumerate_relevant(k, share):
    """All patterns of A with their probabilities under the mixture."""
    for bits in itertools.product((0, 1), repeat=k):
        weight = share / 2**k + (1 - share) / 2 * (sum(bits) in (0, k))
        yield np.array(bits), weight


@pytest.mark.parametrize(
    ("k", "positive", "share"), [(5, (1, 3, 5), 0.5), (3, (1, 3), 0.25), (4, (2, 4), 0.5), (5, (3, 4, 5), 0.75)]
)
def test_gamma_and_balance_by_enumeration(k, positive, share):
    task = tasks.pattern_task(8, 6, k, positive=positive, uniform_part=share)
    rows = [(b, w, 1 if sum(b) in positive else -1) for b, w in enumerate_relevant(k, share)]
    mean_label = sum(w * y for _, w, y in rows)
    mean_bit = sum(w * b[0] for b, w, _ in rows)
    gamma = sum(w * y * b[0] for b, w, y in rows) - mean_label * mean_bit
    assert task.gamma == pytest.approx(gamma, abs=1e-14)
    assert task.balance == pytest.approx(mean_label, abs=1e-14)
    assert task.information_exponent == 1


def test_parity_has_the_gamma_of_the_paper_and_the_majority_line():
    task = tasks.pattern_task(20, 10, 5)
    assert task.gamma == (1 - 0.5) / 2 and task.balance == 0
    assert task.majority_accuracy == (27 / 32, 22 / 32)
    hidden = tasks.pattern_task(20, 10, 5, structured=False)
    assert hidden.gamma == 0
    assert (hidden.information_exponent, hidden.leap) == (5, 5)


@pytest.mark.slow
def test_samples_have_the_declared_moments_parts_and_labels():
    task = tasks.pattern_task(12, 10, 5, uniform_part=0.4, background=0.2, key=KEY)
    data, parts = task.sample_parts(KEY, 20_000)
    X, y, parts = np.asarray(data.X, float), np.asarray(data.y), np.asarray(parts)
    np.testing.assert_array_equal(data.X, task.sample(KEY, 20_000).X)
    M = np.asarray(task.M, float)
    np.testing.assert_allclose(M.T @ M, np.eye(10), atol=1e-6)
    phi = X @ M * task.scale + np.array([0.5] * 5 + [0.2] * 5)
    bits = np.round(phi)
    assert np.max(np.abs(phi - bits)) < 1e-4 and set(np.unique(bits)) == {0.0, 1.0}  # float32 rounding
    count = bits[:, :5].sum(1)
    np.testing.assert_array_equal(y, np.where(count % 2 == 1, 1, -1))
    assert np.all(np.isin(count[parts == 2], (0, 5)))
    four = 4 / math.sqrt(20_000)
    assert abs(np.mean(parts == 1) - 0.4) <= four * math.sqrt(0.24)
    assert abs(np.mean(np.sum(X**2, 1)) - 1) <= four * np.std(np.sum(X**2, 1))  # σ̃² = Σ Var
    for i in range(5):
        products = y * (bits[:, i] - 0.5)
        assert abs(products.mean() - task.gamma) <= four * products.std()
    assert np.max(np.abs(bits[:, 5:].mean(0) - 0.2)) <= four * 0.4
    vote = np.where(count > 2.5, 1, -1) == y
    overall, first = task.majority_accuracy
    assert abs(vote.mean() - overall) <= four * 0.5
    assert abs(vote[parts == 1].mean() - first) <= 4 * 0.5 / math.sqrt(np.sum(parts == 1))


def test_the_feature_is_the_sum_of_relevant_columns():
    task = tasks.pattern_task(7, 5, 3, key=KEY)
    np.testing.assert_allclose(task.feature, np.asarray(task.M)[:, :3].sum(1), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(d=4, dictionary=5, k=3), "do not fit in dimension 4"),
        (dict(d=9, dictionary=5, k=6), "do not fit in a dictionary of 5"),
        (dict(d=9, dictionary=5, k=4), "odd k"),
        (dict(d=9, dictionary=5, k=3, positive=()), "some but not all"),
        (dict(d=9, dictionary=5, k=3, positive=(0, 1, 2, 3)), "some but not all"),
        (dict(d=9, dictionary=5, k=3, positive=(7,)), "some but not all"),
        (dict(d=9, dictionary=5, k=3, uniform_part=1.5), "uniform_part"),
        (dict(d=9, dictionary=5, k=3, background=0.7), "background"),
        (dict(d=9, dictionary=5, k=0), "positive integer"),
    ],
)
def test_misuse_raises(options, says):
    with pytest.raises(ValueError, match=says):
        tasks.pattern_task(**options)
