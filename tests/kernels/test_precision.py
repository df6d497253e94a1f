"""float32 near the diagonal against 50-digit arithmetic, with the bound that rounding of ⟨x,z⟩ implies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles_mpmath import reference
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.networks.infinite_width import NTK, nngp_and_ntk
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.theory.activations import dual_errors
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import SNAP_UNITS

D, PAIRS = 20, 3
DISTANCES = 10.0 ** -np.arange(7)


def _pairs(dtype, radial):
    """For every relative distance some pairs, as rows of X and of Z: moved at random, or along x."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PAIRS, D))
    move = x if radial else rng.normal(size=x.shape)
    move = move * np.linalg.norm(x, axis=1, keepdims=True) / np.linalg.norm(move, axis=1, keepdims=True)
    X = np.repeat(x[None], len(DISTANCES), 0)
    Z = X + DISTANCES[:, None, None] * move
    return X.reshape(-1, D).astype(dtype), Z.reshape(-1, D).astype(dtype)


def _errors(network, X, Z, accurate):
    """Largest |ours - exact|/√(k(x,x)k(z,z)) of NNGP and NTK at every distance, and θ of the first hidden layer."""
    ours = [np.diagonal(np.asarray(K)) for K in nngp_and_ntk(network, jnp.asarray(X), jnp.asarray(Z), accurate)]
    rows = []
    for i, (x, z) in enumerate(zip(X, Z)):
        sigma, theta, at_x, at_z = reference(x, z, network.sigma_w, network.sigma_b)
        scale = float(at_x * at_z) ** 0.5
        rows.append([abs(float(k[i] - float(v))) / scale for k, v in zip(ours, (sigma, theta))])
    return np.array(rows).reshape(len(DISTANCES), PAIRS, 2).max(1)


@pytest.mark.slow_cases("across-0.0", "across-0.3", "along-0.3")
@pytest.mark.parametrize("bias", [0.0, 0.3])
@pytest.mark.parametrize("radial", [False, True], ids=["across", "along"])
def test_accurate_at_every_distance(bias, radial):
    for dtype, bound in (("float32", 1e-6), ("float64", 1e-13)):
        with jax.enable_x64(dtype == "float64"):
            errors = _errors(MLP(3, "relu", 2**0.5, bias), *_pairs(dtype, radial), accurate=True)
        assert errors.max() < bound, (dtype, errors)


def test_accurate_at_depth_ten():
    # each of 10 layers rounds some 10 times, and errors of the angle add up with slope (depth/2)/π = 1.6
    errors = _errors(MLP(10, "relu", 2**0.5, 0.3), *_pairs("float32", False), accurate=True)
    assert errors.max() < 2e-6


@pytest.mark.slow_cases("0.0-10", "0.3-3")
@pytest.mark.parametrize("depth", [3, 10])
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_default_error_is_what_rounding_of_inner_products_implies(depth, bias):
    """|δu| ≤ δ gives |δθ| ≤ min(√(2δ), δ/θ), and a normalized NTK has slope at most (depth/2)/π in θ near 0.

    δ: an inner product of d terms rounds by at most d units of |x||z| in any order (Higham 2002, section 3.1); u is
    made of three of them, with weights 1, ½, ½, and of 4 units of further rounding; pairs below the snap floor are set
    to 0, which adds the floor. All other operations: 30 units per layer.
    """
    unit = 2.0**-24
    delta = (2 * D + 4 + SNAP_UNITS) * unit
    X, Z = _pairs("float32", False)
    errors = _errors(MLP(depth, "relu", 2**0.5, bias), X, Z, accurate=False)
    slope = depth / (2 * np.pi)
    # with a bias the angle is smaller than the relative distance, by |x|σ_w/√d / √(|x|²σ_w²/d + σ_b²) > 0.9
    angle = 0.9 * np.minimum(DISTANCES, 1.0)
    implied = slope * np.minimum(np.sqrt(2 * delta), 2 * delta / angle) + 30 * unit * (depth + 1)
    assert (errors[:, 1] <= implied).all(), (errors[:, 1], implied)
    # the NNGP is of second order: δ itself, times a slope of at most 1 in u
    assert (errors[:, 0] <= delta + 30 * unit * (depth + 1)).all()


@pytest.mark.slow_cases("1", "20", "3", "784")
@pytest.mark.parametrize("d", [1, 3, 20, 333, 784])
def test_duplicate_points_are_exact(d):
    rng = np.random.default_rng(d)
    X = np.concatenate([rng.normal(size=(20, d)), np.full((4, d), 0.7), rng.uniform(size=(8, d))]).astype(np.float32)
    X = jnp.asarray(np.concatenate([X, X]))
    for K in (*nngp_and_ntk(MLP(3), X), *nngp_and_ntk(MLP(3, "relu", 1.2, 0.3), X), Laplace(2.0).gram(X)):
        K = np.asarray(K)
        i = np.arange(32)
        # the same formula in another loop: the angle is exactly 0, the rest rounds a few times
        np.testing.assert_allclose(K[i, i + 32], K[i, i], rtol=16 * 2.0**-24)


def test_offsets_do_not_lose_accuracy():
    # centering: distances of order 1 around an offset of 1000 keep errors of rounding of the offset, 1000 units, not of
    # its square
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(16, 5)) + 1000).astype(np.float32)
    exact = X.astype(np.float64)
    squares = ((exact[:, None] - exact[None]) ** 2).sum(-1)
    K = np.asarray(Gaussian(1.0).gram(jnp.asarray(X)))
    # the center itself rounds (shared by both, cancels); entries of X - center are exact to 2^-24·8; D ≤ 60
    assert np.abs(K - np.exp(-0.5 * squares)).max() < 60 * 8 * 2.0**-24


def _erf_oracle(X, network):
    """NTK of an erf network by Williams' formula in NumPy float64, on the inputs as float32 rounded them."""
    X = X.astype(np.float64)
    (w0, *ws), (b0, *bs) = network.sigma_w, network.sigma_b
    Q = w0**2 * (X @ X.T) / X.shape[1] + b0**2
    theta = Q
    for w, b in zip(ws, bs):
        d = 1 + 2 * np.diagonal(Q)
        outer = np.sqrt(np.outer(d, d))
        # 1 - ρ² without cancellation: (outer - 2Q)(outer + 2Q)/outer²; outer - 2Q keeps 1e-16·1e4 of about 1
        slope = w**2 * 4 / np.pi / np.sqrt((outer - 2 * Q) * (outer + 2 * Q))
        Q = w**2 * 2 / np.pi * np.arcsin(np.clip(2 * Q / outer, -1, 1)) + b**2
        theta = Q + theta * slope
    return theta


@pytest.mark.slow
def test_erf_far_from_the_origin():
    """Inputs of mean 100 and spread 1 in float32: accurate from differences; inner products lose digits and warn.

    From differences u is known to (d + 8) units relative, and so is all that follows from it at the first layer;
    later layers have variances of order 1, and round some 30 times each.
    """
    rng = np.random.default_rng(0)
    X = (100 + rng.normal(size=(24, 6))).astype(np.float32)
    network = MLP(2, "erf", 1.3, 0.4)
    expected = _erf_oracle(X, network)
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    ours = np.asarray(NTK(network).gram(jnp.asarray(X), accurate=True))
    assert (np.abs(ours - expected) / scale).max() < (6 + 8 + 30 * 3) * 2.0**-24
    with pytest.warns(UnlazyWarning, match="inner products in float32"):
        plain = np.asarray(NTK(network).gram(jnp.asarray(X)))
    stated = dual_errors.rounding_error(network, float((X.astype(float) ** 2).sum(1).max() / 6), 2.0**-24)
    assert (np.abs(plain - expected) / scale).max() <= stated


@pytest.mark.slow_cases("sin", "gelu")
@pytest.mark.parametrize("name", ["gelu", "sin", pytest.param("truncated_relu", marks=pytest.mark.slow)])
def test_closed_forms_far_from_the_origin(name):
    # the same network in float64 on the same inputs, whose inner products keep 1e-16 · 1e4 of distances of order 1;
    # the truncated ReLU counts how many points lie between two kinks 1/100 of a deviation apart: condition 100
    X = (100 + np.random.default_rng(0).normal(size=(12, 6))).astype(np.float32)
    network = MLP(1, name, 1.0, 0.4)
    ours = np.asarray(NTK(network).gram(jnp.asarray(X), accurate=True))
    with jax.enable_x64(True):
        expected = np.asarray(NTK(network).gram(jnp.asarray(X, jnp.float64), accurate=True))
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    # distances: |x| - |z| of norms of 100 rounds by 100 units, D by 2·D^½·100 units ≤ 1000 units; sin's exponent is D/2
    allowed = {"sin": 1000, "gelu": 200, "truncated_relu": 100 * 100}[name] * 2.0**-24
    assert (np.abs(ours - expected) / scale).max() < allowed


def test_offset_inputs_of_other_kernels_do_not_warn(recwarn):
    X = jnp.asarray(100 + np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)
    NTK(MLP(2, "relu", 1.3, 0.4)).gram(X)
    assert not [w for w in recwarn if issubclass(w.category, UnlazyWarning)]
