"""Kernels and points that check every program: families of kernels and their compositions, of vectors and of images."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from unlazy.kernels.base import Kernel
from unlazy.kernels.dot_product import Linear, Polynomial
from unlazy.kernels.metric import with_metric
from unlazy.kernels.networks.flips import with_flips
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern
from unlazy.layers import AvgPool, Conv, Dense, Flatten, GlobalAvgPool, LayerNorm, myrtle, residual, serial
from unlazy.theory.infinite_width.architecture import MLP

DIMENSION, SIZE = 20, 8
"""Dimension of vectors, and pixels per side of images."""
CONV = serial(Conv(3), "relu", AvgPool(2), Conv(3, sigma_b=0.2), "relu", GlobalAvgPool(), Dense())
DEEP = MLP(3, "relu", 1.3, 0.2)


def metric_of_check() -> jnp.ndarray:
    """M of the kernels with a metric."""
    A = np.random.default_rng(5).normal(size=(DIMENSION, DIMENSION)) / np.sqrt(DIMENSION)
    return jnp.asarray(np.matmul(A, A.T), jnp.float32)


VECTORS: dict[str, Callable[[], Kernel]] = {
    "gaussian": lambda: Gaussian(4.0),
    "laplace": lambda: Laplace(4.0),
    "matern": lambda: Matern(bandwidth=4.0, smoothness=2.5),
    "product_laplace": lambda: ProductLaplace(20.0),
    "linear": lambda: Linear(),
    "polynomial": lambda: Polynomial(3, 1.0),
    "ntk": lambda: NTK(MLP(3)),
    "ntk_biases": lambda: NTK(DEEP),
    "ntk_ten_layers": lambda: NTK(MLP(10)),
    "ntk_erf": lambda: NTK(MLP(2, "erf", 1.3, 0.2)),
    "nngp": lambda: NNGP(DEEP),
    "scaled": lambda: 3.0 * Laplace(4.0),
    "sum": lambda: Gaussian(4.0) + 0.5 * NTK(DEEP),
    "sum_with_constant": lambda: 1 + Laplace(4.0),
    "product": lambda: Gaussian(6.0) * NNGP(DEEP),
    "power": lambda: NTK(MLP(2)) ** 2,
    "metric": lambda: with_metric(Laplace(4.0), metric_of_check()),
    "metric_of_sum": lambda: with_metric(NNGP(MLP(3)) + NTK(MLP(2)), metric_of_check()),
    "metric_diagonal": lambda: with_metric(NTK(MLP(3)), jnp.linspace(0.5, 1.5, DIMENSION, dtype=jnp.float32)),
}
"""Kernels of vectors by name."""
IMAGES: dict[str, Callable[[], Kernel]] = {
    "conv_ntk": lambda: NTK(CONV),
    "conv_nngp": lambda: NNGP(CONV),
    "myrtle": lambda: NNGP(myrtle(5)),
    "flips": lambda: with_flips(NNGP(CONV)),
    "flips_ntk": lambda: with_flips(NTK(CONV)),
    "flips_myrtle": lambda: with_flips(NNGP(myrtle(5))),
    "flips_uneven": lambda: with_flips(NTK(serial(Conv(2), "relu", Flatten(), Dense()))),
    "flips_of_sum": lambda: with_flips(NNGP(CONV) + 0.5 * NTK(CONV)),
    "conv_sum": lambda: 2 * NNGP(CONV) + NTK(CONV),
    "conv_product": lambda: NNGP(CONV) * NTK(CONV),
    "residual": lambda: NTK(serial(Conv(3), residual("relu", Conv(3)), LayerNorm(), GlobalAvgPool(), Dense())),
}
"""Kernels of images by name."""


def points(n: int, images: bool = False, seed: int = 0, d: int = DIMENSION, size: int = SIZE) -> np.ndarray:
    """Random float32 rows, with a duplicate, an opposite point and the origin among them if n > 8."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, size, size, 3) if images else (n, d)).astype(np.float32)
    if n > 8:
        X[n // 2], X[n - 1], X[n - 2] = X[0], -X[1], 0
    return X
