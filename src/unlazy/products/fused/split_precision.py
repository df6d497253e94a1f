"""Points in parts that tensor cores multiply: numbers of half the length, whose products are summed to the digits that
a kernel needs.

Halves are x = hi + lo, of which hi·hi, hi·lo and lo·hi are multiplied, and lo·lo of `SHARP` ones. `TURNED` are two
float16 parts of x (cos φ, sin φ), so that ⟨x,z⟩ is u(x) u(z) + s(x) s(z), two products for three: u is x cos φ
rounded, and s what makes the projection u cos φ + s sin φ the x that was given. What rounding leaves of s moves that
projection by 2^-12 sin²φ x, and what is across, (u - x cos φ)/sin φ, shows in products with another point alone, as
2^-24/sin²φ: with cos φ = 127/128, so that sin φ is about 1/8, both are 2^-18 or so, what two bfloat16 halves hold.
Either way K is that of points which moved: with their own norms (`excess`) it is 1 on the diagonal and positive.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


class Parts(NamedTuple):
    """The type of two parts, and which of them are multiplied, X's and Z's, the smallest first; the cosine of the angle
    by which they are turned where they are no halves, of so few digits that its product with a part is exact: whoever
    multiplies and subtracts, at once or not, finds the same."""

    kind: Any
    dots: tuple[tuple[int, int], ...]
    cos: float | None = None

    @property
    def crossing(self) -> bool:
        """Whether the first of one point meets the second of another."""
        return (0, 1) in self.dots

    @property
    def smallest(self) -> float:
        """The smallest number of that type."""
        return float(jnp.finfo(self.kind).smallest_subnormal)

    def of(self, points: Float[Array, "n d"]) -> tuple[Array, ...]:
        if self.cos is None:
            return split(points, 2, self.kind)
        return tuple(part.astype(self.kind) for part in self._turned(points))

    def excess(self, points: Float[Array, "n d"]) -> Float[Array, " n"] | None:
        """½|x|² of points less that of their parts, where parts are others: to be added where -½|x|² is."""
        if self.cos is None:
            return None
        first, second = self._turned(points)
        second = rounded(second, self.kind)  # no cast there and back, as in `split`
        return 0.5 * jnp.sum((points - first) * (points + first) - second * second, 1)

    def _turned(self, points: Float[Array, "n d"]) -> tuple[Array, Array]:
        """Both parts, the second before it is rounded."""
        cos = self.cos or 1.0
        first = rounded(points * cos, self.kind)
        return first, (points - first * cos) * (1 / math.sqrt(1 - cos * cos))


SMOOTH = Parts(jnp.bfloat16, ((0, 1), (1, 0), (0, 0)))
"""To 2^-18 of |x||z|: for formulas without a kink at x = z."""
SHARP = Parts(jnp.bfloat16, ((1, 1), *SMOOTH.dots))
"""To what float32 sums hold, of numbers of any size."""
FLOAT16 = Parts(jnp.float16, SMOOTH.dots)
"""To 2^-22, or 2^-24 where that is more: for points of lengths near 1. There is no number beyond 65,504."""
TURNED = Parts(jnp.float16, ((1, 1), (0, 0)), cos=127 / 128)
"""To 2^-18 or so by two products."""


def split(A: Float[Array, "*n"], parts: int = 2, kind: Any = jnp.bfloat16) -> tuple[Array, ...]:
    """A as a sum of parts of half the length, each what the ones before left over: two of bfloat16 hold A to 2^-18, two
    of float16 to 2^-23, or to 2^-25 where that is more, three of bfloat16 to float32.

    reduce_precision, not a cast there and back, which XLA would simplify away and so lose the later parts. It knows no
    subnormal numbers: what it makes zero is left to the last part, which is cast.
    """
    found, rest = [], A
    for _ in range(parts - 1):
        part = rounded(rest, kind)
        found.append(part.astype(kind))
        rest = rest - part
    return (*found, rest.astype(kind))


def two_halves(A: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """A rounded to what its two bfloat16 halves hold, so that norms and inner products speak of the same points."""
    large = rounded(A, jnp.bfloat16)
    return large + rounded(A - large, jnp.bfloat16)


def rounded(A: Array, kind: Any) -> Array:
    """A rounded to the digits of another type, of its own type still."""
    digits = jnp.finfo(kind)
    return lax.reduce_precision(A, exponent_bits=int(digits.nexp), mantissa_bits=int(digits.nmant))
