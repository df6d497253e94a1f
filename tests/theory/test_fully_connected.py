"""Recursions of fully connected networks against their definition by quadrature, with everything different by layer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from oracles_networks import Function, tangent_kernel
from unlazy.theory.activations.functions import activation
from unlazy.theory.infinite_width import fully_connected, per_point_ntk
from unlazy.theory.infinite_width.architecture import MLP

WEIGHTS, BIAS_WEIGHTS = (1.0, 2.0, 0.5), (0.3, 1.5, 0.7)
SIGMA_W, SIGMA_B = (0.9, 1.3, 1.1), (0.4, 0.2, 0.3)


def leaky(slope):
    return Function(lambda x: np.where(x > 0, x, slope * x), lambda x: np.where(x > 0, 1.0, slope), (0.0,))


def normal_cdf(x):
    return 0.5 * (1 + erf(x / math.sqrt(2)))


def density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


FUNCTIONS = {
    "relu": (activation("relu"), leaky(0.0)),
    "leaky_relu": (activation("leaky_relu", 0.3), leaky(0.3)),
    "abs": (activation("abs"), leaky(-1.0)),
    "identity": (activation(jnp.positive), leaky(1.0)),
    "erf": (activation("erf"), Function(erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x))),
    "gelu": (activation("gelu"), Function(lambda x: x * normal_cdf(x), lambda x: normal_cdf(x) + x * density(x))),
    "sin": (activation("sin", 2.0), Function(lambda x: np.sin(2 * x), lambda x: 2 * np.cos(2 * x))),
    "tanh": (activation("tanh"), Function(np.tanh, lambda x: 1 / np.cosh(x) ** 2)),
}
SCALE = [1.0, 0.2, 1.4]
"""Of the points: norms that differ by more than a factor 4 take another formula for the angle."""


def points():
    rng = np.random.default_rng(4)
    X, Z = rng.normal(size=(3, 4)) / 2, rng.normal(size=(2, 4)) / 2
    X *= np.array(SCALE)[:, None]
    Z[1] = -X[0] + 0.2 * Z[1]  # an obtuse angle
    return X, Z


def products(X, Z):
    return jnp.asarray(X @ Z.T), jnp.asarray((X * X).sum(1))[:, None], jnp.asarray((Z * Z).sum(1))[None]


def expected(phi, network, X, Z, bias_weights=BIAS_WEIGHTS):
    q = [np.broadcast_to(p, (len(X), len(Z))) for p in products(X, Z)]
    fields = [np.asarray(v, float) for v in (network.sigma_w, network.sigma_b)]
    every = [
        tangent_kernel(phi, [p[i, j] for p in q], *fields, float(network.residual), WEIGHTS, bias_weights)
        for i, j in np.ndindex(len(X), len(Z))
    ]
    return np.array(every).T.reshape(2, len(X), len(Z))


def half_chord(X, Z):
    X, Z = (P / np.linalg.norm(P, axis=1, keepdims=True) for P in (X, Z))
    return jnp.asarray(0.5 * np.square(X[:, None] - Z[None]).sum(-1))


@pytest.mark.slow_cases("gelu-0.6", "erf-0.6", "tanh-0.6", "sin-0.6")
@pytest.mark.parametrize("name, residual", [*((name, 0.6) for name in FUNCTIONS), ("relu", 0.0), ("erf", 0.0)])
def test_entries_are_those_of_the_definition(name, residual, x64):
    """Panels of the oracle are exact to 1e-12 (poles of tanh two panels away); rounding of the rest is below that."""
    phi, plain = FUNCTIONS[name]
    X, Z = points()
    network = MLP(2, phi, SIGMA_W, SIGMA_B, residual=residual)
    wanted = expected(plain, network, X, Z)
    chords = [None, half_chord(X, Z)] if residual else [None]
    for chord in chords:
        found = fully_connected.nngp_and_tangent(*products(X, Z), network, WEIGHTS, BIAS_WEIGHTS, chord)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_the_covariance_alone_and_the_diagonal(x64):
    phi, plain = FUNCTIONS["tanh"]
    X, Z = points()
    network = MLP(2, phi, SIGMA_W, SIGMA_B, residual=0.6)
    only, none = fully_connected.nngp_and_tangent(*products(X, Z), network, None)
    np.testing.assert_allclose(only, expected(plain, network, X, Z)[0], rtol=1e-11, atol=1e-11)
    assert not np.any(none)
    q = jnp.asarray((X * X).sum(1))
    diagonal = fully_connected.diagonal_kernels(q, network, WEIGHTS, BIAS_WEIGHTS)
    # the oracle needs |correlation| < 1; cosine_gap makes pairs within rounding equal: 1e-13 changes entries by 1e-13
    near = [[tangent_kernel(plain, (p * (1 - 1e-13), p, p), SIGMA_W, SIGMA_B, 0.6, WEIGHTS, BIAS_WEIGHTS)] for p in q]
    np.testing.assert_allclose(diagonal, np.array(near)[:, 0].T, rtol=1e-11)
    alone, none = fully_connected.diagonal_kernels(q, network, None)
    np.testing.assert_allclose(alone, np.array(near)[:, 0, 0], rtol=1e-11)
    assert none.shape == alone.shape and not np.any(none)


@pytest.mark.slow_cases("tanh-0.6")
@pytest.mark.parametrize("name, residual", [("relu", 0.0), ("leaky_relu", 0.6), ("tanh", 0.6)])
def test_blocks_from_terms_of_points_are_those_of_the_definition(name, residual, x64):
    phi, plain = FUNCTIONS[name]
    X, Z = points()
    network = MLP(2, phi, SIGMA_W, SIGMA_B, residual=residual)
    sides = [per_point_ntk.per_point_terms(jnp.asarray((P * P).sum(1)), network, True) for P in (X, Z)]
    found = per_point_ntk.nngp_and_tangent(products(X, Z), *sides, network, WEIGHTS, BIAS_WEIGHTS)
    np.testing.assert_allclose(found, expected(plain, network, X, Z), rtol=1e-11, atol=1e-11)


def test_which_networks_take_which_path():
    """Plain networks in float32 are one polynomial of the angle at any depth; skips and biases need the layers."""
    ask = jax.ShapeDtypeStruct((2, 2), jnp.float32)

    def loops(network):
        run = jax.make_jaxpr(lambda *q: fully_connected.nngp_and_ntk(*q, network))(ask, ask, ask)
        return "scan" in str(run)

    assert not loops(MLP(3, "relu"))
    assert loops(MLP(3, "relu", residual=0.5)) and loops(MLP(3, "relu", sigma_b=0.1)) and loops(MLP(3, "erf"))
    acute = per_point_ntk._all_angles_acute  # decides whether the angle's second half is computed
    assert acute(MLP(2, "relu", sigma_b=0.1)) and acute(MLP(2, "abs", sigma_b=0.1))
    assert not acute(MLP(2, "relu", residual=0.5)) and not acute(MLP(2, "leaky_relu", sigma_b=0.1))
    assert not acute(MLP(2, "erf", sigma_b=0.1))
