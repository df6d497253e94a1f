"""Entries and derivatives on the host against the Gram matrices and gradients that the device computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.metric import Metric
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.products import agop, metric_gram
from unlazy.products.engines import numpy_engine
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import evenly_spaced_rows

KERNELS = {
    "gaussian": Gaussian(1.0),
    "laplace": Laplace(1.0),
    "matern": Matern(1.0, 2.5),
    "ntk": NTK(MLP(2, sigma_b=0.5)),
}


def rows(n=220, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.slow_cases("ntk")
@pytest.mark.parametrize("name", KERNELS)
def test_entries_are_those_of_the_gram_matrix(x64, name):
    """220² entries are more than one block and not a multiple of it; one row twice."""
    X, kernel, L = rows(), KERNELS[name], np.array([1.0, 0.5, 0.0, 2.0])
    X[7] = X[3]
    K = metric_gram.metric_gram(kernel, X, L).gram(1.5)
    reference = np.asarray(Metric(kernel, jnp.asarray(L / 1.5)).gram(jnp.asarray(X)))
    # distances come from inner products in both: ‖x-z‖² is good to 1e-15, its root at coincident points is exact
    np.testing.assert_allclose(K, reference, rtol=0, atol=1e-12)
    assert K[3, 7] == K[3, 3]


@pytest.mark.slow_cases("ntk")
@pytest.mark.parametrize("name", KERNELS)
def test_agop_equals_that_of_products(x64, name):
    X, kernel = rows(120), KERNELS[name]
    L = np.random.default_rng(1).normal(size=(3, 4))
    alpha = np.random.default_rng(2).normal(size=(120, 2))
    M = metric_gram.metric_gram(kernel, X, L).agop(2.0, alpha, diagonal=False)
    reference = np.asarray(agop(Metric(kernel, jnp.asarray(L / 2.0)), *map(jnp.asarray, (X, X, alpha))))
    np.testing.assert_allclose(M, reference, rtol=1e-8, atol=1e-8 * np.abs(reference).max())
    diagonal = metric_gram.metric_gram(kernel, X, L).agop(2.0, alpha, diagonal=True)
    np.testing.assert_allclose(diagonal, np.diag(M), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel", [Gaussian(1.5), Laplace(0.7), Matern(2.0, 0.5), Matern(2.0, 1.5), Matern(2.0, 2.5),
               RationalQuadratic(1.3, 0.6)],
)  # fmt: skip
def test_distance_formulas_run_in_numpy_on_the_host(kernel, x64):
    """The same numbers as a program's but for the rounding of a root, a power and an exponential of at most 9."""
    D = np.concatenate([[0.0, -0.0], np.geomspace(1e-12, 40, 50)]).reshape(4, 13)
    ours = kernel.of_distance(D)
    assert isinstance(ours, np.ndarray) and kernel.of_distance(D.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(ours, kernel.of_distance(jnp.asarray(D)), rtol=60 * np.finfo(float).eps)
    np.testing.assert_array_equal(numpy_engine.Distances(D).entries(kernel, 2.0), kernel.of_distance(D / 4))


def test_a_traced_bandwidth_stays_traced(x64):
    """Distances are NumPy's, the bandwidth is not: k' = D/h³ · k for the Gaussian, at D = 2 and h = 1."""
    found = jax.grad(lambda h: Gaussian(h).of_distance(np.array([2.0]))[0])(1.0)
    np.testing.assert_allclose(found, 2 * np.exp(-1), rtol=1e-14)


def test_close_rows_count_as_one():
    X = rows(3)
    X[1] = X[0] * (1 + 1e-16)
    assert numpy_engine.squared_distances(X)[0, 1] == 0
    assert numpy_engine.squared_distances(X, X[:2])[2, 0] > 0


def test_many_columns_average_signs_over_fewer_rows(monkeypatch):
    """The ℓ1 kernel: ∂_j f = -(1/h) Σ_i α_i k(x, x_i) sign(x_j - x_ij), averaged over as many rows as pairs allow."""
    X, h = rows(40, 6), 3.0
    alpha = np.random.default_rng(2).normal(size=(40, 1))
    K = np.exp(-np.abs(X[:, None] - X).sum(2) / h)
    slopes = -np.einsum("ik,k,ikj->ij", K, alpha[:, 0], np.sign(X[:, None] - X)) / h

    def found():
        return metric_gram.metric_gram(ProductLaplace(1.0), X, np.ones(6)).agop(h, alpha, diagonal=True)

    np.testing.assert_allclose(found(), np.mean(slopes**2, 0), rtol=1e-12)  # sums of 40 terms in float64
    monkeypatch.setattr(metric_gram, "SIGNS", 12 * 40 * 6)
    monkeypatch.setattr(metric_gram, "FEW_GRADIENTS", 5)
    np.testing.assert_allclose(found(), np.mean(slopes[evenly_spaced_rows(40, 12)] ** 2, 0), rtol=1e-12)
    monkeypatch.setattr(metric_gram, "SIGNS", 1)
    np.testing.assert_allclose(found(), np.mean(slopes[evenly_spaced_rows(40, 5)] ** 2, 0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_signs_of_the_l1_kernel_with_and_without_ties(dtype, monkeypatch):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 4)).astype(dtype)
    X[:, 2] = np.round(X[:, 2])
    X[7, 3], X[9, 3] = 0.0, -0.0
    rows = np.arange(0, 30, 3)
    weights = rng.normal(size=(len(rows), 30)).astype(dtype)
    seen = metric_gram.metric_gram(ProductLaplace(1.0), X, np.ones(4, dtype))
    for block in (30, 90, 10_000):
        monkeypatch.setattr(metric_gram, "CACHED", block)
        for j in range(4):
            sign = np.sign(X[rows, j][:, None].astype(float) - X[:30, j].astype(float))
            bound = 30 * np.finfo(dtype).eps * np.abs(weights).sum(1)  # a sum of 30 in any order
            assert (np.abs(seen._signed(j, rows, 30, weights) - (weights * sign).sum(1)) <= bound).all()


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_columns_outside_the_metric_cost_and_change_nothing(x64, name):
    """A diagonal with zeros is the diagonal of the other columns: the same numbers but for the order of sums."""
    X, kernel, L = rows(90, 6), KERNELS[name], np.array([1.0, 0.0, 0.5, 0.0, 0.0, 2.0])
    alpha, some = np.random.default_rng(2).normal(size=(90, 2)), np.arange(0, 90, 7)
    used = np.flatnonzero(L)
    seen, alone = metric_gram.metric_gram(kernel, X, L), metric_gram.metric_gram(kernel, X[:, used], L[used])
    assert seen.F.shape == alone.F.shape
    tolerance = {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_allclose(seen.gram(1.5), alone.gram(1.5), **tolerance)
    diagonal, full = np.zeros(6), np.zeros((6, 6))
    diagonal[used], full[np.ix_(used, used)] = (alone.agop(1.5, alpha, one) for one in (True, False))
    np.testing.assert_allclose(seen.agop(1.5, alpha, True), diagonal, **tolerance)
    np.testing.assert_allclose(seen.agop(1.5, alpha, False), full, **tolerance)
    slopes = np.zeros((len(some), 2, 6))
    slopes[:, :, used] = alone.slopes(1.5, alpha, some)
    np.testing.assert_allclose(seen.slopes(1.5, alpha, some), slopes, **tolerance)


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_signs_of_tied_columns_are_zero(x64, digits):
    """No tie, some, and nearly all pairs; 0 and -0 are tied. Sums of 80 terms of size one: 80 roundings each."""
    X = np.round(rows(80, 3), digits)
    X[:4, 0], X[4:6, 1] = (0.0, -0.0, 0.0, 1.0), -0.0
    weights, some = np.random.default_rng(3).normal(size=(20, 80)), np.arange(0, 80, 4)
    seen = metric_gram.metric_gram(ProductLaplace(1.0), X, np.ones(3))
    for j in range(3):
        expected = np.sum(weights * np.sign(X[some, None, j] - X[None, :, j]), 1)
        np.testing.assert_allclose(seen._signed(j, some, 80, weights), expected, rtol=0, atol=80 * 4 * 2**-53 * 80)


@pytest.mark.parametrize("kernel", [Gaussian(1.3), Laplace(0.7)])
def test_slopes_of_distances_are_derivatives(kernel):
    """Central differences: third derivatives below 200 times step² = 1e-10, and rounding 1e-16 over the step."""
    D, step = np.array([0.05, 0.3, 1.0, 4.0]), 1e-5
    expected = (kernel.of_distance(D + step) - kernel.of_distance(D - step)) / (2 * step)
    np.testing.assert_allclose(kernel.distance_slope(D), expected, rtol=0, atol=1e-7)
    assert kernel.distance_slope(np.zeros(1))[0] == (0 if isinstance(kernel, Laplace) else -0.5 / 1.3**2)
    assert np.isnan(kernel.distance_slope(np.array([np.nan])))[0]
