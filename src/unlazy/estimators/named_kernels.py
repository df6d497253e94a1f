"""Kernels by name, with a data-dependent default bandwidth, shared by all estimators."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import pdist

from unlazy.core.errors import did_you_mean
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.dot_product import Linear, Polynomial
from unlazy.kernels.metric import Metric
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import evenly_spaced_rows, median_distance, root_mean_square_norm

NETWORK = MLP(depth=2, activation="relu", sigma_b=0.5)
"""Network of the "nngp" and "ntk" kernels. It has biases: without them the kernels are homogeneous in ‖x‖."""

_RADIAL: dict[str, Callable[[float], Kernel]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "matern": lambda h: Matern(h, 1.5),
    "product_laplace": ProductLaplace,
    "rational_quadratic": RationalQuadratic,
}
_SCALED = ("linear", "nngp", "ntk", "polynomial")
NAMES = (*_RADIAL, *_SCALED)


def unit_kernel(name: str) -> Kernel:
    """The named kernel at bandwidth one; networks are built when first asked for, since layers take long to import."""
    return _scaled_kernel(name) if name in _SCALED else _RADIAL[name](1.0)


@functools.cache
def _scaled_kernel(name: str) -> InnerProductKernel:
    """The kernel of this name, whose bandwidth is a scale of its inputs."""
    if name in ("nngp", "ntk"):
        from unlazy.kernels.networks.infinite_width import NNGP, NTK

        return NNGP(NETWORK) if name == "nngp" else NTK(NETWORK)
    return Linear() if name == "linear" else Polynomial(2)


SAMPLE = 1000
"""Number of rows whose distances give the median."""


def kernel_named(name: str, bandwidth: float, columns: int) -> Kernel:
    """The kernel of this name at x/bandwidth."""
    if name in _RADIAL:
        return _RADIAL[name](bandwidth)
    if name not in _SCALED:
        raise ValueError(
            f"unknown kernel {name!r}{did_you_mean(str(name), NAMES)}, or pass a kernel such as Laplace(2.0)"
        )
    return scaled(_scaled_kernel(name), bandwidth, columns)


def scaled(kernel: InnerProductKernel, bandwidth: float, columns: int) -> Metric:
    """Return the kernel k(x/bandwidth, z/bandwidth)."""
    return Metric(kernel, jnp.full(columns, 1 / bandwidth))


def default_bandwidth(name: str, X: np.ndarray) -> float:
    """Default bandwidth of a named kernel.

    The median distance between rows for radial kernels (ℓ1 for the product kernel); for other kernels the root mean
    square norm of the centered rows (per coordinate for networks), so that scaled inputs have size one.
    """
    part = X[evenly_spaced_rows(len(X), SAMPLE)].astype(np.float64)
    part = part - part.mean(0)
    unit = float(np.abs(part).max(initial=0))
    if unit == 0:
        return 1.0
    part = part / unit
    if name in _RADIAL:
        metric = "cityblock" if name == "product_laplace" else "euclidean"
        return unit * median_distance(pdist(part, metric), 1.0)
    squares = np.mean(part**2, 1) * (1 if name in ("nngp", "ntk") else part.shape[1])
    return unit * root_mean_square_norm(squares)
