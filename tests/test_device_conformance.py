"""Every kernel composition on the device that JAX uses, against float64 on the CPU.

On a CPU the fast suite takes one row of the table, the slow and the nightly suite the others; on a GPU every row
runs at every size, so that fused programs, XLA, tiles and row blocks are all compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import gram_to_store
from unlazy.core.reference import UNIT, UNITS, error, float64_gram
from unlazy.device_check.compositions import IMAGES, VECTORS, points
from unlazy.products import matmul, product

ON_GPU = jax.default_backend() == "gpu"
FAST = {"laplace"}
SIZES = {"vectors": (1, 2, 65, 300, 2000) if ON_GPU else (65,), "images": (1, 2, 9, 33, 70) if ON_GPU else (9,)}
SLOW = [] if ON_GPU else pytest.mark.slow
NIGHTLY = [] if ON_GPU else [pytest.mark.slow, pytest.mark.nightly]
COMPOSED = {"flips_of_sum", "flips_ntk", "flips_myrtle", "conv_sum", "conv_product"}
"""On a CPU these compile the programs of other rows once more, for half a minute each."""


def _cases(kernels, sizes):
    cases = []
    for name in kernels:
        marks = [] if name in FAST else NIGHTLY if name in COMPOSED else SLOW
        cases += [pytest.param(name, n, id=f"{name}-{n}", marks=marks) for n in sizes]
    return cases


def reference(make, X, Z=None):
    return float64_gram(make(), X, Z)


def close(found, wanted, scale=None):
    off = error(found, wanted, scale)
    assert off <= UNITS * UNIT, f"off by {off:.2e}, allowed {UNITS * UNIT:.2e}"


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
