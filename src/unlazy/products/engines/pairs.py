"""Entries of K for any kernel: both sides prepared once, then a block at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, floats, host_floats
from unlazy.kernels.base import Kernel

Matrix = Array | np.ndarray
"""What inner doors take: JAX's arrays or NumPy's."""


def prepared(kernel: Kernel, X: Any, Z: Any = None) -> tuple[Any, Any]:
    """Both sides as the kernel prepares them; they keep no keys, so pairs closer than rounding count as coincident."""
    left, right = kernel.sides(X, Z, keyed=False)
    return left, left if Z is None else right


def entries(kernel: Kernel, left: Any, right: Any) -> Float[Array, "n m"]:
    """K between prepared sides."""
    return kernel.block(left, right)


def both_sides(
    kernel: Kernel, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
) -> tuple[Any, Any]:
    """Both sides as what the kernel takes, admitted to it: the door of every engine."""
    left, right = kernel.read(X, Z, names)
    kernel.admit(left, right, names=names)
    return left, right


def add_compensated(sums: tuple[Array, Array], part: Array) -> tuple[Array, Array]:
    """(sum, what rounding took from it) plus one block's part: over 10^5 blocks a plain float32 sum would lose three
    digits, and B of Nyström-CG amplifies what is lost. Kahan (1965)."""
    total, lost = sums
    part = part - lost
    now = total + part
    return now, (now - total) - part


def as_columns(V: Points, rows: int, what: str, dtype: jnp.dtype, put: bool = True) -> Any:
    """V as a matrix of columns of that type, or a ValueError when it has another number of rows; without `put` what is
    not JAX's stays in the host's memory."""
    V = floats(V, what, dtype) if put or isinstance(V, jax.Array) else host_floats(V, what, dtype)
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise ValueError(f"{what} needs {rows} rows and one or two axes, got shape {tuple(V.shape)}")
    return V.reshape(rows, -1)
