"""Validation and preparation of the points of both sides of K, blocks of entries, and small helpers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, as_floats, as_host_floats
from unlazy.kernels.base import Kernel

Matrix = Array | np.ndarray
"""A JAX or NumPy array."""


def prepare_sides(kernel: Kernel, X: Any, Z: Any = None) -> tuple[Any, Any]:
    """Prepare both sides for the kernel, without row keys: pairs closer than rounding count as identical points."""
    left, right = kernel.sides(X, Z, keyed=False)
    return left, left if Z is None else right


def entries(kernel: Kernel, left: Any, right: Any) -> Float[Array, "n m"]:
    """Entries of K for prepared sides."""
    return kernel.block(left, right)


def validated_sides(
    kernel: Kernel, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
) -> tuple[Any, Any]:
    """Convert and validate the points of both sides; every engine calls this first."""
    left, right = kernel.read(X, Z, names)
    kernel.validate(left, right, names=names)
    return left, right


def add_compensated(sums: tuple[Array, Array], part: Array) -> tuple[Array, Array]:
    """Compensated summation of Kahan (1965): add one block's part to (sum, rounding error). Over 10^5 blocks a plain
    float32 sum would lose three digits, which the preconditioner B of Nyström-CG amplifies."""
    total, lost = sums
    part = part - lost
    now = total + part
    return now, (now - total) - part


def as_columns(V: Points, rows: int, what: str, dtype: jnp.dtype, put: bool = True) -> Any:
    """V as a matrix of columns of the given type; raises ValueError if the number of rows differs. Without `put`, an
    array that is not a JAX array stays in host memory."""
    V = as_floats(V, what, dtype) if put or isinstance(V, jax.Array) else as_host_floats(V, what, dtype)
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise ValueError(f"{what} needs {rows} rows and one or two axes, got shape {tuple(V.shape)}")
    return V.reshape(rows, -1)
