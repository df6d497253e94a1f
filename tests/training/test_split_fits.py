"""The accelerator's program and the host's tables give the same fits and gradients."""

import jax
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.rfm import device_programs
from unlazy.training.rfm.split_fits import DeviceSplitFits, HostSplitFits, exact_fit

KERNELS = {"l1": ProductLaplace(1.0), "laplace": Laplace(1.0), "gaussian": Gaussian(1.0), "ntk": NTK(MLP(2))}


@pytest.mark.slow_cases("l1-False", "l1-True")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in ("l1", "laplace") else pytest.mark.slow) for k in KERNELS]
)
def test_host_and_device_fits_agree(x64, name, weighted):
    """K + ρW⁻¹ has a condition of at most n/ρ ≈ 1e5: its rounding, 1e-16, becomes 1e-11 of the coefficients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5))
    Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], 1)
    w = rng.uniform(0.5, 2, 100) if weighted else None
    L = np.abs(rng.normal(size=5)) if name == "l1" else rng.normal(size=(3, 5))
    host, card = (kind(KERNELS[name], X, 100, L) for kind in (HostSplitFits, DeviceSplitFits))
    assert card.default_bandwidth == pytest.approx(host.default_bandwidth, rel=1e-12)  # all rows are in the sample
    h = host.default_bandwidth
    fits = [place.fit(h, 1e-3, Y[:100], w) for place in (host, card)]
    for one, other in zip(*fits):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * np.abs(one).max())
    alpha = fits[0].alpha
    found = [place.agop(h, alpha, name == "l1") for place in (host, card)]
    # rows that nearly point one way make the ntk's derivatives steep: one rounding of the rows, and there are eight
    # in sums of five and of three terms
    nearby = [X * (1 + 2.0**-52 * rng.choice([-1, 1], X.shape)) for _ in range(16)]
    moved = max(
        np.abs(HostSplitFits(KERNELS[name], Z, 100, L).agop(h, alpha, name == "l1") - found[0]).max() for Z in nearby
    )
    np.testing.assert_allclose(*found, rtol=0, atol=max(1e-11 * np.abs(found[0]).max(), 8 * moved))
    same = exact_fit(KERNELS[name], X[:100], L, h, 1e-3, Y[:100], w)
    np.testing.assert_allclose(same[0], alpha, rtol=0, atol=1e-10 * np.abs(alpha).max())


def test_a_matrix_that_is_not_positive_definite_gives_no_fit(x64):
    X = np.zeros((10, 2))
    for kind in (HostSplitFits, DeviceSplitFits):
        assert kind(Gaussian(1.0), X, 8, np.ones(2)).fit(1.0, -1.0, np.ones((8, 1)), None) is None


def test_gradients_of_the_l1_kernel_are_differences(x64):
    """∇f of products.agop against central differences of step 1e-6: rounding 1e-16 over it, 1e-10."""
    import jax.numpy as jnp

    from unlazy.products.agop import agop, gradient

    rng = np.random.default_rng(1)
    X, Z, alpha = rng.normal(size=(6, 3)), rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    kernel = ProductLaplace(jnp.asarray([0.7, 1.3, np.inf]))

    def f(A):
        return np.asarray(kernel.gram(A, Z)) @ alpha

    G = np.asarray(gradient(kernel, X, Z, alpha))
    for j in range(3):
        step = 1e-6 * np.eye(3)[j]
        np.testing.assert_allclose(G[:, :, j], (f(X + step) - f(X - step)) / 2e-6, atol=1e-8)
    expected = np.einsum("ncj,nck->jk", G, G) / 6
    np.testing.assert_allclose(agop(kernel, X, Z, alpha), expected, rtol=1e-12, atol=1e-15)


def test_gradients_of_any_number_of_rows_share_a_program(x64, monkeypatch):
    """In blocks of 8 rows, of which the last is padded; rounding as in the fits above."""
    from unlazy.core import devices
    from unlazy.training.rfm.split_fits import slopes

    monkeypatch.setattr(device_programs, "SLOPE_ROWS", 8)
    rng = np.random.default_rng(0)
    X, alpha, L = rng.normal(size=(30, 5)), rng.normal(size=(30, 2)), rng.normal(size=(3, 5))
    expected = slopes(Laplace(1.0), X, L, 1.7, alpha, X)
    monkeypatch.setattr(devices, "is_host", lambda: False)
    found = {p: slopes(Laplace(1.0), X, L, 1.7, alpha, X[:p]) for p in (8, 19, 30)}
    for p, G in found.items():
        np.testing.assert_allclose(G, expected[:p], rtol=0, atol=1e-10 * np.abs(expected).max())
    used = [key for key in device_programs._programs if key[0] is device_programs._slopes and (8, 5) in _shapes(key)]
    assert len(used) == 1


def _shapes(key):
    return [shape for shape, _ in key[2]]


@pytest.mark.slow
def test_the_programs_of_an_accelerator_need_the_memory_that_is_planned(x64):
    """All branches share their temporary memory: XLA's plan for shapes, of which nothing is computed."""
    n, d, c = 3000, 16, 3
    X, Y, Z, ridge, w = (jax.ShapeDtypeStruct(s, np.float64) for s in ((n, d), (n, c), (300, d), (), (1,)))
    kernel = device_programs.MappedKernel(None, np.asarray(0), jax.ShapeDtypeStruct((d, d), np.float64))
    for program, given in ((device_programs._fit, (X, Z, Y)), (device_programs._coefficients, (X, Y))):
        plan = program.lower(kernel, *given, ridge, w).compile().memory_analysis()
        assert 1 < plan.temp_size_in_bytes / (8 * n * n) < device_programs.COPIES
