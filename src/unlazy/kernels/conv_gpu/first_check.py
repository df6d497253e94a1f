"""Error of a GPU program for convolutional kernels against float64: run before the first use on a device."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.engines import Verdict
from unlazy.core.reference import UNIT, UNITS, error, float64_on_cpu
from unlazy.layers import AvgPool, Conv, Dense, GlobalAvgPool, Layer, Serial, Shape, serial
from unlazy.layers.protocol import covariance

Evaluate = Callable[[Serial, covariance.PointCovariances, covariance.PointCovariances], tuple[Array, Array | None]]
"""Σ and Θ (None for an NNGP) of all pairs of two prepared sides of a network."""
NETWORK = serial(Conv(3), "relu", AvgPool(2), Conv(3, sigma_b=0.2), "relu", GlobalAvgPool(), Dense())
SIZE, CHANNELS = 16, 3
"""Images with two stages, of 16 and 8 pixels, which every program supports."""
IMAGES = 2, 9
"""Numbers of images: more than one tile on the right, and no full one."""


def verdict(tangent: bool, evaluate: Evaluate, net: Serial = NETWORK, size: int = SIZE) -> Verdict:
    """The largest error of `evaluate(network, left, right)`, Σ and Θ of all pairs of two prepared sides."""
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(n, size, size, CHANNELS)) for n in IMAGES)
    with float64_on_cpu():
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), net)
        grid = covariance.grid_of(exact, Shape(X.shape[1:-1], CHANNELS))
        left, right = (_prepared(exact, jnp.asarray(A.astype(np.float32), jnp.float64), tangent) for A in (X, Z))
        wanted = [np.asarray(K) for K in covariance.of_block(exact, left, right, grid, tangent) if K is not None]
    left, right = (_prepared(net, jnp.asarray(A, jnp.float32), tangent) for A in (X, Z))
    found = [K for K in evaluate(net, left, right) if K is not None]
    return Verdict(max(error(K, K_exact) for K, K_exact in zip(found, wanted, strict=True)), UNITS * UNIT)


def _prepared(net: Layer, X: Array, tangent: bool) -> covariance.PointCovariances:
    return jax.vmap(lambda x: covariance.point_covariances(net, x, None, tangent))(X)
