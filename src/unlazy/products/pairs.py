"""Entries of K for any kernel: inputs embedded once, then one matrix product and the entry formula a block.

Kernels without an entry formula (convolutional, empirical, ℓ1) come in through their own `gram`.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.linear import dot
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluate import snap

Matrix = Array | np.ndarray
"""What a front door takes: JAX's arrays or NumPy's."""


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
    xx, zz = jnp.sum(left * left, 1)[:, None], jnp.sum(right * right, 1)[None, :]
    xz = dot(left, right.T)
    return snap(xz, xx, zz, left.shape[1]), xx, zz


def as_columns(V: Array, rows: int, what: str) -> Array:
    """V as a matrix of columns, or a ValueError when it has another number of rows."""
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise ValueError(f"{what} needs {rows} rows and one or two axes, got shape {tuple(V.shape)}")
    return V.reshape(rows, -1)


def same_width(X: Array, Z: Array) -> None:
    """A ValueError when the two sides do not have the same number of columns."""
    if X.ndim != 2 or Z.ndim != 2 or X.shape[1] != Z.shape[1]:
        raise ValueError(f"both sides need two axes and the same number of columns, got {X.shape} and {Z.shape}")
