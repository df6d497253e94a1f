"""Split-precision points for tensor cores: each float32 value becomes two 16-bit parts, and the products of parts are
summed to the accuracy that a kernel needs.

The usual split is x = hi + lo, with the products hi·hi, hi·lo and lo·hi, and for `SHARP` also lo·lo. `ROTATED` uses two
float16 parts of x (cos φ, sin φ), so that ⟨x,z⟩ = u(x) u(z) + s(x) s(z) needs two products instead of three: u is x cos
φ rounded, and s is chosen such that the projection u cos φ + s sin φ equals x. Rounding s moves that projection by
2^-12 sin²φ x; the orthogonal component (u - x cos φ)/sin φ contributes only to products of two different points, by
2^-24/sin²φ. With cos φ = 127/128 (sin φ ≈ 1/8) both errors are about 2^-18, the accuracy of two bfloat16 parts. In both
cases K is the exact kernel of slightly perturbed points: with the norms of these points (`norm_correction`) it is
positive definite and 1 on the diagonal."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class SplitPoints(NamedTuple):
    """How points are split: the data type of the two parts, the pairs (part of X, part of Z) that are multiplied, the
    smallest first, and the cosine of the rotation angle (None for hi + lo). The cosine has so few digits that its
    product with a part is exact, with or without fused multiply-add."""

    kind: DTypeLike
    dots: tuple[tuple[int, int], ...]
    cos: float | None = None

    @property
    def has_cross_terms(self) -> bool:
        """Whether the first part of one point is multiplied by the second part of another."""
        return (0, 1) in self.dots

    @property
    def smallest(self) -> float:
        """Smallest subnormal number of the type."""
        return float(jnp.finfo(self.kind).smallest_subnormal)

    def split(self, points: Float[Array, "n d"]) -> tuple[Array, ...]:
        """The two parts of the points."""
        if self.cos is None:
            return split(points, 2, self.kind)
        return tuple(part.astype(self.kind) for part in self._rotated(points))

    def norm_correction(self, points: Float[Array, "n d"]) -> Float[Array, " n"] | None:
        """½|x|² minus that of the perturbed points, to be added to -½|x|²; None if the points are not perturbed."""
        if self.cos is None:
            return None
        first, second = self._rotated(points)
        second = rounded(second, self.kind)  # not a cast and back, as in `split`
        return 0.5 * jnp.sum((points - first) * (points + first) - second * second, 1)

    def _rotated(self, points: Float[Array, "n d"]) -> tuple[Array, Array]:
        """Both rotated parts, the second one before rounding."""
        cos = self.cos or 1.0
        first = rounded(points * cos, self.kind)
        return first, (points - first * cos) * (1 / math.sqrt(1 - cos * cos))


SMOOTH = SplitPoints(jnp.bfloat16, ((0, 1), (1, 0), (0, 0)))
"""Accurate to 2^-18 |x||z|: for formulas that are smooth at x = z."""
SHARP = SplitPoints(jnp.bfloat16, ((1, 1), *SMOOTH.dots))
"""Accurate to float32 rounding of the sums, for values of any magnitude."""
FLOAT16 = SplitPoints(jnp.float16, SMOOTH.dots)
"""Accurate to 2^-22 relative or 2^-24 absolute: for points of norm near 1. Overflows beyond 65,504."""
ROTATED = SplitPoints(jnp.float16, ((1, 1), (0, 0)), cos=127 / 128)
"""Accurate to about 2^-18 with two products."""


def split(A: Float[Array, "*n"], parts: int = 2, kind: DTypeLike = jnp.bfloat16) -> tuple[Array, ...]:
    """Split A into a sum of 16-bit parts, each the rounded remainder of the previous ones. Two bfloat16 parts represent
    A to 2^-18, two float16 parts to 2^-23 relative or 2^-25 absolute, three bfloat16 parts to float32.

    Uses reduce_precision: XLA would simplify a cast and back, and the later parts would vanish. reduce_precision
    flushes subnormal numbers to zero; they remain in the last part, which is cast."""
    found, rest = [], A
    for _ in range(parts - 1):
        part = rounded(rest, kind)
        found.append(part.astype(kind))
        rest = rest - part
    return (*found, rest.astype(kind))


def two_halves(A: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """A rounded to two bfloat16 parts, so that norms and inner products refer to the same points."""
    large = rounded(A, jnp.bfloat16)
    return large + rounded(A - large, jnp.bfloat16)


def rounded(A: Array, kind: DTypeLike) -> Array:
    """A rounded to the precision of another data type, keeping its own data type."""
    digits = jnp.finfo(kind)
    return lax.reduce_precision(A, exponent_bits=int(digits.nexp), mantissa_bits=int(digits.nmant))
