"""When two points count as one: the rule for pairs that are closer than rounding can tell.

x = z leaves ½‖x-z‖² = ½(⟨x,x⟩ + ⟨z,z⟩) - ⟨x,z⟩ of some units of rounding, and kernels with a kink at x = z (Laplace,
NTK) show their root. So a pair is coincident, and ½‖x-z‖² is 0, where

    ½‖x-z‖² ≤ floor · ½(⟨x,x⟩ + ⟨z,z⟩),

the floor being what the arithmetic at hand leaves: `rounding_floor` of inner products, `sum_floor` where rows are known
to be the same, `halves_floor` of products of halves. For unit vectors ½‖x-z‖² is u = 1 - cos θ.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

SNAP_UNITS = 4.0
"""Units of rounding by which u of parallel vectors may miss 0 (or 2): three inner products and their roots."""


def coincident(half_distance: Any, middle: Any, floor: Any) -> Any:
    """The rule: ½‖x-z‖² against ½(⟨x,x⟩ + ⟨z,z⟩). Operators alone, so for NumPy, JAX and fused programs alike."""
    return half_distance <= floor * middle


def halves_floor(dimension: int) -> float:
    """What products of halves fake: tensor cores add sixteen at a time and cut the sum off, a unit of float32 each
    time, four times for every sixteen numbers; and eight units of both norms.

    Of float16 halves of vectors of length √½ they add three times, which leaves d/16 units; with the eight they are
    more than √(d/2) of rounding to halves (numbers are off by 2^-25, inner products of ½ by 2^-24 √(d/2)), two of the
    product lo·lo that is left out, at most 2^-11 · 2^-11, and two of dividing.
    """
    return 2.0**-23 * (4 * math.ceil(dimension / 16) + 8)


def rounding_floor(dimension: int, dtype: Any) -> float:
    """What rounding of ⟨x,z⟩ fakes when x = z, relative: √d independent roundings or so; of u itself where d is 0."""
    return (SNAP_UNITS + 2 * math.sqrt(dimension)) * float(jnp.finfo(dtype).eps) / 2


def sum_floor(dimension: int, dtype: Any) -> float:
    """The most that it can fake: all d roundings to one side."""
    return (2 * dimension + 8) * float(jnp.finfo(dtype).eps) / 2


def snap(xz: Array, xx: Array, zz: Array, dimension: int, same: Array | None = None) -> Array:
    """⟨x,z⟩ with coincident pairs made exactly so; its derivative is left as it was.

    `same` says which rows have equal keys. Keys may agree by chance: they count where d roundings allow it.
    """
    middle = 0.5 * (xx + zz)
    if same is None:
        close = coincident(middle - xz, middle, rounding_floor(dimension, xz.dtype))
    else:
        close = same & coincident(middle - xz, middle, sum_floor(dimension, xz.dtype))
    return xz + jax.lax.stop_gradient(jnp.where(close, middle - xz, 0))


def snap_angle(u: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """u = 1 - cos θ cut to [0, 2] and set to either end within the floor; its derivative is left as it was."""
    floor = rounding_floor(0, u.dtype)
    cut = jnp.where(coincident(u, 1, floor), 0, jnp.where(opposite(u, floor), 2, u))
    return u + jax.lax.stop_gradient(cut - u)


def opposite(u: Float[Array, "*s"], floor: float) -> Array:
    """The same rule at the other end, x = -z, where u near 2 has half the digits."""
    return u >= 2 - 2 * floor


def row_keys(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """A whole number for each row, the same for rows that are the same bit by bit: sums of integers do not round."""
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(X) + 0.0, f"uint{8 * X.dtype.itemsize}")
    random = np.random.default_rng(0).integers(0, 2**31, X.shape[1], dtype=np.uint32)
    return jnp.sum((bits ^ (bits >> 15)) * jnp.asarray(2 * random + 1, bits.dtype), 1, dtype=bits.dtype)
