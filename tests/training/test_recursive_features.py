"""Machines learn the direction, whatever the units; gradients against differences; misuse."""

import jax
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.metric_gram import cross, metric_gram
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.one_step.algorithm import learn_features
from unlazy.training.options import RFMOptions
from unlazy.training.rfm.iteration import RfmStep, apply_steps, learn, metric_root, prune_metric


def single_index(n=150, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] ** 2 - 1)[:, None]


NNGP_2 = pytest.param(NNGP(MLP(2, sigma_b=1.0)), marks=pytest.mark.slow)


@pytest.mark.parametrize("kernel", [Gaussian(1.0), Laplace(1.0), NTK(MLP(1, sigma_b=1.0)), NNGP_2])
def test_the_direction_is_found(x64, kernel):
    """d = 6, n = 150 ≈ 4 d²: the first direction of M is u to within 0.1 (|cosine| 0.99 means an angle of 8°)."""
    X, Y = single_index()
    found = learn(kernel, X, Y, updates=4, relative_ridge=1e-4, options=RFMOptions(relative_bandwidth=2.0))
    assert [np.isclose(np.trace(it.matrix), 1) for it in found] == [True] * 5
    assert abs(np.linalg.eigh(found[-1].matrix)[1][0, -1]) > 0.99
    Z, truth = single_index(seed=1)
    errors = [np.mean((it.predict(kernel, X, Z) - truth) ** 2) for it in found]
    assert errors[-1] < 0.8 * errors[0]  # the plain Gaussian is good at squares already


@pytest.mark.parametrize(
    "kernel, metric", [pytest.param(Gaussian(1.0), "full", marks=pytest.mark.slow), (ProductLaplace(1.0), "diagonal")]
)
def test_units_do_not_matter(x64, kernel, metric):
    """Inputs × 1000, targets × 10 + 5: the same function. Rounding of a few fits of condition 1e6: ten digits less."""
    X, Y = single_index(80, 4)
    Z = single_index(20, 4, seed=1)[0]
    first = learn(kernel, X, Y, updates=2, options=RFMOptions(metric))[-1]
    second = learn(kernel, 1000 * X, 10 * Y + 5, updates=2, options=RFMOptions(metric))[-1]
    np.testing.assert_allclose(second.matrix, first.matrix, atol=1e-6)
    expected = 10 * first.predict(kernel, X, Z) + 5
    np.testing.assert_allclose(second.predict(kernel, 1000 * X, 1000 * Z), expected, atol=1e-4)


def test_l1_gradients_are_those_of_differences(x64):
    """Away from ties the kernel is smooth; symmetric differences of step 1e-6 are good to 1e-9."""
    rng = np.random.default_rng(0)
    X, alpha, L = rng.normal(size=(60, 3)), rng.normal(size=(60, 2)), np.array([1.0, 0.3, 2.0])
    kernel, h = ProductLaplace(1.0), 1e-6
    got = metric_gram(kernel, X, L).agop(2.0, alpha, diagonal=True)
    expected = np.zeros(3)
    for j in range(3):
        for i in range(60):
            others = np.arange(60) != i  # its own term has a kink there, whose derivative is left out
            up, down = (cross(kernel, X[i : i + 1] + s * h * np.eye(3)[j], X[others], L, 2.0) for s in (1, -1))
            expected[j] += np.sum(((up - down) @ alpha[others] / (2 * h)) ** 2) / 60
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.slow
def test_low_rank_keeps_the_top_directions(x64):
    X, Y = single_index()
    found = learn(Gaussian(1.0), X, Y, updates=2, options=RFMOptions(rank=2))
    assert found[0].map.shape == (6, 6) and found[-1].map.shape == (2, 6)
    whole = learn(Gaussian(1.0), X, Y, updates=1)[-1].matrix
    cut = learn(Gaussian(1.0), X, Y, updates=1, options=RFMOptions("low_rank", 2))[-1]
    top = np.linalg.eigvalsh(whole)[-2:]
    np.testing.assert_allclose(np.linalg.eigvalsh(cut.matrix)[-2:], top / top.sum(), rtol=1e-9)
    np.testing.assert_allclose(metric_root(cut.matrix).T @ metric_root(cut.matrix), cut.matrix, atol=1e-12)


@pytest.mark.slow
def test_one_step_metric_and_steps_chosen_elsewhere(x64):
    X, Y = single_index()
    W = np.asarray(learn_features(jax.numpy.asarray(X), jax.numpy.asarray(Y[:, 0]), key=jax.random.key(0)).W)
    options = RFMOptions(start=W.T @ W, relative_bandwidth=1.0)
    found = learn(Gaussian(1.0), X, Y, updates=1, relative_ridge=1e-3, options=options)
    np.testing.assert_allclose(found[0].matrix, W.T @ W / np.trace(W.T @ W), atol=1e-12)
    M = apply_steps([RfmStep(Gaussian(1.0), 1.0, 1e-3)], X, Y, "full", start=W.T @ W)
    np.testing.assert_allclose(M, found[1].matrix, atol=1e-12)


@pytest.mark.slow
def test_power_slows_the_metric_down(x64):
    X, Y = single_index()
    plain, slow = (learn(Gaussian(1.0), X, Y, updates=1, options=RFMOptions(power=p))[-1].matrix for p in (1.0, 0.5))
    a, b = np.linalg.eigvalsh(plain), np.linalg.eigvalsh(slow)
    np.testing.assert_allclose(b, np.sqrt(a) / np.sqrt(a).sum(), rtol=1e-6)


def test_pruning_removes_the_floor():
    M = np.array([0.5, 0.4, 0.03, 0.03, 0.04])
    np.testing.assert_allclose(prune_metric(M, 1.0), np.array([0.46, 0.36, 0, 0, 0]) / 0.82)
    np.testing.assert_allclose(prune_metric(np.diag(M), 1.0), np.diag(prune_metric(M, 1.0)), atol=1e-15)
    assert prune_metric(np.full(3, 1 / 3), 2.0).sum() == pytest.approx(1)  # nothing would be left: nothing is taken


def test_misuse():
    X, Y = single_index(20)
    with pytest.raises(ValueError, match="metric='diagonal'"):
        learn(ProductLaplace(1.0), X, Y)
    with pytest.raises(ValueError, match="2 updates need 2 powers, got 1"):
        learn(Gaussian(1.0), X, Y, updates=2, options=RFMOptions(power=[1.0]))
    with pytest.raises(ValueError, match="no entry formula"):
        metric_gram(Gaussian(1.0) + ProductLaplace(1.0), X, np.ones(6))
