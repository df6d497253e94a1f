"""Images, networks of convolutions with pools, and their kernels by the recursion in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.kernels.networks.layered import LayeredNNGPAndNTK
from unlazy.layers import AvgPool, Conv, Dense, GlobalAvgPool, serial

# float32 with polynomials good to 1.5e-7: five layers and sums of some hundred terms, each a few units of rounding
CLOSE = 3e-6


def images(n, size, channels=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, size, size, channels))


def network(*counts, window=3, padding="same", sigma_b=0.0, **rates):
    conv = [Conv(window, 1.3, sigma_b, padding=padding, **rates), "relu"]
    parts = [conv * count + [AvgPool(2)] for count in counts]
    return serial(*[layer for part in parts for layer in part][:-1], GlobalAvgPool(), Dense(1.1, sigma_b, **rates))


def exact(net, X, Z):
    with jax.enable_x64(True):
        X, Z = (jnp.asarray(np.asarray(A, np.float32).astype(float)) for A in (X, Z))
        return [np.asarray(K) for K in LayeredNNGPAndNTK(net).block(*LayeredNNGPAndNTK(net).sides(X, Z))]
