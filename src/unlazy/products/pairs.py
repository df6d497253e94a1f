"""Entries of K for any kernel: inputs embedded once, then one matrix product and the entry formula a block.

Kernels without an entry formula (convolutional, empirical, ℓ1) come in through their own `gram`.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.inputs import Points, floats, sides
from unlazy.core.linear import dot
from unlazy.kernels.admit import admit, squares
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluate import snap

Matrix = Array | np.ndarray
"""What inner doors take: JAX's arrays or NumPy's."""


def embedded(
    kernel: Kernel, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None
) -> tuple[Float[Array, "n e"], Float[Array, "m e"]]:
    """Both sides after the kernel's `embed`, centred together where only differences matter."""
    if not isinstance(kernel, InnerProductKernel):
        return X, (X if Z is None else Z)
    left = kernel.embed(X)
    right = left if Z is None else kernel.embed(Z)
    if kernel.stationary:
        centre = jnp.mean(right, 0)
        left = left - centre
        right = left if Z is None else right - centre
    return left, right


def entries(kernel: Kernel, left: Float[Array, "n e"], right: Float[Array, "m e"]) -> Float[Array, "n m"]:
    """K between embedded points; pairs closer than rounding count as coincident."""
    if not isinstance(kernel, InnerProductKernel):
        return kernel.gram(left, right)
    xz, xx, zz = inner_products(left, right)
    return kernel.entry(xz, xx, zz)


def inner_products(
    left: Float[Array, "n e"], right: Float[Array, "m e"]
) -> tuple[Float[Array, "n m"], Float[Array, "n 1"], Float[Array, "1 m"]]:
    """⟨x,z⟩ of all pairs, ⟨x,x⟩ as a column and ⟨z,z⟩ as a row."""
    xx, zz = squares(left)[:, None], squares(right)[None, :]
    xz = dot(left, right.T)
    return snap(xz, xx, zz, left.shape[1]), xx, zz


def both_sides(
    kernel: Kernel, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
) -> tuple[Array, Array | None]:
    """Both sides as floats of one type, admitted to the kernel: the door of every engine."""
    left, right = read_sides(kernel, X, Z, names)
    admit(kernel, left, right, names=names)
    return left, right


def read_sides(
    kernel: Kernel, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")
) -> tuple[Array, Array | None]:
    """The same before the values are looked at; only kernels with a formula of inner products insist on two axes."""
    return sides(X, Z, names, more_axes=not isinstance(kernel, InnerProductKernel))


def as_columns(V: Points, rows: int, what: str, dtype: jnp.dtype) -> Array:
    """V as a matrix of columns of that type, or a ValueError when it has another number of rows."""
    V = floats(V, what, dtype)
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise ValueError(f"{what} needs {rows} rows and one or two axes, got shape {tuple(V.shape)}")
    return V.reshape(rows, -1)
