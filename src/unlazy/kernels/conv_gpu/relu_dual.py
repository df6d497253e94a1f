"""The dual of ReLU on the GPU, column by column, without arc cosines: theory.numerics.angle_polynomials.

Written once, as steps that are instructions of a card: compilers take the slow exact roots and round after every
multiplication, PTX names the fast ones and fuses. Who evaluates them (`Each`) is a program of Triton's, one of Mosaic's
(kernels.conv_gpu.hopper_program), or arrays, for tests.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.theory.numerics.angle_polynomials import in_cosine, in_versine

try:  # the Triton backend is due to be replaced; without it the caller falls back
    from jax.experimental.pallas import triton as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

TOUCH = 64 * 2.0**-24
"""1 - ρ² below which two positions count as the same: roundings of a sum of 64 terms."""


class Step(NamedTuple):
    """One instruction, and what it does to arrays."""

    code: str
    plain: Callable


Each = Callable[..., list]
"""Takes a step and its arguments, each a list of columns; gives the list of results."""


def _saturated(a: Array) -> Array:
    """To [0, 1] as cards do it: what is no number becomes 0."""
    return jnp.where(a > 0, jnp.minimum(a, 1), 0)


def _hex(value: float) -> str:
    return f"0f{struct.unpack('>I', struct.pack('>f', value))[0]:08X}"


TIMES = Step("mul.ftz.f32 $0, $1, $2;", lambda a, b: a * b)
PLUS = Step("add.ftz.f32 $0, $1, $2;", lambda a, b: a + b)
TIMES_PLUS = Step("fma.rn.ftz.f32 $0, $1, $2, $3;", lambda a, b, c: a * b + c)
INVERSE = Step("rcp.approx.ftz.f32 $0, $1;", lambda a: 1 / a)
ROOT = Step("sqrt.approx.ftz.f32 $0, $1;", jnp.sqrt)
SHARE = Step("mul.ftz.sat.f32 $0, $1, $2;", lambda a, b: _saturated(a * b))
HALF_SHARE = Step(f"fma.rn.ftz.sat.f32 $0, $1, $2, {_hex(0.5)};", lambda a, b: _saturated(a * b + 0.5))
VERSINE = Step(
    f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.sat.f32 $0, n, $2, {_hex(1)}; }}",
    lambda a, b: _saturated(1 - a * b),
)
ONE_LESS_SQUARE = Step(
    f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, {_hex(1)}; }}", lambda a: 1 - a * a
)
LESS_SQUARE = Step("{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, $1; }", lambda a: a - a * a)
UNLESS_DEAD = Step(
    f"{{ .reg .pred b; setp.eq.ftz.f32 b, $2, {_hex(0)}; selp.f32 $0, {_hex(0)}, $1, b; }}",
    lambda a, b: jnp.where(b == 0, 0, a),
)


def _times(c: float) -> Step:
    return Step(f"mul.ftz.f32 $0, $1, {_hex(c)};", lambda a: a * c)


def _plus(c: float) -> Step:
    return Step(f"add.ftz.f32 $0, $1, {_hex(c)};", lambda a: a + c)


def _times_plus(c: float) -> Step:
    """Of two, and a constant."""
    return Step(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(c)};", lambda a, b: a * b + c)


def _line(a: float, b: float) -> Step:
    return Step(f"fma.rn.ftz.f32 $0, $1, {_hex(a)}, {_hex(b)};", lambda x: x * a + b)


def _scaled_plus(c: float) -> Step:
    return Step(f"fma.rn.ftz.f32 $0, $1, {_hex(c)}, $2;", lambda a, b: a * c + b)


def _unless_below(limit: float) -> Step:
    code = f"setp.lt.ftz.f32 b, $1, {_hex(limit)}; selp.f32 $0, {_hex(0)}, $1, b;"
    return Step(f"{{ .reg .pred b; {code} }}", lambda a: jnp.where(a < limit, 0, a))


class Dual(NamedTuple):
    """scale · E φφ, and scale · E φ'φ', of Σ that is not negative, or `signed`: one √v is then given twice as large.

    Correlations are clamped to [0, 1] for nothing, as part of a multiplication: ρ, 1 - ρ, or (1 + ρ)/2 of a signed Σ.
    """

    scale: float
    tangent: bool
    signed: bool

    def many(self, each: Each, sigma: list, left: list, right: list) -> list[tuple]:
        """Of several columns two factors of the first dual, and the second (or None); quick roots and reciprocals are
        two units of rounding off.

        Step by step for all of them: a processor that waits for one result works on the next column. Where a standard
        deviation is 0, so are one factor and the second dual.
        """
        both = each(TIMES, left, right)
        inverse = each(INVERSE, both)
        if not (self.tangent or self.signed):
            return [(value, b, None) for value, b in zip(self._from_versine(each, sigma, inverse), both)]
        powers, middle = self._constants
        t = each(HALF_SHARE if self.signed else SHARE, sigma, inverse)
        w = each(LESS_SQUARE if self.signed else ONE_LESS_SQUARE, t)
        w = each(ROOT, each(_unless_below(self._touch), w) if self.tangent else w)
        g = _polynomial(each, powers, w)
        if not self.tangent:
            return [(v, b, None) for v, b in zip(each(_scaled_plus(self.scale / 4), t, g), both)]
        h = each(_plus(-0.5), t) if self.signed else t
        slope = each(UNLESS_DEAD, each(_times_plus(self.scale / 4), h, g), both)
        return list(zip(each(TIMES_PLUS, h, slope, each(_times(middle), w)), both, slope))

    def _from_versine(self, each: Each, sigma: list, inverse: list) -> list:
        """The first dual as c (1 + x (√x A(x) - 1)), c half the scale: 7e-8 c off."""
        half = self.scale / 2
        x = each(VERSINE, sigma, inverse)
        a = _polynomial(each, half * in_versine(4), x)
        return each(_times_plus(half), x, each(_times_plus(-half), each(ROOT, x), a))

    @property
    def degree(self) -> int:
        """Of the polynomial of a root: 1.5e-7 off, for a signed Σ alone, and 1e-7."""
        return 7 if self.tangent else 6

    @property
    def _constants(self) -> tuple[np.ndarray, float]:
        """The polynomial of the square root, and that root's own factor in Σ.

        Signed, t = (1 + ρ)/2: the root is of t - t², a quarter of 1 - ρ², and ρ is 2t - 1.
        """
        G, Q = in_cosine(self.degree)
        powers = self.scale * (Q if self.tangent else G)
        if self.signed:
            powers = powers * 2.0 ** np.arange(len(powers))
            powers = 2 * powers if self.tangent else 0.5 * powers - self.scale / 8 * (np.arange(len(powers)) == 0)
        return powers, self.scale / (2 * np.pi)

    @property
    def _touch(self) -> float:
        return TOUCH / 4 if self.signed else TOUCH


def _polynomial(each: Each, powers: np.ndarray, x: list) -> list:
    *rest, second, first = powers.tolist()
    found = each(_line(first, second), x)
    for c in reversed(rest):
        found = each(_times_plus(c), found, x)
    return found


def on_arrays(step: Step, *columns: list) -> list:
    """As plain arrays: what the assembly does."""
    return [step.plain(*each) for each in zip(*columns)]


def on_triton(step: Step, *columns: list) -> list:
    return [_assembled(step.code, *each) for each in zip(*columns)]


def _assembled(code: str, *arguments: Array) -> Array:
    """One instruction for every element: its result is written when all arguments are read."""
    return backend.elementwise_inline_asm(
        code, args=list(arguments), constraints="=f" + ",f" * len(arguments), pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(arguments[0].shape, jnp.float32)],
    )[0]  # fmt: skip


def times_plus(a: Array, b: Array, c: Array, interpret: bool) -> Any:
    return a * b + c if interpret else _assembled("fma.rn.f32 $0, $1, $2, $3;", a, b, c)
