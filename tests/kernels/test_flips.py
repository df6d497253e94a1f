"""Means over flips against plain NumPy on all four pairs, and the number of pairs that they cost."""

import jax
import numpy as np
import pytest

from unlazy import NNGP, NTK, Constant, Laplace
from unlazy.kernels.networks import flips
from unlazy.kernels.networks.flips import Flipped, is_flip_symmetric, with_flips
from unlazy.layers import (
    AvgPool,
    Conv,
    ConvLocal,
    ConvTranspose,
    Dense,
    Flatten,
    GlobalAvgPool,
    ImageResize,
    Index,
    LayerNorm,
    myrtle,
    residual,
    serial,
)
from unlazy.products import gram, matmul

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(5, 4, 4, 2)), RNG.normal(size=(3, 4, 4, 2))
END = (GlobalAvgPool(), Dense())
EVEN = serial(Conv(3), "relu", AvgPool(2), *END)
UNEVEN = serial(Conv(2), "relu", Flatten(), Dense())


def four(kernel, X, Z):
    """The mean over both flips of both sides, pair by pair."""
    sides = [[A, A[:, :, ::-1]] for A in (X, Z)]
    return np.mean([np.asarray(kernel.gram(x, z)) for x in sides[0] for z in sides[1]], 0)


@pytest.mark.slow_cases("even")
@pytest.mark.parametrize("network", [EVEN, pytest.param(UNEVEN, marks=pytest.mark.slow)], ids=["even", "uneven"])
def test_the_kernel_is_the_mean_over_flips(network, x64):
    kernel = NTK(network)
    flipped = with_flips(kernel)
    # the mean of numbers of one sign, each from sums of at most 2^8 terms
    close = {"rtol": 2**8 * 2.0**-52}
    np.testing.assert_allclose(flipped.gram(X, Z), four(kernel, X, Z), **close)
    K = np.asarray(flipped.gram(X))
    np.testing.assert_allclose(K, four(kernel, X, X), **close)
    assert np.array_equal(K, K.T)
    np.testing.assert_allclose(flipped.diag(X), np.diag(K), **close)
    np.testing.assert_allclose(flipped.gram(X[:, :, ::-1], Z), flipped.gram(X, Z), **close)
    V = RNG.normal(size=(3, 2))
    size = np.abs(K).max() * np.abs(V).sum()
    np.testing.assert_allclose(matmul(flipped, X, Z, V), four(kernel, X, Z) @ V, rtol=0, atol=2**8 * 2.0**-52 * size)
    np.testing.assert_allclose(gram(flipped, X), K, **close)


@pytest.mark.slow_cases("network10-shape10-True", "network7-shape7-True")
@pytest.mark.parametrize(("network", "shape", "wanted"), [
    (myrtle(5), (8, 8, 1), True), (myrtle(10), (32, 32, 3), True), (EVEN, (4, 4, 1), True),
    (EVEN, (4, 5, 1), False),  # a column is left over by the pool
    (UNEVEN, (4, 4, 1), False),  # zeros on the right only
    (serial(Conv(3, strides=2), "relu", *END), (4, 4, 1), False),
    (serial(Conv(3, strides=2), "relu", *END), (4, 5, 1), True),
    (serial(Conv(3, padding="circular"), residual("relu", Conv(3)), LayerNorm(), *END), (4, 4, 1), True),
    (serial(ConvLocal(3), "relu", *END), (4, 4, 1), True),
    (serial(ConvTranspose(2, strides=2), "relu", *END), (4, 4, 1), True),
    (serial(ImageResize(8), Conv(3), "relu", *END), (4, 4, 1), True),
    (serial(Conv(3), "relu", Index(0, 0), Dense()), (4, 4, 1), False),
    (serial(Flatten(), Dense(), "relu", Dense()), (4, 4, 1), True),
])  # fmt: skip
def test_flip_symmetry_is_detected(network, shape, wanted, x64):
    kernel = NNGP(network)
    assert is_flip_symmetric(kernel, shape) == wanted
    if wanted and shape[0] < 8:
        A, B = RNG.normal(size=(2, 2, *shape))
        np.testing.assert_allclose(
            kernel.gram(A[:, :, ::-1], B[:, :, ::-1]), kernel.gram(A, B), rtol=2**8 * 2.0**-52
        )  # fmt: skip


def test_sums_delegate_to_their_terms():
    assert is_flip_symmetric(2 * NTK(EVEN) + NNGP(EVEN) * Constant(3.0), (4, 4, 1))
    assert not is_flip_symmetric(NTK(EVEN) + NNGP(UNEVEN), (4, 4, 1))
    assert (2 * NTK(EVEN)).expensive and with_flips(NTK(EVEN)).expensive


@pytest.mark.parametrize(("network", "terms"), [(EVEN, 2), (UNEVEN, 4)], ids=["even", "uneven"])
def test_flips_cost_two_blocks_not_four(network, terms, monkeypatch):
    kernel, seen = NTK(network), []
    block = type(kernel).block
    monkeypatch.setattr(type(kernel), "block", lambda self, l, r: seen.append(1) or block(self, l, r))
    flipped = Flipped(kernel)
    jax.eval_shape(lambda X, Z: flipped.block(*flipped.sides(X, Z)), X, Z)
    assert len(seen) == terms


def test_misuse_raises():
    with pytest.raises(ValueError, match="flips need a kernel of images"):
        with_flips(Laplace(1.0))
    with pytest.raises(ValueError, match=r"height, width, channels., got \(5, 16\)"):
        with_flips(NTK(serial(Flatten(), Dense(), "relu", Dense()))).gram(X[..., 0].reshape(5, 16))
    assert with_flips(with_flips(NTK(EVEN))) == with_flips(NTK(EVEN)) and flips.WIDTH == 2
