"""Every kernel, one table: symmetric, positive, exact on the diagonal, finite with finite gradients, traced once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels import gram_blocks
from unlazy.kernels.algebra import Constant
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.custom import Custom
from unlazy.kernels.dot_product import ArcCosine, Linear, Polynomial
from unlazy.kernels.metric import Metric
from unlazy.kernels.networks.infinite_width import NNGP, NTK, LayerKernel, layer_kernel, standard_parametrization
from unlazy.kernels.networks.two_layer import sample_two_layer
from unlazy.kernels.periodic import Periodic, SpectralMixture
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.kernels.sphere import OnSphere, polynomial_on_sphere
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.infinite_width.architecture import MLP

D = 5
DEEP = MLP(3, "relu", 1.3, 0.2)
KERNELS = {
    "gaussian": lambda: Gaussian(1.5),
    "laplace": lambda: Laplace(1.5),
    "matern12": lambda: Matern(1.5, 0.5),
    "matern32": lambda: Matern(1.5, 1.5),
    "matern52": lambda: Matern(1.5, 2.5),
    "rational_quadratic": lambda: RationalQuadratic(1.5, 0.7),
    "product_laplace": lambda: ProductLaplace(3.0),
    "linear": lambda: Linear(0.5),
    "polynomial": lambda: Polynomial(3, 1.0),
    "arccos0": lambda: ArcCosine(0),
    "arccos1": lambda: ArcCosine(1),
    "arccos2": lambda: ArcCosine(2),
    "nngp": lambda: NNGP(DEEP),
    "ntk": lambda: NTK(DEEP),
    "ntk_no_bias": lambda: NTK(MLP(3)),
    "ntk_residual": lambda: NTK(MLP(3, "relu", 1.0, 0.1, residual=0.8)),
    "ntk_leaky": lambda: NTK(MLP(2, "leaky_relu")),
    "ntk_abs": lambda: NTK(MLP(2, "abs", 1.0, 0.1)),
    "ntk_erf": lambda: NTK(MLP(2, "erf", 1.3, 0.2)),
    "ntk_gelu": lambda: NTK(MLP(2, "gelu", 1.3, 0.2)),
    "ntk_sin": lambda: NTK(MLP(2, "sin", 1.3, 0.2)),
    "ntk_cos": lambda: NTK(MLP(2, "cos", 1.3, 0.2)),
    "ntk_square": lambda: NTK(MLP(2, "square", 0.7, 0.2)),
    "ntk_hermite": lambda: NTK(MLP(2, "hermite", 0.7, 0.2)),
    "nngp_step": lambda: NNGP(MLP(2, "step", 1.3, 0.2)),
    "ntk_truncated_relu": lambda: NTK(MLP(1, "truncated_relu", 1.3, 0.2)),  # two take minutes to compile backwards
    "ntk_tanh": lambda: NTK(MLP(2, "tanh", 1.3, 0.2)),
    "ntk_sigmoid": lambda: NTK(MLP(1, "sigmoid", 1.3, 0.2)),
    "ntk_softplus": lambda: NTK(MLP(1, "softplus", 1.3, 0.2)),
    "ntk_user": lambda: NTK(MLP(1, ActivationFunction("swish", jax.nn.silu), 1.3, 0.2)),
    "layers": lambda: LayerKernel(DEEP, (0.5, 0.0, 2.0, 1.0)),
    "head": lambda: layer_kernel(DEEP, -1),
    "first_layer": lambda: layer_kernel(DEEP, 1),
    "standard": lambda: standard_parametrization(DEEP, D, width=100),
    "sum": lambda: Gaussian(1.5) + 0.5 * Laplace(2.0),
    "product": lambda: NTK(DEEP) * NNGP(DEEP),
    "mixed_sum": lambda: Gaussian(1.5) + NTK(DEEP),
    "metric_diagonal": lambda: Metric(Laplace(1.5), jnp.arange(1.0, D + 1) / D),
    "metric_low_rank": lambda: Metric(NTK(DEEP), jnp.ones((2, D)) * jnp.asarray([[1.0], [0.5]]) + jnp.eye(2, D)),
    "on_sphere": lambda: OnSphere(NTK(DEEP), 2.0),
    "polynomial_on_sphere": lambda: polynomial_on_sphere(NTK(DEEP), D, 2.0),
    "gaussian_several": lambda: Gaussian(jnp.arange(1.0, D + 1)),
    "laplace_several": lambda: Laplace(jnp.arange(1.0, D + 1)),
    "periodic": lambda: Periodic(3.0, 1.5),
    "spectral_mixture": lambda: SpectralMixture([1.0, 0.5], np.full((2, D), 0.1), np.full((2, D), 0.01)),
    "constant": lambda: Constant(2.0),
    "plus_one": lambda: 1 + Gaussian(1.5),
    "squared": lambda: NTK(DEEP) ** 2,
    "custom": lambda: Custom(lambda x, z: jnp.exp(-jnp.sum(jnp.abs(x - z)))),
    "two_layer": lambda: sample_two_layer(jax.random.key(0), 64, D),
}


def _inputs(dtype, kernel=None):
    X = np.random.default_rng(0).normal(size=(12, D)).astype(dtype)
    X[3], X[5], X[7] = 0.0, X[4], -2 * X[4]  # the origin, a duplicate, an opposite
    images = kernel is not None and kernel.input_kind == "array"
    return jnp.asarray(X.reshape(12, D, 1, 1) if images else X)  # n × height × width × channels


DOUBLE = ["laplace", "ntk"]
DIFFERENTIATED = ["gaussian", "laplace", "product_laplace", "arccos1", "ntk", "ntk_erf", "metric_diagonal", "mixed_sum"]
"""Gradients compile for seconds: these stand for the rest, which is in the slow suite."""
VALUED = [*DIFFERENTIATED, "matern32", "polynomial", "nngp", "ntk_no_bias", "ntk_gelu", "layers", "on_sphere"]
CASES = [
    pytest.param(name, "float32", id=f"{name}-32", marks=[] if name in VALUED else pytest.mark.slow) for name in KERNELS
] + [
    pytest.param(name, "float64", id=f"{name}-64", marks=[] if name in DOUBLE else pytest.mark.slow) for name in KERNELS
]
TWICE = [f"{name}-float64" for name in KERNELS if name not in DIFFERENTIATED]
"""Gradients of the same formulas in the other precision."""


@pytest.mark.slow_cases(
    "arccos1-32",
    "layers-32",
    "matern32-32",
    "metric_diagonal-32",
    "nngp-32",
    "ntk-64",
    "ntk_erf-32",
    "ntk_gelu-32",
    "ntk_no_bias-32",
    "on_sphere-32",
    "mixed_sum-32",
    "laplace-64",
)
@pytest.mark.parametrize("name,dtype", CASES)
def test_values(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        kernel = KERNELS[name]()
        X = _inputs(dtype, kernel)
        K = np.asarray(kernel.gram(X))
        diagonal = np.asarray(kernel.diag(X))
        other, accurate = np.asarray(kernel.gram(X, X)), np.asarray(kernel.gram(X, accurate=True))
    assert K.dtype == dtype
    assert np.array_equal(K, K.T)
    assert np.array_equal(np.diagonal(K), diagonal)
    assert all(np.isfinite(k).all() for k in (K, other, accurate))
    unit = np.finfo(dtype).eps / 2
    # entries of kinked kernels carry √(8 units) of rounding of the angle, times a slope of at most the depth, 3; the
    # product of two of them twice that
    allowed = 6 * np.sqrt(8 * unit) * np.abs(K).max()
    assert max(np.abs(other - K).max(), np.abs(accurate - K).max()) <= allowed
    # an eigenvalue moves by at most the norm of the error, 12 times its largest entry
    assert np.linalg.eigvalsh(K.astype(np.float64)).min() >= -12 * allowed
    # the duplicate row is the same point
    np.testing.assert_allclose(K[4, 5], K[4, 4], rtol=16 * unit)


@pytest.mark.nightly_cases("ntk_truncated_relu-float32", *TWICE)
@pytest.mark.slow_cases("mixed_sum-float32", "ntk-float32", "ntk_erf-float32")
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in DIFFERENTIATED else pytest.mark.slow) for k in KERNELS]
)
def test_gradients_are_finite(name, dtype):
    @jax.jit
    def gradients(kernel, X, Z):
        total = lambda k, X, Z: k.gram(X, Z).sum() + k.diag(X).sum()  # noqa: E731
        return jax.grad(total, argnums=(0, 1, 2))(kernel, X, Z)

    with jax.enable_x64(dtype == "float64"):
        kernel = KERNELS[name]()
        X = _inputs(dtype, kernel)
        kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
        assert all(np.isfinite(np.asarray(g)).all() for g in jax.tree.leaves(gradients(kernel, X, X)))


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in ("laplace", "polynomial", "ntk") else pytest.mark.slow) for k in KERNELS]
)
@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_extreme_norms_are_finite_or_rejected(name, size):
    kernel = KERNELS[name]()
    X = _inputs("float32", kernel)
    X = X * (size / jnp.linalg.norm(X[0]))
    try:
        values = [kernel.gram(X), kernel.gram(X, X), kernel.gram(X, accurate=True), kernel.diag(X)]
    except ValueError as refusal:
        assert "rescale" in str(refusal) or "subtract multiples of the period" in str(refusal)
    else:
        assert all(np.isfinite(np.asarray(v)).all() for v in values)


class Counting(InnerProductKernel):
    """Counts how often its formula is traced."""

    scale: float
    calls: list = eqx.field(static=True)

    def entry(self, xz, xx, zz):
        self.calls.append(1)
        return self.scale * xz


class Calls(list):
    """A list that is a valid static field."""

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


def test_traced_once():
    calls, X = Calls(), _inputs("float32")
    Counting(1.0, calls).gram(X)
    first = len(calls)
    for scale in (2.0, 3.0):
        Counting(scale, calls).gram(X + scale)
    assert len(calls) == first


def test_blocks_equal_the_whole(monkeypatch):
    # the same entries in other shapes: only the order of sums of D terms may differ
    X = jnp.asarray(np.random.default_rng(1).normal(size=(50, D)).astype(np.float32))
    kernel = NTK(DEEP)
    whole = kernel.gram(X)
    monkeypatch.setattr(gram_blocks, "UNSPLIT_MAX_BYTES", 0)
    monkeypatch.setenv("UNLAZY_MEMORY", str(4 * 50 * 4 * 8))
    assert gram_blocks._rows_at_once(kernel, X, 50, False) == 8
    blocked = kernel.gram(X)
    assert np.abs(np.asarray(whole - blocked)).max() <= 3 * np.sqrt(16 * 2.0**-24) * np.asarray(whole).max()
    assert np.array_equal(np.asarray(blocked), np.asarray(blocked).T)


def test_bandwidth_is_the_first_argument_of_every_radial_kernel():
    for kind in (Gaussian, Laplace, Matern, RationalQuadratic):
        assert kind(0.7).bandwidth == 0.7, kind.__name__


def test_errors():
    X = _inputs("float32")
    with pytest.raises(ValueError, match="columns"):
        Gaussian().gram(X, X[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        Gaussian().gram(X.at[0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        Laplace(-1.0)
    with pytest.raises(ValueError, match="smoothness"):
        Matern(smoothness=1.0)
    with pytest.raises(ValueError, match="no derivative"):
        NTK(MLP(1, "step")).gram(X)
