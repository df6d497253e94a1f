"""The dual of ReLU on a GPU, column by column, without arc cosines: see theory.numerics.angle_polynomials.

It is written once, as a sequence of GPU instructions: compilers use slow exact roots and round after every
multiplication, while PTX has fast approximate roots and fused multiply-adds. An `Evaluate` function executes them in a
Triton program, in a Mosaic GPU program (kernels.conv_gpu.hopper_program), or on arrays for tests.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.theory.numerics.angle_polynomials import relu_dual_in_versine, relu_duals_in_cosine

try:  # experimental: without the Triton backend the caller falls back to XLA
    from jax.experimental.pallas import triton as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

TOUCH = 64 * 2.0**-24
"""1 - ρ² below which two positions count as equal: the rounding of a sum of 64 terms."""


class DualStep(NamedTuple):
    """One instruction as PTX code, and the equivalent function of arrays."""

    code: str
    plain: Callable


Evaluate = Callable[..., list]
"""Takes a step and its arguments, each a list of columns; returns the list of results."""


def _saturated(a: Array) -> Array:
    """Clamp to [0, 1] like a GPU: NaN becomes 0."""
    return jnp.where(a > 0, jnp.minimum(a, 1), 0)


def _hex(value: float) -> str:
    """A float32 constant in PTX."""
    return f"0f{struct.unpack('>I', struct.pack('>f', value))[0]:08X}"


TIMES = DualStep("mul.ftz.f32 $0, $1, $2;", lambda a, b: a * b)
PLUS = DualStep("add.ftz.f32 $0, $1, $2;", lambda a, b: a + b)
TIMES_PLUS = DualStep("fma.rn.ftz.f32 $0, $1, $2, $3;", lambda a, b, c: a * b + c)
INVERSE = DualStep("rcp.approx.ftz.f32 $0, $1;", lambda a: 1 / a)
ROOT = DualStep("sqrt.approx.ftz.f32 $0, $1;", jnp.sqrt)
SHARE = DualStep("mul.ftz.sat.f32 $0, $1, $2;", lambda a, b: _saturated(a * b))
HALF_SHARE = DualStep(f"fma.rn.ftz.sat.f32 $0, $1, $2, {_hex(0.5)};", lambda a, b: _saturated(a * b + 0.5))
VERSINE = DualStep(
    f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.sat.f32 $0, n, $2, {_hex(1)}; }}",
    lambda a, b: _saturated(1 - a * b),
)
ONE_LESS_SQUARE = DualStep(
    f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, {_hex(1)}; }}", lambda a: 1 - a * a
)
LESS_SQUARE = DualStep("{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, $1; }", lambda a: a - a * a)
UNLESS_DEAD = DualStep(
    f"{{ .reg .pred b; setp.eq.ftz.f32 b, $2, {_hex(0)}; selp.f32 $0, {_hex(0)}, $1, b; }}",
    lambda a, b: jnp.where(b == 0, 0, a),
)


def _times(c: float) -> DualStep:
    """Multiply by a constant."""
    return DualStep(f"mul.ftz.f32 $0, $1, {_hex(c)};", lambda a: a * c)


def _plus(c: float) -> DualStep:
    """Add a constant."""
    return DualStep(f"add.ftz.f32 $0, $1, {_hex(c)};", lambda a: a + c)


def _times_plus(c: float) -> DualStep:
    """Multiply two values, and add a constant."""
    return DualStep(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(c)};", lambda a, b: a * b + c)


def _line(a: float, b: float) -> DualStep:
    """a x + b for constants a and b."""
    return DualStep(f"fma.rn.ftz.f32 $0, $1, {_hex(a)}, {_hex(b)};", lambda x: x * a + b)


def _scaled_plus(c: float) -> DualStep:
    """Multiply one value by a constant, and add another value."""
    return DualStep(f"fma.rn.ftz.f32 $0, $1, {_hex(c)}, $2;", lambda a, b: a * c + b)


def _unless_below(limit: float) -> DualStep:
    """The value, or 0 if it is below a limit."""
    code = f"setp.lt.ftz.f32 b, $1, {_hex(limit)}; selp.f32 $0, {_hex(0)}, $1, b;"
    return DualStep(f"{{ .reg .pred b; {code} }}", lambda a: jnp.where(a < limit, 0, a))


class Dual(NamedTuple):
    """scale · E φφ and scale · E φ'φ' for Σ ≥ 0, or for any Σ (`signed`; one √v is then passed multiplied by 2).

    Correlations are clamped to [0, 1] for free, as part of a multiplication: ρ, 1 - ρ, or (1 + ρ)/2 for a signed Σ.
    """

    scale: float
    tangent: bool
    signed: bool

    def evaluate(self, each: Evaluate, sigma: list, left: list, right: list) -> list[tuple]:
        """For several columns: two factors of the first dual, and the second dual (or None).

        All columns advance one instruction at a time, so that a processor that waits for one result works on the next
        column. Fast roots and reciprocals have an error of two units of rounding. If a standard deviation is 0, so are
        one factor and the second dual.
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

    def _from_versine(self, each: Evaluate, sigma: list, inverse: list) -> list:
        """The first dual as c (1 + x (√x A(x) - 1)) with c half the scale; error 7e-8 c."""
        half = self.scale / 2
        x = each(VERSINE, sigma, inverse)
        a = _polynomial(each, half * relu_dual_in_versine(4), x)
        return each(_times_plus(half), x, each(_times_plus(-half), each(ROOT, x), a))

    @property
    def degree(self) -> int:
        """Degree of the polynomial of the root: error 1.5e-7 for a signed Σ without Θ, and 1e-7."""
        return 7 if self.tangent else 6

    @property
    def _constants(self) -> tuple[np.ndarray, float]:
        """Coefficients of the polynomial of the square root, and the factor of the root in Σ.

        For a signed Σ, t = (1 + ρ)/2: the root is that of t - t², a quarter of 1 - ρ², and ρ is 2t - 1.
        """
        G, Q = relu_duals_in_cosine(self.degree)
        powers = self.scale * (Q if self.tangent else G)
        if self.signed:
            powers = powers * 2.0 ** np.arange(len(powers))
            powers = 2 * powers if self.tangent else 0.5 * powers - self.scale / 8 * (np.arange(len(powers)) == 0)
        return powers, self.scale / (2 * np.pi)

    @property
    def _touch(self) -> float:
        """`TOUCH` in terms of the quantity under the root."""
        return TOUCH / 4 if self.signed else TOUCH


def _polynomial(each: Evaluate, powers: np.ndarray, x: list) -> list:
    """Evaluate a polynomial by Horner's rule."""
    *rest, second, first = powers.tolist()
    found = each(_line(first, second), x)
    for c in reversed(rest):
        found = each(_times_plus(c), found, x)
    return found


def on_arrays(step: DualStep, *columns: list) -> list:
    """Evaluate a step on plain arrays, equivalent to the assembly."""
    return [step.plain(*each) for each in zip(*columns)]


def on_triton(step: DualStep, *columns: list) -> list:
    """Evaluate a step in a Triton program."""
    return [_assembled(step.code, *each) for each in zip(*columns)]


def _assembled(code: str, *arguments: Array) -> Array:
    """One instruction for every element; its result is written after all arguments are read."""
    return backend.elementwise_inline_asm(
        code, args=list(arguments), constraints="=f" + ",f" * len(arguments), pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(arguments[0].shape, jnp.float32)],
    )[0]  # fmt: skip


def times_plus(a: Array, b: Array, c: Array, interpret: bool) -> Array:
    """a b + c, fused on a GPU."""
    return a * b + c if interpret else _assembled("fma.rn.f32 $0, $1, $2, $3;", a, b, c)
