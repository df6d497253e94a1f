"""One front door to K @ V: stored, blocked, fused on the GPU or sharded, chosen by size, memory and device."""

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from unlazy.core import device
from unlazy.core.errors import nearest
from unlazy.core.inputs import Labels, Points, count, float_type
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.product import Product, fused_available, fused_product, recomputed, stored
from unlazy.products.sharded import sharded

_HOWS = ("stored", "blocked", "fused", "sharded")


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
    """K(X, Z), or K(X, X), ready for `passes` products.

    Several devices share the rows. On a GPU entries are recomputed on the chip, which beats reading a stored K; on the
    CPU K is stored when it fits `memory` and is used more than once; else it is recomputed by blocks.
    """
    X, Z = kernel.read(X, Z)
    if how is not None and how not in _HOWS:
        raise ValueError(f"unknown way to multiply {how!r}{nearest(str(how), _HOWS)}")
    chosen = how or _choose(kernel, X, Z, passes, memory, devices)
    if chosen == "sharded":
        return sharded(kernel, X, X if Z is None else Z, devices, memory)
    if chosen == "fused":
        return fused_product(kernel, X, X if Z is None else Z)
    if chosen == "stored":
        return stored(kernel, X, Z, memory)
    return recomputed(kernel, X, Z, None if memory is None else memory_budget(memory))


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


def _choose(kernel: Kernel, X: Any, Z: Any, passes: int, memory: int | str | None, devices) -> str:
    if len(device.every() if devices is None else devices) > 1:
        return "sharded"
    if fused_available(kernel, X):
        return "fused"
    need = count(X) * count(X if Z is None else Z) * float_type(X).itemsize
    return "stored" if passes > 1 and need <= memory_budget(memory) else "blocked"
