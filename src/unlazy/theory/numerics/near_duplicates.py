"""Detection of pairs of points that are identical up to rounding.

For x = z the expansion ½‖x-z‖² = ½(⟨x,x⟩ + ⟨z,z⟩) - ⟨x,z⟩ leaves a few units of rounding, and kernels with a kink at
x = z (Laplace, NTK) show its square root. A pair therefore counts as a duplicate, with ½‖x-z‖² = 0, if

    ½‖x-z‖² ≤ floor · ½(⟨x,x⟩ + ⟨z,z⟩).

The floor depends on the arithmetic: `rounding_floor` for inner products, `worst_case_floor` if the rows are known to be
equal, `half_precision_floor` for products of float16 halves. For unit vectors ½‖x-z‖² is u = 1 - cos θ.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

SNAP_UNITS = 4.0
"""Units of rounding by which u of parallel vectors may differ from 0 (or 2): three inner products and roots."""


def is_near_duplicate(half_distance: Any, mean_square: Any, floor: Any) -> Any:
    """Whether ½‖x-z‖² ≤ floor · ½(⟨x,x⟩ + ⟨z,z⟩). Uses operators only: works for NumPy, JAX and fused programs."""
    return half_distance <= floor * mean_square


def half_precision_floor(dimension: int) -> float:
    """Floor of inner products computed from halves (two half-precision parts per number) on tensor cores.

    Tensor cores add sixteen products at a time and truncate the sum to float32, four times per sixteen coordinates;
    eight more units cover both norms. For float16 halves of vectors of length √½ they add three times, which leaves
    d/16 units; with the eight this exceeds the rounding to halves, √(d/2) (values are off by 2^-25, inner products of ½
    by 2^-24 √(d/2)), two units of the omitted product lo·lo, at most 2^-11 · 2^-11, and two of dividing.
    """
    return 2.0**-23 * (4 * math.ceil(dimension / 16) + 8)


def rounding_floor(dimension: int, dtype: Any) -> float:
    """Floor of ⟨x,z⟩ by typical rounding: about √d independent roundings. With dimension 0, that of u itself."""
    return (SNAP_UNITS + 2 * math.sqrt(dimension)) * float(jnp.finfo(dtype).eps) / 2


def worst_case_floor(dimension: int, dtype: Any) -> float:
    """Floor of ⟨x,z⟩ in the worst case: all d roundings in the same direction."""
    return (2 * dimension + 8) * float(jnp.finfo(dtype).eps) / 2


def snap_inner_product(xz: Array, xx: Array, zz: Array, dimension: int, same: Array | None = None) -> Array:
    """⟨x,z⟩ with near duplicates made exactly equal; its derivative is unchanged.

    Parameters
    ----------
    xz, xx, zz : array
        ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩.
    dimension : int
        Number of coordinates d.
    same : array of bool, optional
        Which pairs have equal `row_hashes`. Hashes may collide, so the worst-case floor is required too.

    Returns
    -------
    array of the shape of xz
    """
    middle = 0.5 * (xx + zz)
    if same is None:
        close = is_near_duplicate(middle - xz, middle, rounding_floor(dimension, xz.dtype))
    else:
        close = same & is_near_duplicate(middle - xz, middle, worst_case_floor(dimension, xz.dtype))
    return xz + jax.lax.stop_gradient(jnp.where(close, middle - xz, 0))


def snap_cosine_gap(u: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """u = 1 - cos θ clipped to [0, 2] and snapped to the ends within the floor; its derivative is unchanged."""
    floor = rounding_floor(0, u.dtype)
    cut = jnp.where(is_near_duplicate(u, 1, floor), 0, jnp.where(is_opposite(u, floor), 2, u))
    return u + jax.lax.stop_gradient(cut - u)


def is_opposite(u: Float[Array, "*s"], floor: float) -> Array:
    """The same test at the other end, x = -z, where u near 2 has half the digits."""
    return u >= 2 - 2 * floor


def row_hashes(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """An integer hash per row, equal for bitwise equal rows; sums of integers do not round."""
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(X) + 0.0, f"uint{8 * X.dtype.itemsize}")
    random = np.random.default_rng(0).integers(0, 2**31, X.shape[1], dtype=np.uint32)
    return jnp.sum((bits ^ (bits >> 15)) * jnp.asarray(2 * random + 1, bits.dtype), 1, dtype=bits.dtype)
