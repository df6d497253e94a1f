"""K @ V: the engines say what they would cost, and the cheapest multiplies."""

from collections.abc import Sequence

import jax
from jaxtyping import Array, Float

from unlazy.core.arrays import Labels, Points, sides
from unlazy.core.errors import nearest
from unlazy.kernels.base import Kernel
from unlazy.products.engines.base import Product
from unlazy.products.engines.selection import ENGINES, Job, cheapest


def product(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    *,
    how: str | None = None,
    passes: int = 1,
    memory: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Product:
    """K(X, Z), or K(X, X), ready for `passes` products, by the engine that costs least; `how` names one.

    A kernel with a product of its own makes it. Several devices share the rows. On a GPU entries are recomputed on the
    chip, which beats reading a stored K. On the CPU K is stored when it fits `memory` and is used more than once; a
    small one used once in float64 is NumPy's; else it is recomputed by blocks.
    """
    X, Z = sides(X, Z, takes=kernel.takes, put=False)  # engines of the device put them there
    names = {engine.name: engine for engine in ENGINES}
    if how is not None and how not in names:
        raise ValueError(f"unknown way to multiply {how!r}{nearest(str(how), names)}")
    job = Job(kernel, X, Z, passes, memory, devices)
    return (cheapest(job) if how is None else names[how]).build(job)


def matmul(
    kernel: Kernel,
    X: Points,
    Z: Points,
    V: Labels,
    *,
    memory: int | str | None = None,
) -> Float[Array, "n *c"]:
    """K(X, Z) @ V without keeping K.

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
) -> Float[Array, "m *c"]:
    """K(X, Z)ᵀ @ U without keeping K."""
    return product(kernel, X, Z, memory=memory).rmatmul(U)
