"""Every kernel composition on the device that JAX uses, against float64 on the CPU.

On a CPU the fast suite takes a few rows of the table and the slow suite the others; on a GPU every row runs at every
size, so that fused programs, XLA, tiles and row blocks are all compared.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import MLP, NNGP, NTK, Gaussian, Laplace, Matern, Polynomial, gram_to_store
from unlazy.kernels.metric import with_metric
from unlazy.kernels.networks.flips import with_flips
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.layers import AvgPool, Conv, Dense, Flatten, GlobalAvgPool, LayerNorm, myrtle, residual, serial
from unlazy.products import matmul, product

ON_GPU = jax.default_backend() == "gpu"
D, SIZE = 20, 8
CONV = serial(Conv(3), "relu", AvgPool(2), Conv(3, sigma_b=0.2), "relu", GlobalAvgPool(), Dense())
DEEP = MLP(3, "relu", 1.3, 0.2)


def _metric():
    A = np.random.default_rng(5).normal(size=(D, D)) / np.sqrt(D)
    return jnp.asarray(A @ A.T, jnp.float32)


VECTORS = {
    "gaussian": lambda: Gaussian(4.0),
    "laplace": lambda: Laplace(4.0),
    "matern": lambda: Matern(2.5, 4.0),
    "product_laplace": lambda: ProductLaplace(20.0),
    "polynomial": lambda: Polynomial(3, 1.0),
    "ntk": lambda: NTK(MLP(3)),
    "ntk_biases": lambda: NTK(DEEP),
    "ntk_ten_layers": lambda: NTK(MLP(10)),
    "ntk_erf": lambda: NTK(MLP(2, "erf", 1.3, 0.2)),
    "nngp": lambda: NNGP(DEEP),
    "scaled": lambda: 3.0 * Laplace(4.0),
    "sum": lambda: Gaussian(4.0) + 0.5 * NTK(DEEP),
    "sum_with_constant": lambda: 1 + Laplace(4.0),
    "product": lambda: Gaussian(6.0) * NNGP(DEEP),
    "power": lambda: NTK(MLP(2)) ** 2,
    "metric": lambda: with_metric(Laplace(4.0), _metric()),
    "metric_of_sum": lambda: with_metric(NNGP(MLP(3)) + NTK(MLP(2)), _metric()),
    "metric_diagonal": lambda: with_metric(NTK(MLP(3)), jnp.linspace(0.5, 1.5, D, dtype=jnp.float32)),
}
IMAGES = {
    "conv_ntk": lambda: NTK(CONV),
    "conv_nngp": lambda: NNGP(CONV),
    "myrtle": lambda: NNGP(myrtle(5)),
    "flips": lambda: with_flips(NNGP(CONV)),
    "flips_ntk": lambda: with_flips(NTK(CONV)),
    "flips_myrtle": lambda: with_flips(NNGP(myrtle(5))),
    "flips_uneven": lambda: with_flips(NTK(serial(Conv(2), "relu", Flatten(), Dense()))),
    "flips_of_sum": lambda: with_flips(NNGP(CONV) + 0.5 * NTK(CONV)),
    "conv_sum": lambda: 2 * NNGP(CONV) + NTK(CONV),
    "conv_product": lambda: NNGP(CONV) * NTK(CONV),
    "residual": lambda: NTK(serial(Conv(3), residual("relu", Conv(3)), LayerNorm(), GlobalAvgPool(), Dense())),
}
FAST = {"laplace", "sum", "flips"}
SIZES = {"vectors": (1, 2, 65, 300, 2000) if ON_GPU else (65,), "images": (1, 2, 9, 33, 70) if ON_GPU else (9,)}
SLOW = [] if ON_GPU else pytest.mark.slow


def _cases(kernels, sizes):
    cases = []
    for name in kernels:
        fast = ON_GPU or name in FAST
        for n in sizes:
            cases.append(pytest.param(name, n, id=f"{name}-{n}", marks=[] if fast else SLOW))
    return cases


def points(n, images, seed=0):
    """Rows with a twin, an opposite and the origin among them where there is room."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, SIZE, SIZE, 3) if images else (n, D)).astype(np.float32)
    if n > 8:
        X[n // 2], X[n - 1], X[n - 2] = X[0], -X[1], 0
    return X


@contextlib.contextmanager
def on_cpu():
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.enable_x64(True):
        yield


def reference(make, X, Z=None):
    with on_cpu():
        kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), make())
        return np.asarray(kernel.gram(jnp.asarray(X, jnp.float64), None if Z is None else jnp.asarray(Z, jnp.float64)))


# Entries of kernels with a kink at x = z (Laplace, ReLU) turn a rounding error u of an inner product into √u where two
# points nearly coincide; elsewhere they lose a few units per layer. Duplicates are exact, so the error is that of
# ordinary pairs: 64 units of float32, relative to the largest entry.
UNITS = 64
UNIT = 2.0**-24


def close(found, wanted, scale=None):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted)
    assert found.shape == wanted.shape
    error = np.abs(found - wanted).max() / (np.abs(wanted).max() if scale is None else scale)
    assert error <= UNITS * UNIT, f"off by {error:.2e}, allowed {UNITS * UNIT:.2e}"


def check(kernels, name, n):
    make, images = kernels[name], kernels is IMAGES
    X, Z = points(n, images), points(n // 2 + 3, images, seed=1)
    Z[0] = X[0]
    square, across = reference(make, X), reference(make, X, Z)
    kernel = make()
    K = np.asarray(kernel.gram(X))
    close(K, square)
    assert np.array_equal(K, K.T)
    close(np.diag(K), np.diag(square))
    close(kernel.diag(X), np.diag(square))
    close(kernel.gram(X, Z), across)
    close(kernel.gram(X, X), square)
    if n > 8:
        close(kernel.gram(X[3 : n - 2], X[1:7]), square[3 : n - 2, 1:7])
    for columns in (1, 3):
        V = np.random.default_rng(2).normal(size=(len(Z), columns)).astype(np.float32)
        # an error of each entry, summed with the weights
        scale = np.abs(across).max() * np.abs(V).sum(0).max()
        close(matmul(kernel, X, Z, V), across @ V.astype(np.float64), scale)
    V = np.random.default_rng(3).normal(size=n).astype(np.float32)
    scale = np.abs(square).max() * np.abs(V).sum()
    prepared = product(kernel, X, passes=20)
    close(prepared.matmul(V), square @ V.astype(np.float64), scale)
    if not images:
        for engine in ("blocked", "stored"):
            close(product(kernel, X, engine=engine).matmul(V), square @ V.astype(np.float64), scale)


@pytest.mark.parametrize("name,n", _cases(VECTORS, SIZES["vectors"]))
def test_vectors(name, n):
    check(VECTORS, name, n)


@pytest.mark.parametrize("name,n", _cases(IMAGES, SIZES["images"]))
def test_images(name, n):
    check(IMAGES, name, n)


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) for name in ("flips", "myrtle")])
def test_store_of_several_tiles(name, tmp_path):
    make, X = IMAGES[name], points(20, images=True)
    close(gram_to_store(make(), X, store=tmp_path / "square", tile=8), reference(make, X))
    close(gram_to_store(make(), X, X[:11], store=tmp_path / "across", tile=8), reference(make, X, X[:11]))


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) for name in ("conv_nngp", "conv_ntk")])
def test_blocks_under_vmap(name):
    """A program that reads its own position on the chip must not be batched by an added grid axis."""
    X = points(6, images=True)
    kernel = IMAGES[name]()
    found = jax.vmap(lambda x: kernel.gram(x[None], jnp.asarray(X))[0])(jnp.asarray(X))
    close(found, reference(IMAGES[name], X))


@pytest.mark.parametrize("name", ["laplace", pytest.param("ntk_biases", marks=SLOW)])
def test_products_under_vmap(name):
    X, Z = points(40, images=False), points(30, images=False, seed=1)
    V = np.random.default_rng(2).normal(size=(5, 30)).astype(np.float32)
    kernel = VECTORS[name]()
    found = jax.vmap(lambda v: matmul(kernel, X, Z, v))(jnp.asarray(V))
    wanted = V.astype(np.float64) @ reference(VECTORS[name], X, Z).T
    close(found, wanted, np.abs(V).sum(1).max() * np.abs(wanted).max())
