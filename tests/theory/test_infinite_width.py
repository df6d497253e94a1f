"""Infinite-width recursions against neural-tangents, 50-digit arithmetic and each other."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles_mpmath import reference
from unlazy.theory.activations import duals
from unlazy.theory.activations.functions import activation
from unlazy.theory.infinite_width import fully_connected, homogeneous
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import angle_and_gap

DATA = np.load(Path(__file__).parent.parent / "data" / "neural_tangents.npz")
CASES = sorted({key.split("/")[0] for key in DATA.files})


def _network(case):
    name, depth = case.split("_", 1)[1].rsplit("_depth", 1)
    phi = activation("leaky_relu", 0.1) if name.startswith("leaky") else activation(name)
    sigma_w, sigma_b = (tuple(float(s) for s in DATA[f"{case}/{key}"]) for key in ("sigma_w", "sigma_b"))
    return MLP(int(depth), phi, sigma_w, sigma_b)


def _products(X, Z):
    d = X.shape[1]
    return jnp.asarray(X @ Z.T / d), jnp.asarray((X**2).sum(1) / d)[:, None], jnp.asarray((Z**2).sum(1) / d)[None]


@pytest.mark.slow_cases("case04_gelu_depth1", "case12_sin_depth2", "case00_relu_depth3")
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if i % 4 == 0 else pytest.mark.slow) for i, c in enumerate(CASES)]
)
def test_agrees_with_neural_tangents(case, x64):
    network, X, Z = _network(case), DATA[f"{case}/X"], DATA[f"{case}/Z"]
    unit = [P / np.linalg.norm(P, axis=1, keepdims=True) for P in (X, Z)]
    half_chord = 0.5 * ((unit[0][:, None] - unit[1][None]) ** 2).sum(-1)
    half_chord = jnp.asarray(np.where(half_chord > 2 - 1e-14, 2, half_chord))  # opposite points, to rounding
    ours = fully_connected.nngp_and_ntk(*_products(X, Z), network, half_chord)
    slope = duals.slope_below_zero(network.activation)
    # relative to √(k(x,x) k(z,z)): 1e-13 is 900 units of rounding for up to 6 layers of some 20 operations, each of
    # which may be amplified by the condition of the inner products of 10 terms
    for k, key in zip(ours, ("nngp", "ntk")):
        scale = np.sqrt(_diagonal(network, X, key)[:, None] * _diagonal(network, Z, key))
        off = np.abs(np.asarray(k) - DATA[f"{case}/{key}"]) / scale
        doubtful = np.argwhere(off > 1e-13)
        # kinked NTKs of (nearly) parallel pairs, where theirs loses half its digits: settled by 50-digit arithmetic
        assert len(doubtful) == 0 or (slope is not None and key == "ntk" and len(doubtful) <= 2)
        for i, j in doubtful:
            expected = float(reference(X[i], Z[j], network.sigma_w, network.sigma_b, slope)[1])
            assert abs(float(k[i, j]) - expected) / scale[i, j] < 1e-13


def _diagonal(network, X, key):
    xx = jnp.asarray((X**2).sum(1) / X.shape[1])
    return np.asarray(fully_connected.nngp_and_ntk(xx, xx, xx, network)[key == "ntk"])


@pytest.mark.slow_cases("0.0-0.0-relu")
@pytest.mark.parametrize("slope,name", [(0.0, "relu"), (0.2, "leaky_relu"), (-1.0, "abs")])
@pytest.mark.parametrize("residual", [0.0, 0.7])
def test_against_mpmath_with_residuals(slope, name, residual, x64):
    phi = activation(name, slope) if name == "leaky_relu" else activation(name)
    network = MLP(4, phi, (1.3, 0.9, 1.1, 1.4, 1.0), (0.2, 0.0, 0.5, 0.1, 0.3), residual=residual)
    rng = np.random.default_rng(1)
    X, Z = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    ours = fully_connected.nngp_and_ntk(*_products(X, Z), network)
    for i in range(3):
        expected = reference(X[i], Z[i], network.sigma_w, network.sigma_b, slope, residual)
        for k, value in zip(ours, expected):
            assert abs(float(k[i, i]) - float(value)) < 1e-13 * float(expected[2])


@pytest.mark.slow
@pytest.mark.slow_cases("gelu")
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_layer_kernels_sum_to_the_ntk(name, x64):
    network = MLP(3, name, 1.2, 0.3, residual=0.5)
    rng = np.random.default_rng(2)
    products = _products(rng.normal(size=(4, 6)), rng.normal(size=(4, 6)))
    layers = fully_connected.layer_kernels(*products, network)
    assert len(layers) == 4
    # sums of four numbers in another order: a few units of rounding
    np.testing.assert_allclose(sum(layers), fully_connected.ntk(*products, network), rtol=1e-14)
    only = fully_connected.nngp_and_tangent(*products, network, (0.0, 1.0, 0.0, 0.0))[1]
    np.testing.assert_allclose(only, layers[1], rtol=1e-14)
    np.testing.assert_allclose(layers[-1], fully_connected.nngp(*products, network), rtol=1e-14)  # the head sees Σ


def test_residual_identity_network_is_the_closed_form(x64):
    # φ = identity: Σ^l = (s² + σ_w²) Σ^{l-1}, by hand
    network = MLP(3, "identity", 1.1, 0.0, residual=0.5)
    xz, xx, zz = jnp.asarray(0.3), jnp.asarray(1.0), jnp.asarray(2.0)
    expected = 1.21 * (0.25 + 1.21) ** 2 * 1.21 * 0.3
    np.testing.assert_allclose(fully_connected.nngp(xz, xx, zz, network), expected, rtol=1e-14)


@pytest.mark.parametrize("depth", [1, 3, 10])
@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_angle_polynomial_keeps_its_bound(depth, slope):
    powers, stated = homogeneous.fit_kernel_polynomials(depth, slope)
    assert stated <= homogeneous.FIT_ERROR
    assert powers.shape[1] <= 20  # nearly the cost of one layer
    theta = np.random.default_rng(0).uniform(0, np.pi, 5000)
    fitted = 1 + theta * np.array([np.polyval(row[::-1], 2 * theta / np.pi - 1) for row in powers])
    # between grid points of spacing π/2000 the error changes by its slope times half of that: 20% more
    assert np.abs(fitted - homogeneous.kernels_at_angle(theta, depth, slope)).max() <= 1.2 * homogeneous.FIT_ERROR


@pytest.mark.slow_cases("1", "3")
@pytest.mark.parametrize("depth", [1, 3, 10])
def test_fast_path_in_float32_equals_layers_in_float64(depth):
    network = MLP(depth, "relu", tuple(1.2 + 0.1 * l for l in range(depth + 1)))
    cosine = np.cos(np.linspace(0.05, np.pi - 0.05, 200)).astype(np.float32)
    xx, zz = np.float32(1.7) * np.ones(200, np.float32), np.float32(0.4) * np.ones(200, np.float32)
    xz = (cosine * np.sqrt(xx * zz)).astype(np.float32)
    fast = fully_connected.nngp_and_ntk(jnp.asarray(xz), jnp.asarray(xx), jnp.asarray(zz), network)
    with jax.enable_x64(True):
        exact = fully_connected.nngp_and_ntk(*(jnp.asarray(v, jnp.float64) for v in (xz, xx, zz)), network)
        scale = [np.sqrt(_of_norm(xx[0], network)[i] * _of_norm(zz[0], network)[i]) for i in (0, 1)]
    # fit 3e-8; the angle's rounding 2 units/sin 0.05 = 2.4e-6 times the slope in θ, at most (depth/2)/π; 30 roundings
    allowed = 3e-8 + 2 * 2.0**-24 / np.sin(0.05) * depth / (2 * np.pi) + 30 * 2.0**-24
    for a, b, s in zip(fast, exact, scale):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() / s < allowed


def _of_norm(q, network):
    q = jnp.asarray(float(q))
    return [float(v) for v in fully_connected.nngp_and_ntk(q, q, q, network)]


def test_angle_is_accurate_at_all_sizes(x64):
    u = jnp.asarray([1e-300, 1e-12, 1e-3, 0.5, 1.0, 1.5, 1.999, 2.0])
    theta, gap = angle_and_gap(u)
    exact = 2 * np.arcsin(np.sqrt(np.asarray(u) / 2))
    # the fit is good to 1e-15 relative; arcsin near 1 amplifies the oracle's rounding to 1e-15/√(2 - u)
    np.testing.assert_allclose(theta, exact, rtol=1e-13)
    # h → θ³/3 (1 - θ²/10): the oracle's own cancellation is avoided by the series for the small ones
    np.testing.assert_allclose(gap[:2], np.asarray(exact[:2]) ** 3 / 3, rtol=1e-12)
    np.testing.assert_allclose(gap[3:], np.sin(exact[3:]) - exact[3:] * np.cos(exact[3:]), rtol=1e-12)


def test_sigmas_can_be_differentiated_and_traced():
    def loss(sigma):
        return fully_connected.ntk(jnp.float32(0.3), jnp.float32(1.0), jnp.float32(1.0), MLP(2, "relu", sigma, 0.1))

    value, slope = jax.jit(jax.value_and_grad(loss))(1.3)
    step = 1e-2
    numeric = (loss(1.3 + step) - loss(1.3 - step)) / (2 * step)
    # central difference: third derivative of a degree-6 polynomial in σ times step²/6, 1e-3 relative
    assert abs(slope / numeric - 1) < 2e-3
    assert np.isfinite(value)


def test_biases_cannot_appear_after_construction():
    network = eqx.tree_at(lambda m: m.sigma_b, MLP(1), (0.5, 0.5))
    with pytest.raises(ValueError, match="construct a new MLP"):
        fully_connected.ntk(jnp.ones(()), jnp.ones(()), jnp.ones(()), network)


DEEP = {
    "relu": MLP(3, "relu", np.linspace(1.0, 1.45, 4), np.linspace(0.1, 0.3, 4), residual=0.8),
    "erf": MLP(3, "erf", np.linspace(1.0, 1.45, 4), 0.2),
}


@pytest.mark.parametrize("name", ["relu", pytest.param("erf", marks=pytest.mark.slow)])
def test_a_loop_over_layers_is_the_layers_written_out(name, x64):
    rng = np.random.default_rng(3)
    products = _products(rng.normal(size=(3, 5)), rng.normal(size=(4, 5)))

    def found(scale, unroll=False):
        network = eqx.tree_at(lambda m: m.sigma_w, DEEP[name], tuple(scale * s for s in DEEP[name].sigma_w))
        return jnp.stack(fully_connected.nngp_and_tangent(*products, network, (1.0, 2.0, 3.0, 4.0), unroll=unroll))

    value, slope = jax.jit(lambda t: jax.jvp(found, (t,), (jnp.ones_like(t),)))(1.0)
    ours = jax.jit(lambda t: found(t, unroll=True))
    plain, above, below = (ours(t) for t in (1.0, 1 + 1e-5, 1 - 1e-5))
    # the same operations on numbers of order 1 to 100, fused in another order: some 50 units per layer
    np.testing.assert_allclose(value, plain, rtol=1e-13, atol=1e-13)
    # central difference: step² times the third derivative, and rounding of 1e-14/step: some 1e-8 of numbers up to 100
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", DEEP)
def test_depth_costs_no_compile_time(name):
    # the traced program has as many lines at depth 40 as at depth 20, but for stacking the layers' parameters
    def lines(depth):
        network = MLP(depth, name, 1.2, 0.3)
        q = jnp.ones((2, 2), jnp.float32)
        jaxpr = jax.make_jaxpr(lambda q: fully_connected.ntk(0.5 * q, q, q, network))(q)
        return sum(1 for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name not in STACKING)

    assert lines(40) == lines(20)


STACKING = ("broadcast_in_dim", "convert_element_type", "concatenate", "reshape", "copy")
