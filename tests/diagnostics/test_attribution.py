"""Attribution: exact for linear networks, finite differences for others, one sentence for wrong use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import TangentOptions, attribution
from unlazy.diagnostics.suspects import left_out_by_neighbors, rank_suspects

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(25, 3)), RNG.normal(size=(4, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=25)
TAU = 0.8
PRECISE = TangentOptions(dtype="float64")


def linear(w, X):
    return X @ w


def ridge(rows):
    """Minimizes ½ Σ (f - y)² + τ/2 ‖w‖² over some rows."""
    return np.linalg.solve(X[rows].T @ X[rows] + TAU * np.eye(3), X[rows].T @ Y[rows])


@pytest.mark.parametrize("method", ["primal", "dual", "iterative"])
def test_leaving_out_a_row_is_exact_for_linear_networks(method):
    everything = np.arange(25)
    options = TangentOptions(dtype="float64", method=method, tolerance=1e-13)
    found = attribution((linear, ridge(everything)), X, Y, Z, loss="squared", prior_precision=TAU, options=options)
    expected = np.stack([Z @ (ridge(np.delete(everything, i)) - ridge(everything)) for i in everything], 1)
    np.testing.assert_allclose(found.left_out(), expected, atol=1e-10)
    assert found.gap < 1e-6


def test_losses_of_frameworks():
    """mean((f - y)²) + λ/2 ‖w‖² over n rows is ½ Σ (f - y)² + n λ/4 ‖w‖²."""
    w = ridge(np.arange(25))
    by_decay = attribution((linear, w), X, Y, Z, decay=2 * TAU / 25, options=PRECISE)
    by_precision = attribution((linear, w), X, Y, Z, loss="squared", prior_precision=TAU, options=PRECISE)
    np.testing.assert_allclose(by_decay.scores, by_precision.scores, rtol=1e-10)
    assert by_decay.measure == "output"


def test_scores_are_derivatives_by_the_weights_of_rows():
    """Of the minimum of a softmax regression, by retraining with other weights: Newton's method, to its end."""
    y = RNG.integers(0, 3, 25)

    def objective(w, weights):
        f = X @ w.reshape(3, 3)
        losses = jax.nn.logsumexp(f, 1) - jnp.take_along_axis(f, y[:, None], 1)[:, 0]
        return jnp.sum(weights * losses) + TAU / 2 * jnp.sum(w**2)

    def retrain(weights):
        w = jnp.zeros(9)
        for _ in range(20):
            w = w - jnp.linalg.solve(jax.hessian(objective)(w, weights), jax.grad(objective)(w, weights))
        return w

    def margins(w):
        f = Z @ w.reshape(3, 3)
        right = f[np.arange(4), targets]
        return right - jax.nn.logsumexp(jnp.where(np.eye(3)[targets] > 0, -jnp.inf, f), 1)

    def losses(w):
        f = Z @ w.reshape(3, 3)
        return jax.nn.logsumexp(f, 1) - f[np.arange(4), targets]

    targets, h = np.array([0, 2, 1, 1]), 1e-4
    with jax.enable_x64(True):
        w = np.asarray(retrain(jnp.ones(25)))
        for name, of in (("margin", margins), ("loss", losses)):
            network = (lambda w, X: X @ w.reshape(3, 3), w)
            found = attribution(network, X, y, Z, targets, measure=name, prior_precision=TAU, options=PRECISE)
            for i in (0, 7):
                ends = [of(retrain(jnp.ones(25).at[i].add(sign * h))) for sign in (1, -1)]
                slope = np.asarray(ends[0] - ends[1]) / (2 * h)
                np.testing.assert_allclose(found.scores[:, i], slope, atol=1e-6 * np.abs(found.scores).max())


def test_groups_and_top():
    found = attribution((linear, ridge(np.arange(25))), X, Y, Z, prior_precision=TAU, options=PRECISE)
    rows = np.array([3, 8])
    np.testing.assert_allclose(found.group(rows), -found.scores[:, 3] - found.scores[:, 8])
    np.testing.assert_allclose(found.group(np.array([3, 8, 3])), found.group(rows))  # left out once
    mask = np.isin(np.arange(25), rows)
    np.testing.assert_allclose(found.group(mask), found.group(rows))
    top = found.top(3, query=2)
    assert list(top.rows) == list(np.argsort(-np.abs(found.scores[2]))[:3])
    np.testing.assert_array_equal(top.scores, found.scores[2, top.rows])
    assert "25 rows on the output of 4 queries" in str(found)


def test_margin_of_the_predicted_class():
    p = RNG.normal(size=(3, 3))
    network, y = (linear, p), RNG.integers(0, 3, 25)
    predicted = (Z @ p).argmax(1)
    alone = attribution(network, X, y, Z, prior_precision=TAU, options=PRECISE)
    named = attribution(network, X, y, Z, predicted, prior_precision=TAU, options=PRECISE)
    np.testing.assert_allclose(alone.scores, named.scores)
    assert alone.measure == "margin"


def test_precision_by_the_evidence_without_decay():
    found = attribution((linear, ridge(np.arange(25))), X, Y, Z, options=PRECISE)
    assert 0 < found.prior_precision < 25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decay": 1e-3, "prior_precision": 1.0}, "not both"),
        ({"decay": 0.0}, "decay must be positive"),
        ({"measure": "accuracy"}, "unknown measure 'accuracy'"),
        ({"measure": "loss"}, "needs the targets of the queries"),
        ({"measure": "margin"}, "belongs to classification"),
        ({"y": Y[:3]}, "one entry per row"),
        ({"query_targets": Y[:3]}, "one entry per row"),
    ],
)
def test_wrong_use(change, message):
    known = {"y": Y} | change
    with pytest.raises(ValueError, match=message):
        attribution((linear, ridge(np.arange(25))), X, known.pop("y"), Z, **known)


def test_several_outputs_need_a_choice():
    network = (linear, RNG.normal(size=(3, 2)))
    with pytest.raises(ValueError, match="has 2 outputs"):
        attribution(network, X, np.stack([Y, Y], 1), Z, measure="output")


def moons(n):
    """Two classes that are apart, of which some labels are wrong."""
    rng = np.random.default_rng(1)
    points, y = rng.normal(size=(n, 2)), rng.integers(0, 2, n)
    points[:, 0] += 4 * y
    wrong = rng.permutation(n)[: n // 10]
    y[wrong] = 1 - y[wrong]
    return points, y, wrong


def test_suspects_find_wrong_labels():
    points, y, wrong = moons(100)
    w = np.array([[-1.0, 1.0], [0.0, 0.0]])
    found = attribution((lambda w, X: (X - np.array([2.0, 0.0])) @ w, w), points, y, points[:1], decay=1e-2).suspects()
    assert set(wrong) <= set(found.rows[:15])
    assert np.all(np.diff(found.scores) <= 0)
    assert found.scores[0] <= 1
    assert found.scores[-1] >= 0
    assert 0.05 < found.by_neighbors < 0.2


def test_a_network_that_fits_wrong_labels_is_no_witness():
    points, y, wrong = moons(100)
    labels = np.eye(2)[y]
    noise = np.random.default_rng(0).uniform(size=(100, 2))
    order = rank_suspects(points, labels, labels, noise, True).rows
    np.testing.assert_array_equal(order, rank_suspects(points, labels, labels, labels, True).rows)
    general = np.eye(2)[(points[:, 0] > 2).astype(int)]  # fits what can be predicted
    assert not np.array_equal(order, rank_suspects(points, labels, general, noise, True).rows)
    assert len(set(wrong) & set(order[:15])) >= 8  # by chance 1.5


def test_neighbors_leave_out_the_row_itself():
    """A row whose label nobody shares is predicted from the others alone."""
    points, y, _ = moons(60)
    labels = np.eye(2)[y]
    before = left_out_by_neighbors(points, labels)
    labels[7] = 1 - labels[7]
    after = left_out_by_neighbors(points, labels)
    offset = (labels.mean(0) - (labels.mean(0) - (2 * labels[7] - 1) / 60)).max()
    assert np.abs(after[7] - before[7]).max() <= 2 * offset  # by the mean of all labels alone
