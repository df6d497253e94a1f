"""The verdict on laziness: exact for linear functions, and for one whose kernel changes completely."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.measures.laziness import Laziness, explained_share, laziness

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3))


@pytest.mark.slow
def test_a_linear_function_is_lazy(x64):
    """f = X w: the change is linear exactly and the kernel X Xᵀ stays."""
    found = laziness(lambda w, X: X @ w, jnp.ones(3), jnp.asarray([3.0, -1.0, 0.5]), X)
    assert found.verdict == "lazy"
    assert abs(found.linear - 1) < 1e-12 and found.movement == 0
    assert found.explained_at_start > 0.999  # three features seen at 18 points; the jitter costs 1e-6 of them
    assert [layer.share_at_end for layer in found.layers] == [1.0]
    assert "lazy: 100%" in str(found)


@pytest.mark.slow
def test_a_function_that_learns_features(x64):
    """f = a (x·w) with a from 1 to 3 and w from e_1 to 3 e_2, by hand:

    K_a = (x·w)(z·w), K_w = a² x·z. The linearization gives a δ_w·x + δ_a w·x = 3 x_2 - x_1 + 2 x_1, the change is
    9 x_2 - x_1.
    """
    before, after = {"a": jnp.ones(()), "w": jnp.eye(3)[0]}, {"a": 3 * jnp.ones(()), "w": 3 * jnp.eye(3)[1]}
    found = laziness(lambda p, X: p["a"] * (X @ p["w"]), before, after, X)
    change, linear = 9 * X[:, 1] - X[:, 0], 3 * X[:, 1] + X[:, 0]
    start = np.outer(X[:, 0], X[:, 0]) + X @ X.T
    end = 9 * np.outer(X[:, 1], X[:, 1]) + 9 * X @ X.T
    assert found.verdict == "learns features"
    np.testing.assert_allclose(found.linear, 1 - np.sum((change - linear) ** 2) / np.sum(change**2), rtol=1e-10)
    np.testing.assert_allclose(found.movement, np.linalg.norm(end - start) / np.linalg.norm(start), rtol=1e-10)
    head = found.layers[0]
    np.testing.assert_allclose(head.share_at_start, np.sum(X[:, 0] ** 2) / np.trace(start), rtol=1e-10)
    assert head.parameters == 2.0
    assert len(found.figure().axes) == 2


@pytest.mark.slow
def test_kernels_explain_what_they_span():
    K = jnp.asarray(X @ X.T)
    assert explained_share(K, jnp.asarray(X[:, :1])) > 0.999  # float32's jitter costs 1e-4
    assert explained_share(K, jnp.asarray(X[:, :1] * X[:, 1:2])) < 0.5  # a product is no linear function
    with pytest.raises(ValueError, match="too few"):
        explained_share(K[:4, :4], jnp.asarray(X[:4, :1]))


def test_no_change_raises():
    with pytest.raises(ValueError, match="did not change"):
        laziness(lambda w, X: X @ w, jnp.ones(3), jnp.ones(3), X)


@pytest.mark.slow
def test_training_of_the_head_alone_is_lazy(x64):
    """f = a·tanh(X W): linear in a. The kernel of W grows with a, but W was not trained."""
    W = np.random.default_rng(1).normal(size=(3, 5))
    before, after = {"W": W, "a": jnp.arange(1.0, 6)}, {"W": W, "a": -2 * jnp.arange(1.0, 6)}
    found = laziness(lambda p, X: jnp.tanh(X @ p["W"]) @ p["a"], before, after, X)
    assert found.verdict == "lazy"
    assert abs(found.linear - 1) < 1e-12 and found.movement == 0
    hidden, head = found.layers
    assert hidden.parameters == 0 and hidden.movement > 0.3 and head.movement == 0


@pytest.mark.parametrize(
    ("linear", "movement", "verdict"),
    [
        (0.91, 0.29, "lazy"), (0.89, 0.31, "learns features"),
        (0.89, 0.29, "intermediate"), (0.91, 0.31, "intermediate"),
    ],
)  # fmt: skip
def test_thresholds_of_the_verdict(linear, movement, verdict):
    """The documented thresholds, 0.9 and 0.3, from both sides."""
    assert Laziness(*map(jnp.asarray, (linear, movement, 1.0, 1.0)), ()).verdict == verdict


def test_other_shapes_are_rejected():
    with pytest.raises(ValueError, match="same structure and shapes"):
        laziness(lambda w, X: X @ w, jnp.ones(3), jnp.ones((3, 2)), X)
    with pytest.raises(ValueError, match="same structure and shapes"):
        laziness(lambda w, X: X @ w["a"], {"a": jnp.ones(3)}, {"b": jnp.ones(3)}, X)
