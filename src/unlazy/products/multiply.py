"""K @ V: estimate the cost of every engine and multiply with the cheapest."""

from collections.abc import Sequence

import jax
from jaxtyping import Array, Float

from unlazy.core.arrays import Labels, Points, as_point_pair
from unlazy.core.errors import did_you_mean
from unlazy.kernels.base import Kernel
from unlazy.products.engines.base import KernelOperator
from unlazy.products.engines.selection import ENGINES, Job, cheapest


def product(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    *,
    engine: str | None = None,
    passes: int = 1,
    memory: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> KernelOperator:
    """Build a linear operator for the kernel matrix K(X, Z), or K(X, X).

    By default the engine with the lowest estimated cost is used:

    - "custom" if the kernel implements its own fast product;
    - "sharded" if there are several devices: each one holds a share of the rows;
    - "fused" on a GPU: entries are recomputed on chip, which is faster than reading a stored K;
    - "stored" on the CPU if K fits into `memory` and is used more than once;
    - "numpy" on the CPU for a small float64 K that is used once, since nothing has to be compiled;
    - "blocked" otherwise: K is recomputed block by block in every product.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K. Kernels of images or trees take their own input layout.
    Z : array of shape (m, d), optional
        Points of the columns of K; X by default.
    engine : {"custom", "stored", "blocked", "fused", "sharded", "numpy"}, optional
        Force one engine instead of choosing the cheapest.
    passes : int, default 1
        Expected number of products, used to estimate costs.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".
    devices : sequence of jax.Device, optional
        Devices that share the rows; all devices by default.

    Returns
    -------
    KernelOperator
        Operator with the methods `matmul`, `rmatmul` and `normal`.

    Raises
    ------
    ValueError
        If the engine is unknown or does not support the kernel, if the points are invalid, or if a stored K exceeds
        the memory budget.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import product
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> K = product(Gaussian(2.0), X, passes=10)
    >>> K.matmul(np.ones(50)).shape
    (50,)
    """
    X, Z = as_point_pair(
        X, Z, input_kind=kernel.input_kind, to_device=False
    )  # engines transfer them to the device if they need to
    engines = {known.name: known for known in ENGINES}
    if engine is not None and engine not in engines:
        raise ValueError(f"unknown engine {engine!r}{did_you_mean(str(engine), engines)}")
    job = Job(kernel, X, Z, passes, memory, devices)
    return (cheapest(job) if engine is None else engines[engine]).build(job)


def matmul(
    kernel: Kernel,
    X: Points,
    Z: Points,
    V: Labels,
    *,
    memory: int | str | None = None,
) -> Float[Array, " n *c"]:
    """Compute K(X, Z) @ V without storing K.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K.
    Z : array of shape (m, d)
        Points of the columns of K.
    V : array of shape (m,) or (m, c)
        One or several vectors.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (n,) or (n, c)
        The product.

    Raises
    ------
    ValueError
        If the points are invalid or V does not have m rows.

    Examples
    --------
    >>> matmul(Gaussian(2.0), X, Z, coefficients)          # predictions at X
    """
    return product(kernel, X, Z, memory=memory).matmul(V)


def rmatmul(
    kernel: Kernel,
    X: Points,
    Z: Points,
    U: Labels,
    *,
    memory: int | str | None = None,
) -> Float[Array, " m *c"]:
    """Compute K(X, Z)ᵀ @ U without storing K.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K.
    Z : array of shape (m, d)
        Points of the columns of K.
    U : array of shape (n,) or (n, c)
        One or several vectors.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (m,) or (m, c)
        The product.

    Raises
    ------
    ValueError
        If the points are invalid or U does not have n rows.

    Examples
    --------
    >>> rmatmul(Gaussian(2.0), X, Z, y).shape
    (5,)
    """
    return product(kernel, X, Z, memory=memory).rmatmul(U)
