"""The convex ReLU network: an oracle that no search beats, certificates that dense sampling confirms."""

import numpy as np
import pytest

from unlazy.solvers.convex.relu_cells import arrangement_cells, candidate_maxima
from unlazy.solvers.convex.relu_network import convex_relu_network


def sphere(rng, m, d):
    W = rng.normal(size=(m, d))
    return W / np.linalg.norm(W, axis=1, keepdims=True)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_direction_beats_the_oracle(d, seed):
    """200,000 random directions, the best refined in shrinking caps, against the exact maximum."""
    rng = np.random.default_rng(seed)
    X, u = rng.normal(size=(15, d)), rng.normal(size=15)
    C, values = candidate_maxima(arrangement_cells(X), u)
    np.testing.assert_allclose(np.linalg.norm(C, axis=1), 1, atol=1e-12)
    W = sphere(rng, 200_000, d)
    found = np.abs(np.maximum(W @ X.T, 0) @ u)
    best, at = found.max(), W[found.argmax()]
    for radius in 0.5 ** np.arange(4, 40, 2):
        near = at + radius * rng.normal(size=(200, d))
        near /= np.linalg.norm(near, axis=1, keepdims=True)
        tried = np.abs(np.maximum(near @ X.T, 0) @ u)
        if tried.max() > best:
            best, at = tried.max(), near[tried.argmax()]
    exact = np.abs(values).max()
    assert exact >= best * (1 - 1e-12)
    assert exact <= best * (1 + 1e-4)  # the search ends near the maximum: caps of 1e-5, slopes of order one


@pytest.mark.parametrize("d, n", [(2, 20), (3, 20)])
@pytest.mark.parametrize("seed", [0, 1])
def test_certificate(d, n, seed):
    """Optimality of a convex problem, checked on a dense sample of the sphere: |Σ u_i ReLU(w·x_i)| ≤ λ everywhere, = λ
    at the neurons. A relative gap of 1e-6 bounds both to its square root."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = rng.normal(size=n)
    penalty = 0.3
    fit = convex_relu_network(X, y, penalty=penalty)
    assert fit.converged and 0 <= fit.gap <= 1e-6 and len(fit.a) <= n
    u = y - fit(X)
    np.testing.assert_allclose(fit.objective, 0.5 * u @ u + penalty * fit.variation_norm, rtol=1e-10)
    slack = np.abs(np.maximum(sphere(rng, 100_000, d) @ X.T, 0) @ u)
    assert slack.max() <= penalty * (1 + 1e-2)
    at_neurons = np.maximum(fit.W @ X.T, 0) @ u * np.sign(fit.a)
    np.testing.assert_allclose(at_neurons[np.abs(fit.a) > 1e-2], penalty, rtol=1e-2)


@pytest.mark.slow
def test_a_single_neuron_is_found():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    w = np.array([0.6, 0.0, 0.8])
    fit = convex_relu_network(X, np.maximum(X @ w, 0), penalty=1e-3)
    k = np.abs(fit.a).argmax()
    assert fit.W[k] @ w > 0.999 and abs(fit.a[k]) > 0.9


def test_neurons_that_depend_on_each_other_do_not_stall_it():
    """Two teachers' neurons and this draw: on the way some neuron is a combination of the others, and the weights'
    correction has no unique answer."""
    rng = np.random.default_rng(58)
    X, W = rng.normal(size=(24, 3)), rng.normal(size=(2, 3))
    y = np.maximum(X @ (W / np.linalg.norm(W, axis=1)[:, None]).T, 0) @ np.array([1.0, -1.0]) / np.sqrt(2)
    found = convex_relu_network(X, y, penalty=24e-4)
    assert found.converged and found.gap <= 1e-6


def test_misuse_raises():
    X, y = np.zeros((3, 4)), np.zeros(3)
    with pytest.raises(ValueError, match="2 or 3 dimensions only, got d = 4"):
        convex_relu_network(X, y, penalty=1.0)
    with pytest.raises(ValueError, match="penalty must be positive"):
        convex_relu_network(X[:, :3], y, penalty=0.0)
