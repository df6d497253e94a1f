"""Kernels by name, with a bandwidth read off the data: one table, so that a name is one kernel to every estimator."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from unlazy.core.errors import nearest
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.dot_product import Linear, Polynomial
from unlazy.kernels.metric import Metric
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.bandwidth import median_distance, some_rows, typical_norm

NETWORK = MLP(depth=2, activation="relu", sigma_b=0.5)
"""The network of 'nngp' and 'ntk': with biases, since without them its kernels see one degree of freedom of ‖x‖."""

_RADIAL: dict[str, Callable[[float], Kernel]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "matern": lambda h: Matern(1.5, h),
    "product_laplace": ProductLaplace,
    "rational_quadratic": RationalQuadratic,
}
_SCALED: dict[str, InnerProductKernel] = {
    "linear": Linear(),
    "nngp": NNGP(NETWORK),
    "ntk": NTK(NETWORK),
    "polynomial": Polynomial(2),
}
NAMES = (*_RADIAL, *_SCALED)
UNIT: dict[str, Kernel] = {name: make(1.0) for name, make in _RADIAL.items()} | _SCALED
"""Every named kernel at bandwidth one."""
SAMPLE = 1000
"""Rows whose distances give the median."""


def kernel_named(name: str, bandwidth: float, columns: int) -> Kernel:
    """The kernel of this name at x/bandwidth."""
    if name in _RADIAL:
        return _RADIAL[name](bandwidth)
    if name not in _SCALED:
        raise ValueError(f"unknown kernel {name!r}{nearest(str(name), NAMES)}, or pass a kernel such as Laplace(2.0)")
    return scaled(_SCALED[name], bandwidth, columns)


def scaled(kernel: InnerProductKernel, bandwidth: float, columns: int) -> Metric:
    """k(x/bandwidth, z/bandwidth)."""
    return Metric(kernel, jnp.full(columns, 1 / bandwidth))


def usual_bandwidth(name: str, X: np.ndarray) -> float:
    """Median distance between rows for kernels of a distance (ℓ1 for the product kernel), for others the root mean
    square norm of what they embed (a coordinate's for networks): inputs are then of size one in the kernel's eyes."""
    part = X[some_rows(len(X), SAMPLE)].astype(np.float64)
    part = part - part.mean(0)
    unit = float(np.abs(part).max(initial=0))
    if unit == 0:
        return 1.0
    part = part / unit
    if name in _RADIAL:
        from scipy.spatial.distance import pdist

        metric = "cityblock" if UNIT[name].reads == "absolute distance" else "euclidean"
        return unit * median_distance(pdist(part, metric), 1.0)
    squares = np.mean(part**2, 1) * (1 if name in ("nngp", "ntk") else part.shape[1])
    return unit * typical_norm(squares)
