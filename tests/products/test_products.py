"""Every way to multiply by K against the Gram matrix in float64 (NumPy), for kernels with and without a formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import gram, matmul, multiply, product, rmatmul
from unlazy.products.engines import blocked
from unlazy.theory.infinite_width.architecture import MLP


class Product1(Kernel):
    """Π exp(-|x_j - z_j|): not a formula of inner products."""

    def gram(self, X, Z=None, accurate=False):
        Z = X if Z is None else Z
        return jnp.exp(-jnp.abs(X[:, None, :] - Z[None, :, :]).sum(-1))

    def diag(self, X):
        return jnp.ones(X.shape[0], X.dtype)


KERNELS = {"gaussian": Gaussian(2.0), "laplace": Laplace(2.0), "ntk": NTK(MLP(3, sigma_b=0.3)), "l1": Product1()}
N, M, D = 900, 300, 5


def points(n, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(n, D)).astype(dtype)


def exact(kernel, X, Z):
    """K in float64 from float32 inputs."""
    with jax.enable_x64(True):
        return np.asarray(kernel.gram(jnp.asarray(X, jnp.float64), jnp.asarray(Z, jnp.float64), accurate=True))


def rounding_bound(K, V, extra=1.0):
    """Bound on the rounding of K @ V in float32: sums of m terms lose at most about √m·2^-24 of Σ|K||V| when errors
    are independent (4 such), and entries carry some 8 roundings of their own, √D-type kernels more near x = z."""
    return extra * (4 * np.sqrt(K.shape[1]) + 16) * 2.0**-24 * (np.abs(K) @ np.abs(V))


@pytest.mark.slow_cases("blocked-ntk", "stored-gaussian", "stored-ntk", "stored-l1", "blocked-laplace")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("engine", ["stored", "blocked"])
def test_products_agree_with_the_gram_in_float64(name, engine):
    kernel, X = KERNELS[name], points(N)
    Z = np.concatenate([X[:50], points(M - 50, 1)])  # coincident points on purpose
    K = exact(kernel, X, Z)
    V, U = points(M, 2)[:, :3], points(N, 3)[:, :3]
    K_hat = product(kernel, X, Z, engine=engine)
    # Laplace and NTK lose √rounding next to x = z; these sets have no such pairs besides the exact ones
    assert np.all(np.abs(K_hat.matmul(V) - K @ V) <= rounding_bound(K, V, 4))
    assert np.all(np.abs(K_hat.rmatmul(U) - K.T @ U) <= rounding_bound(K.T, U, 4))
    assert np.all(np.abs(K_hat.normal(V) - K.T @ (K @ V)) <= rounding_bound(np.abs(K.T) @ np.abs(K), np.abs(V), 8))
    assert K_hat.shape == (N, M) and K_hat.engine == engine


def test_one_column_keeps_its_shape_and_both_orientations_agree():
    X, Z, v = points(N), points(M, 1), points(M, 2)[:, 0]
    kernel = KERNELS["gaussian"]
    K = exact(kernel, X, Z)
    tall, wide = matmul(kernel, X, Z, jnp.asarray(v)), rmatmul(kernel, jnp.asarray(Z), jnp.asarray(X), jnp.asarray(v))
    assert tall.shape == (N,) and wide.shape == (N,)
    assert np.all(np.abs(tall - K @ v) <= rounding_bound(K, v))
    assert np.all(np.abs(wide - K @ v) <= rounding_bound(K, v))


@pytest.mark.slow
def test_float64_products_are_float64(x64):
    X, V = points(N, dtype=np.float64), points(N, 2, np.float64)[:, :2]
    K = exact(KERNELS["ntk"], X, X)
    assert np.allclose(product(KERNELS["ntk"], X, engine="blocked").matmul(V), K @ V, rtol=0, atol=1e-11)


@pytest.mark.slow_cases("1600", "1637")
@pytest.mark.parametrize("n", [blocked.TILE + 1, 2 * blocked.TILE, 1637])
def test_tiled_gram_is_symmetric_with_an_exact_diagonal(n):
    kernel = KERNELS["laplace"]
    X = np.concatenate([points(n - 3), points(3)])  # three duplicates
    K = np.asarray(gram(kernel, jnp.asarray(X)))
    assert np.array_equal(K, K.T) and np.all(np.diag(K) == 1)
    assert K[0, n - 3] == 1
    # one entry: √(8 roundings of a squared distance near 10) at worst, times a slope of at most 1/2
    assert np.max(np.abs(K - exact(kernel, X, X))) < 2e-6 + 0.5 * np.sqrt(40 * 2.0**-24) * (K > 0.99).max()
    tall = np.asarray(gram(kernel, jnp.asarray(X), jnp.asarray(X[:850])))
    assert np.allclose(tall, K[:, :850], atol=1e-6)


@pytest.mark.slow
def test_a_small_budget_splits_rows_and_columns(monkeypatch):
    monkeypatch.setattr(blocked, "MAX_COLUMNS", 64)
    X, Z, V = points(N), points(M, 1), points(M, 2)[:, :2]
    kernel = KERNELS["gaussian"]
    K = exact(kernel, X, Z)
    K_hat = product(kernel, X, Z, engine="blocked", memory=64 * 4 * 4 * 10)  # room for ten rows of 64
    assert blocked.block_rows(N, 64, 4, 64 * 4 * 4 * 10) == 10
    assert np.all(np.abs(K_hat.matmul(V) - K @ V) <= rounding_bound(K, V, 4))
    assert np.all(np.abs(K_hat.rmatmul(points(N, 4)) - K.T @ points(N, 4)) <= rounding_bound(K.T, points(N, 4), 4))
    assert np.all(np.abs(K_hat.normal(V) - K.T @ (K @ V)) <= rounding_bound(np.abs(K.T) @ np.abs(K), np.abs(V), 8))


def test_the_default_engine_stores_what_fits_and_is_reused(monkeypatch):
    X = points(N)
    kernel = KERNELS["gaussian"]
    monkeypatch.setattr(multiply, "fused_available", lambda *_: True)
    assert product(kernel, X, passes=10).engine == "fused"
    monkeypatch.setattr(multiply, "fused_available", lambda *_: False)
    assert product(kernel, X, passes=10).engine == "stored"
    assert product(kernel, X, passes=1).engine == "blocked"
    assert product(kernel, X, passes=10, memory=N * N * 4 - 1).engine == "blocked"
    assert product(kernel, X, engine="stored").bytes == N * N * 4


def test_misuse_raises():
    X = points(N)
    kernel = KERNELS["gaussian"]
    with pytest.raises(ValueError, match="memory budget"):
        gram(kernel, jnp.asarray(X), memory="1kB")
    with pytest.raises(ValueError, match="columns"):
        product(kernel, X, points(M)[:, :2])
    with pytest.raises(ValueError, match="900 rows"):
        product(kernel, X).matmul(np.ones(3, np.float32))
    with pytest.raises(ValueError, match="did you mean 'stored'"):
        product(kernel, X, engine="store")
