"""Kernels of any data: accepted inputs, blocks and diagonals, user functions, sums, powers, single points."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from unlazy.kernels.algebra import CombinedFormula, Constant
from unlazy.kernels.base import Kernel
from unlazy.kernels.custom import Custom
from unlazy.kernels.periodic import Periodic
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import gram, matmul
from unlazy.solvers.gaussian_process.posterior import log_marginal_likelihood, posterior
from unlazy.solvers.methods.askotch import Askotch
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import solve

N, M = 9, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(N + M, 3, 2, 2))
WORDS = RNG.integers(0, 5, size=(N + M, 6))


class Patches(Kernel):
    """Mean over pixels of exp(-‖difference of channels‖²): a kernel of images."""

    @property
    def input_kind(self) -> str:
        return "array"

    def block(self, left: Array, right: Array) -> Array:
        squares = jnp.sum(jnp.square(left[:, None] - right[None]), -1)
        return jnp.mean(jnp.exp(-squares), (2, 3))


def patches(A, B):
    return np.exp(-((A[:, None] - B[None]) ** 2).sum(-1)).mean((2, 3))


def of_both(x, z):
    """A kernel of pictures with captions."""
    same = jnp.mean(x["words"] == z["words"], dtype=x["image"].dtype)
    return jnp.exp(-jnp.sum((x["image"] - z["image"]) ** 2)) + same


def both(A, V, B, W):
    return np.exp(-((A[:, None] - B[None]) ** 2).sum((2, 3, 4))) + (V[:, None] == W[None]).mean(-1)


KERNELS = {
    "images": (Patches(), IMAGES, patches(IMAGES, IMAGES)),
    "trees": (Custom(of_both), {"image": IMAGES, "words": WORDS}, both(IMAGES, WORDS, IMAGES, WORDS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_images_and_trees_go_through_grams_products_and_solvers(name, x64):
    kernel, data, K = KERNELS[name]
    X, Z = jax.tree.map(lambda leaf: leaf[:N], data), jax.tree.map(lambda leaf: leaf[N:], data)
    y = RNG.normal(size=N)
    # every entry is a short sum of numbers of order one: some ten roundings
    close = {"rtol": 0, "atol": 64 * 2.0**-53}
    got = np.asarray(kernel.gram(data))
    np.testing.assert_allclose(got, K, **close)
    assert np.array_equal(got, got.T) and np.array_equal(np.diagonal(got), kernel.diag(data))
    np.testing.assert_allclose(gram(kernel, Z, X), K[N:, :N], **close)
    np.testing.assert_allclose(matmul(kernel, Z, X, y), K[N:, :N] @ y, rtol=0, atol=64 * N * 2.0**-53)
    ridge = 0.1
    exact = K[N:, :N] @ np.linalg.solve(K[:N, :N] + ridge * np.eye(N), y)
    # K + ridge has a condition below ‖K‖/ridge ≤ 2N/0.1; solutions of it lose as much
    allowed = 64 * N * (2 * N / ridge) * 2.0**-53 * np.abs(y).max()
    np.testing.assert_allclose(decompose(kernel, X).ridge_path(y, ridge).predict(Z), exact, rtol=0, atol=allowed)
    np.testing.assert_allclose(posterior(kernel, X, y, Z, ridge).mean, exact, rtol=0, atol=allowed)
    solution = solve(kernel, X, y, ridge, tolerance=1e-10)
    assert solution.method == "direct" and solution.converged
    np.testing.assert_allclose(solution.predict(Z), exact, rtol=0, atol=1e-9 * np.linalg.norm(y))
    blocks = solve(kernel, X, y, ridge, method=Askotch(block=3), tolerance=1e-10)
    assert blocks.converged
    np.testing.assert_allclose(blocks.predict(Z), exact, rtol=0, atol=1e-9 * np.linalg.norm(y))
    for call in ({"method": "eigenpro"}, {"method": NystromCG(centers=3)}):
        with pytest.raises(ValueError, match="requires a matrix X"):
            solve(kernel, X, y, ridge, **call)


def test_inputs_a_kernel_does_not_accept_are_rejected():
    with pytest.raises(ValueError, match=r"two-dimensional.*got shape \(13, 3, 2, 2\).*reshape"):
        Gaussian().gram(IMAGES)
    with pytest.raises(ValueError, match=r"same leading axis.*\[\(3, 2\), \(4,\)\]"):
        KERNELS["trees"][0].gram((np.zeros((3, 2)), np.zeros(4)))
    with pytest.raises(ValueError, match="same structure"):
        KERNELS["trees"][0].gram({"a": np.zeros(3)}, {"b": np.zeros(3)})
    with pytest.raises(ValueError, match="first in row 1"):
        KERNELS["trees"][0].gram({"image": np.array([[1.0], [np.nan]]), "words": WORDS[:2]})
    with pytest.raises(ValueError, match=r"one number for two points, got shape \(2,\)"):
        Custom(lambda x, z: x * z).gram(np.ones((3, 2)))
    with pytest.raises(NotImplementedError, match=r"must implement block\(left, right\)"):
        Kernel().gram(np.ones((3, 2)))


@pytest.mark.slow
def test_parameters_of_a_function_are_learned(x64):
    x, y = np.linspace(0, 1, N), RNG.normal(size=N)
    bump = lambda p, x, z: p["height"] * jnp.exp(-jnp.square(x - z) / p["width"])  # noqa: E731
    kernel = Custom(bump, {"height": 2.0, "width": 0.1})
    value, slope = jax.value_and_grad(lambda k: log_marginal_likelihood(k, x, y, 0.1))(kernel)

    def evidence(height, width):
        C = height * np.exp(-((x[:, None] - x) ** 2) / width) + 0.1 * np.eye(N)
        return -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + N * np.log(2 * np.pi))

    np.testing.assert_allclose(value, evidence(2.0, 0.1), rtol=1e-10)
    h = 1e-5  # central differences: h² of truncation, rounding over h
    by_height = (evidence(2 + h, 0.1) - evidence(2 - h, 0.1)) / (2 * h)
    np.testing.assert_allclose(slope.params["height"], by_height, rtol=1e-6, atol=1e-6)


def test_sums_scalars_powers_and_single_points(x64):
    X = RNG.normal(size=(5, 3))
    gaussian, laplace, absolute = Gaussian(1.3), Laplace(0.7), ProductLaplace(1.5)
    G, L, A = (np.asarray(k.gram(X)) for k in (gaussian, laplace, absolute))
    # distances from inner products of 3 terms round by 4·(3 + 2) units of the largest squared norm; these functions of
    # them have slopes below 2, and powers and factors multiply by 6 at most
    unit = {"rtol": 0, "atol": 4 * 5 * 2 * 6 * 2.0**-53 * (X**2).sum(1).max()}
    cases = [
        (sum([gaussian, laplace, absolute]), G + L + A), (gaussian + 1, G + 1), (1 + absolute, 1 + A),
        (laplace**2, L**2), (absolute**3, A**3), (2 * (gaussian + 0.5) ** 2, 2 * (G + 0.5) ** 2),
    ]  # fmt: skip
    for kernel, expected in cases:
        np.testing.assert_allclose(kernel.gram(X), expected, **unit)
    # a number joins the formula: fused products, gradients and metrics remain
    assert isinstance(1 + gaussian, CombinedFormula) and (1 + gaussian).stationary
    # one bandwidth stays one leaf to learn
    assert len(jax.tree.leaves(gaussian**2)) == 1
    assert gaussian + 0 is gaussian
    np.testing.assert_allclose(gaussian(X[0], X[1]), G[0, 1], **unit)
    assert gaussian(0.3, 0.3) == 1 and Constant(2.0)(X[0], X[1]) == 2
    with pytest.raises(ValueError, match=r"kernel\.gram\(X, Z\)"):
        gaussian(X, X)
    for bad in (-1, 0.5, 0):
        with pytest.raises(ValueError, match="positive integer"):
            gaussian**bad
    with pytest.raises(ValueError, match="the constant must be non-negative"):
        gaussian + -1


@pytest.mark.slow
def test_bandwidths_are_learned_independently(x64):
    X = RNG.normal(size=(5, 2))
    slope = jax.grad(lambda k: k.gram(X).sum())(Gaussian(jnp.array([1.0, 2.0])) + Laplace(jnp.array([1.0, 2.0])))
    D = (X[:, None] - X[None]) ** 2
    by_first = (np.exp(-0.5 * (D / [1, 4]).sum(-1))[..., None] * D / [1, 8]).sum((0, 1))
    np.testing.assert_allclose(slope.first.bandwidth, by_first, rtol=1e-10)
    assert np.all(np.asarray(slope.second.bandwidth) > 0)


def test_periods_far_from_zero_are_right_or_rejected():
    """float32 keeps the angle to 2π·turns·2⁻²³ (x/p and p round), so k to about that times its slope of at most 2."""
    turns = 2000
    x = (turns * 0.7 + np.linspace(0, 1, 6))[:, None].astype(np.float32)
    exact = np.exp(-2 * np.sin(np.pi * (x.astype(float) - x.astype(float).T) / 0.7) ** 2)
    assert np.abs(np.asarray(Periodic(0.7).gram(x)) - exact).max() <= 4 * math.pi * turns * 2.0**-23
    far = x + np.float32(1e4)
    for kernel in (Periodic(0.7), 2 * Periodic(0.7) + 1):
        for call in (kernel.gram, kernel.diag, lambda X, kernel=kernel: kernel.gram(x, X)):
            with pytest.raises(ValueError, match=r"1\.63e\+04 periods from 0.*half of its digits.*subtract.*float64"):
                call(far)
    with pytest.raises(ValueError, match="NaN or infinity in 1 rows"):
        Periodic(0.7).gram(np.where(np.arange(6)[:, None] == 2, np.inf, x))
