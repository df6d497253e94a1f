"""Sums, products, metrics, spheres and the tangent family, each against plain NumPy or each other."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.algebra import CombinedFormula, CombinedGram
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.dot_product import ArcCosine, Linear, Polynomial
from unlazy.kernels.metric import Metric, with_metric
from unlazy.kernels.networks.infinite_width import NNGP, NTK, LayerKernel, layer_kernel, standard_parametrization
from unlazy.kernels.networks.two_layer import infinite_two_layer, sample_two_layer
from unlazy.kernels.periodic import Periodic, SpectralMixture
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.kernels.sphere import OnSphere, polynomial_on_sphere
from unlazy.products.multiply import matmul
from unlazy.solvers.solve import solve
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.infinite_width.architecture import MLP

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
SQUARES = ((X[:, None] - Z[None]) ** 2).sum(-1)
ROOT = np.sqrt(SQUARES)
LENGTHS, DIFFERENCES = np.array([0.5, 1.0, 2.0, 3.0]), X[:, None] - Z[None]
SEVERAL = np.sqrt((DIFFERENCES**2 / LENGTHS**2).sum(-1))
NETWORK = MLP(2, "relu", (1.2, 1.0, 0.8), (0.1, 0.2, 0.3))

PLAIN = {
    "gaussian": (Gaussian(1.3), np.exp(-SQUARES / (2 * 1.3**2))),
    "laplace": (Laplace(1.3), np.exp(-ROOT / 1.3)),
    "matern12": (Matern(1.3, 0.5), np.exp(-ROOT / 1.3)),
    "matern32": (Matern(1.3, 1.5), (1 + 3**0.5 * ROOT / 1.3) * np.exp(-(3**0.5) * ROOT / 1.3)),
    "matern52": (
        Matern(1.3, 2.5),
        (1 + 5**0.5 * ROOT / 1.3 + 5 * SQUARES / (3 * 1.3**2)) * np.exp(-(5**0.5) * ROOT / 1.3),
    ),
    "rational_quadratic": (RationalQuadratic(1.3, 0.7), (1 + SQUARES / (2 * 0.7 * 1.3**2)) ** -0.7),
    "linear": (Linear(0.5), X @ Z.T + 0.5),
    "polynomial": (Polynomial(3, 0.5), (X @ Z.T + 0.5) ** 3),
    "product_laplace": (ProductLaplace(1.3), np.exp(-np.abs(X[:, None] - Z[None]).sum(-1) / 1.3)),
    "gaussian_several": (Gaussian(LENGTHS), np.exp(-(SEVERAL**2) / 2)),
    "laplace_several": (Laplace(LENGTHS), np.exp(-SEVERAL)),
    "matern_several": (Matern(LENGTHS, 1.5), (1 + 3**0.5 * SEVERAL) * np.exp(-(3**0.5) * SEVERAL)),
    "rational_several": (RationalQuadratic(LENGTHS, 0.7), (1 + SEVERAL**2 / (2 * 0.7)) ** -0.7),
    "several_scaled": (2.0 * Gaussian(LENGTHS) + Laplace(1.3), 2 * np.exp(-(SEVERAL**2) / 2) + np.exp(-ROOT / 1.3)),
    "periodic": (
        Periodic(1.7 * LENGTHS, LENGTHS),
        np.exp(-2 * (np.sin(np.pi * DIFFERENCES / (1.7 * LENGTHS)) ** 2 / LENGTHS**2).sum(-1)),
    ),
    "sum": (Gaussian(1.3) + 2.0 * Laplace(0.7), np.exp(-SQUARES / (2 * 1.3**2)) + 2 * np.exp(-ROOT / 0.7)),
    "product": (Gaussian(1.3) * Linear(1.0), np.exp(-SQUARES / (2 * 1.3**2)) * (X @ Z.T + 1)),
    "mixed": (Linear(0.0) * ProductLaplace(1.3), X @ Z.T * np.exp(-np.abs(X[:, None] - Z[None]).sum(-1) / 1.3)),
}


@pytest.mark.slow_cases("rational_several", "gaussian_several", "several_scaled", "matern12")
@pytest.mark.parametrize("name", PLAIN)
def test_against_numpy(name, x64):
    kernel, expected = PLAIN[name]
    np.testing.assert_allclose(kernel.gram(jnp.asarray(X), jnp.asarray(Z)), expected, rtol=1e-12)


def test_spectral_mixture_against_numpy(x64):
    weights, variances = np.array([1.0, 0.5]), np.full((2, 4), 0.02)
    means = np.array([[0.3, -0.2, 0.1, 0.0], [1.0, 0.5, 0.0, 0.2]])
    decay = np.exp(-2 * np.pi**2 * np.einsum("nmd,qd->qnm", DIFFERENCES**2, variances))
    waves = np.cos(2 * np.pi * np.einsum("nmd,qd->qnm", DIFFERENCES, means))
    K = SpectralMixture(weights, means, variances).gram(jnp.asarray(X), jnp.asarray(Z))
    # waves cross zero, so errors are absolute: a phase of at most 2π·6 radians rounds by some ten units of itself
    allowed = 1.5 * 10 * 12 * np.pi * 2.0**-53
    np.testing.assert_allclose(K, np.einsum("q,qnm->nm", weights, decay * waves), rtol=0, atol=allowed)
    with pytest.raises(ValueError, match=r"got shapes \(2,\), \(2, 4\) and \(1, 4\)"):
        SpectralMixture(weights, means, variances[:1])
    with pytest.raises(ValueError, match="variances must be positive"):
        SpectralMixture(weights, means, -variances)
    with pytest.raises(ValueError, match="for 4 coordinates, but the inputs have 3"):
        SpectralMixture(weights, means, variances).gram(X[:, :3])


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arccos_kernels_are_expectations(order, x64):
    # 2 E max(w·x,0)^k max(w·z,0)^k by Cho and Saul's J_k, with arccos
    cosine = X @ Z.T / np.outer(np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1))
    t = np.arccos(cosine)
    shape = {
        0: np.pi - t,
        1: np.sin(t) + (np.pi - t) * np.cos(t),
        2: 3 * np.sin(t) * np.cos(t) + (np.pi - t) * (1 + 2 * np.cos(t) ** 2),
    }[order]
    expected = np.outer(np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1)) ** order * shape / np.pi
    np.testing.assert_allclose(ArcCosine(order).gram(jnp.asarray(X), jnp.asarray(Z)), expected, rtol=1e-12, atol=1e-12)


def test_formulas_compose_where_embeddings_agree():
    assert isinstance(Gaussian() + Laplace(), CombinedFormula)
    assert isinstance(NNGP(NETWORK) * NTK(NETWORK), CombinedFormula)
    assert isinstance(Gaussian() + NTK(NETWORK), CombinedGram)
    assert isinstance(Linear() + ProductLaplace(), CombinedGram)
    assert (Gaussian() + Laplace()).stationary and not (Gaussian() + Linear()).stationary
    with pytest.raises(ValueError, match="not positive"):
        Gaussian() * -1.0


@pytest.mark.slow
def test_metrics(x64):
    A, B = jnp.asarray(X), jnp.asarray(Z)
    L = jnp.asarray(RNG.normal(size=(4, 4)))
    for kernel in (Laplace(1.3), NTK(NETWORK)):
        full = with_metric(kernel, L.T @ L)
        # any L with the same LᵀL; 1/√d keeps the d of the inputs
        np.testing.assert_allclose(full.gram(A, B), Metric(kernel, L).gram(A, B), rtol=1e-9)
        np.testing.assert_allclose(Metric(kernel, L).gram(A, B), kernel.gram(A @ L.T, B @ L.T), rtol=1e-9)
        low = with_metric(kernel, L[:2].T @ L[:2], rank=2)
        assert low.map.shape == (2, 4)
        np.testing.assert_allclose(low.gram(A, B), Metric(kernel, L[:2]).gram(A, B), rtol=1e-6)
        scales = jnp.asarray([1.0, 0.5, 2.0, 0.1])
        np.testing.assert_allclose(
            with_metric(kernel, scales**2).gram(A, B), Metric(kernel, jnp.diag(scales)).gram(A, B), rtol=1e-9
        )
    with pytest.raises(ValueError, match="4 coordinates"):
        Metric(Laplace(), L).gram(A[:, :3])


@pytest.mark.slow
def test_sphere(x64):
    A, B = jnp.asarray(X), jnp.asarray(Z)
    unit = [P / jnp.linalg.norm(P, axis=1, keepdims=True) for P in (A, B)]
    for kernel in (Laplace(1.3), NTK(MLP(2, "erf", 1.3, 0.4))):
        expected = kernel.gram(2 * unit[0], 2 * unit[1])
        np.testing.assert_allclose(OnSphere(kernel, 2.0).gram(A, B), expected, rtol=1e-10)
        fast = polynomial_on_sphere(kernel, inputs=4, radius=2.0)
        # the fit's error is relative to k(x, x); between its 1001 test points it may be a little more
        scale = float(kernel.diag(2 * unit[0])[0])
        assert fast.error <= 3e-8
        assert np.abs(np.asarray(fast.gram(A, B) - expected)).max() <= 1.5 * 3e-8 * scale
    with pytest.raises(ValueError, match="no polynomial"):
        polynomial_on_sphere(Laplace(0.01), inputs=4)


@pytest.mark.slow
def test_tangent_family(x64):
    A, B = jnp.asarray(X), jnp.asarray(Z)
    ntk = np.asarray(NTK(NETWORK).gram(A, B))
    layers = [np.asarray(layer_kernel(NETWORK, l).gram(A, B)) for l in (1, 2, 3)]
    np.testing.assert_allclose(sum(layers), ntk, rtol=1e-12)
    np.testing.assert_allclose(layers[2], NNGP(NETWORK).gram(A, B), rtol=1e-12)
    np.testing.assert_allclose(layer_kernel(NETWORK, -1).gram(A, B), layers[2], rtol=0)
    weighted = LayerKernel(NETWORK, (2.0, 0.0, 0.5)).gram(A, B)
    np.testing.assert_allclose(weighted, 2 * layers[0] + 0.5 * layers[2], rtol=1e-12)
    with pytest.raises(ValueError, match="3 weight matrices"):
        LayerKernel(NETWORK, (1.0, 1.0))
    assert LayerKernel(NETWORK, np.array([2.0, 0.0, 0.5])).weights == (2.0, 0.0, 0.5)
    for wrong in (np.ones((3, 3)), jnp.ones(2), 1.0):
        with pytest.raises(ValueError, match="3 weight matrices need 3 weights"):
            LayerKernel(NETWORK, wrong)
    with pytest.raises(ValueError, match="weights must be finite and at least 0"):
        LayerKernel(NETWORK, jnp.array([1.0, jnp.nan, 1.0]))
    with pytest.raises(ValueError, match="layer must be from 1 to 3"):
        layer_kernel(NETWORK, 4)


def test_standard_parametrization_is_the_gradient_of_such_a_network(x64):
    # by hand for a linear network, φ = identity, f = W2 W1 x: ∂W2 gives ⟨W1x, W1z⟩ → σ1² ⟨x,z⟩ w/d, ∂W1 gives
    # |W2|² ⟨x,z⟩ → σ2² ⟨x,z⟩; over the width w
    network, width, d = MLP(1, "identity", (1.2, 0.9)), 50, 4
    kernel = standard_parametrization(network, d, width)
    expected = (1.2**2 / d + 0.9**2 / width) * (X @ Z.T)
    np.testing.assert_allclose(kernel.gram(jnp.asarray(X), jnp.asarray(Z)), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="depends on the width"):
        standard_parametrization(network, d)


@pytest.mark.slow_cases("1.0-0.0", "0.0-1.0")
@pytest.mark.parametrize("first,head", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_finite_two_layer_kernels_tend_to_their_limits(first, head):
    A, B = jnp.asarray(X, jnp.float32), jnp.asarray(Z, jnp.float32)
    limit = np.asarray(infinite_two_layer("relu", first, head).gram(A, B))
    draws = np.stack([sample_two_layer(jax.random.key(s), 512, 4, "relu", first, head).gram(A, B) for s in range(24)])
    # unbiased at any width: within 4.5 standard errors of the mean of 24 draws (36 entries, 3 cases: chance 1e-3)
    error = draws.std(0, ddof=1) / np.sqrt(24)
    assert (np.abs(draws.mean(0) - limit) < 4.5 * error + 1e-6).all()


@pytest.mark.slow
def test_kernels_are_differentiable_in_their_parameters(x64):
    A, y = jnp.asarray(X), jnp.asarray(X[:, 0])

    def loss(kernel):
        K = kernel.gram(A)
        return y @ jnp.linalg.solve(K + 0.1 * jnp.eye(6), y)

    for kernel, field in ((Gaussian(jnp.asarray(1.3)), "bandwidth"), (2.0 * Laplace(jnp.asarray(1.3)), "factor")):
        slope = getattr(jax.grad(loss)(kernel), field)
        step, leaf = 1e-5, getattr(kernel, field)
        shifted = [
            loss(eqx.tree_at(lambda k, f=field: getattr(k, f), kernel, leaf + s)) for s in (step, -step)
        ]  # fmt: skip
        # central difference in float64: step² and 1e-16/step, about 1e-9
        np.testing.assert_allclose(slope, (shifted[0] - shifted[1]) / (2 * step), rtol=1e-6)


# an undeclared kink: the expansion is inaccurate and warns in every composition
UNNAMED = NTK(MLP(1, ActivationFunction("ramp", lambda x: jnp.maximum(x - 0.5, 0)), 1.0, 0.1))
COMPOSED = {
    "scaled metric": lambda: (2 * with_metric(UNNAMED, jnp.ones(4))).diag,
    "sum": lambda: (UNNAMED + UNNAMED).gram,
    "product": lambda: (UNNAMED * UNNAMED).gram,
    "sphere": lambda: OnSphere(UNNAMED).gram,
    "other inputs": lambda: (Gaussian() + UNNAMED).gram,
    "matmul": lambda: lambda A: matmul(2 * UNNAMED, A, A, A[:, :1]),
    "solve": lambda: lambda A: solve(2 * UNNAMED, A, A[:, 0], 0.1),
}


@pytest.mark.nightly_cases("solve")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "matmul" else pytest.mark.slow) for n in COMPOSED])
def test_composed_kernels_keep_warnings(name):
    with pytest.warns(UnlazyWarning, match="off by up to") as caught:
        COMPOSED[name]()(jnp.asarray(X, jnp.float32))
    # it points at who called (here the type checker's wrapper may be), not into the library
    assert any(Path(unlazy.__file__).parent not in Path(w.filename).parents for w in caught)


def test_every_composition_passes_the_warning_on():
    # the same without compiling a kernel: `warn` is what `diagonal` and products call
    both = UNNAMED + UNNAMED, UNNAMED * UNNAMED
    for each in (2 * UNNAMED, *both, with_metric(UNNAMED, jnp.ones(4)), OnSphere(UNNAMED)):
        with pytest.warns(UnlazyWarning, match="off by up to"):
            each.warn(np.ones(3, np.float32))


def test_closed_forms_and_named_kinks_do_not_warn(recwarn):
    for phi in (jax.nn.hard_tanh, ActivationFunction("ramp", lambda x: jnp.maximum(x - 0.5, 0), kinks=(0.5,)), "tanh"):
        (2 * NTK(MLP(1, phi, 1.0, 0.1))).warn(np.asarray([0.5, 2.0], np.float32))
    assert not [w for w in recwarn if issubclass(w.category, UnlazyWarning)]


def test_a_new_kernel_is_one_formula(x64):
    class Exponential(InnerProductKernel):
        def entry(self, xz, xx, zz):
            return jnp.exp(xz)

    K = (Exponential() + Linear()).gram(jnp.asarray(X), jnp.asarray(Z))
    np.testing.assert_allclose(K, np.exp(X @ Z.T) + X @ Z.T, rtol=1e-12)
