"""The dual of ReLU on the GPU, column by column, without arc cosines: theory.angle_polynomials.in_cosine.

Triton takes the slow exact roots and rounds after every multiplication; PTX names the fast instructions.
"""

import struct
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.theory.angle_polynomials import in_cosine

try:  # the Triton backend is due to be replaced; without it the caller falls back to XLA
    from jax.experimental.pallas import triton as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

TOUCH = 64 * 2.0**-24
"""1 - ρ² below which two positions count as the same: roundings of a sum of 64 terms."""


class Dual(NamedTuple):
    """scale · E φφ, and scale · E φ'φ', of Σ that is not negative, or `signed`: one √v is then given twice as large.

    Correlations are clamped to [0, 1] for nothing, as part of a multiplication: ρ, or (1 + ρ)/2 of a signed Σ.
    """

    scale: float
    tangent: bool
    signed: bool

    def of(self, sigma: Array, left: Array, right: Array) -> tuple:
        """As plain arrays: what the assembly does."""
        powers, middle = self._constants
        both = left * right
        t = jnp.where(both == 0, 0.0, sigma / jnp.where(both == 0, 1.0, both))
        t = jnp.clip(t + 0.5 if self.signed else t, 0, 1)
        u = t - t * t if self.signed else 1 - t * t
        if not self.tangent:
            return 0.25 * self.scale * t + _horner(powers, jnp.sqrt(u)), both, None
        w = jnp.sqrt(jnp.where(u < self._touch, 0.0, u))
        h = t - 0.5 if self.signed else t
        slope = jnp.where(both == 0, 0.0, 0.25 * self.scale + h * _horner(powers, w))
        return h * slope + middle * w, both, slope

    @property
    def degree(self) -> int:
        """Of the polynomial: 1.5e-7 off, for Σ alone, and 1e-7."""
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

    def many(self, sigma: list, left: list, right: list, interpret: bool) -> list[tuple]:
        """Of several columns two factors of the first dual, and the second (or None).

        As GPU assembly: fused multiply-adds, quick roots and reciprocals (two units of rounding each). Step by step for
        all of them: a processor that waits for one result works on the next column.
        """
        if interpret:
            return [self.of(*each) for each in zip(sigma, left, right)]
        powers, middle = self._constants
        both = [l * r for l, r in zip(left, right)]
        t = _each("rcp.approx.ftz.f32 $0, $1;", both)
        if self.signed:
            t = _each(f"fma.rn.ftz.sat.f32 $0, $1, $2, {_hex(0.5)};", sigma, t)
            w = _each("{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, $1; }", t)
        else:
            t = _each("mul.ftz.sat.f32 $0, $1, $2;", sigma, t)
            w = _each(f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, {_hex(1)}; }}", t)
        if self.tangent:
            touch = f"setp.lt.ftz.f32 b, $1, {_hex(self._touch)}; selp.f32 $0, {_hex(0)}, $1, b;"
            w = _each(f"{{ .reg .pred b; {touch} }}", w)
        w = _each("sqrt.approx.ftz.f32 $0, $1;", w)
        g = _each(f"fma.rn.ftz.f32 $0, $1, {_hex(powers[-1])}, {_hex(powers[-2])};", w)
        for c in powers[-3::-1]:
            g = _each(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(c)};", g, w)
        if not self.tangent:
            g = _each(f"fma.rn.ftz.f32 $0, $1, {_hex(self.scale / 4)}, $2;", t, g)
            return [(v, b, None) for v, b in zip(g, both)]
        h = _each(f"add.ftz.f32 $0, $1, {_hex(-0.5)};", t) if self.signed else t
        g = _each(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(self.scale / 4)};", h, g)
        dead = f"setp.eq.ftz.f32 b, $2, {_hex(0)}; selp.f32 $0, {_hex(0)}, $1, b;"
        slope = _each(f"{{ .reg .pred b; {dead} }}", g, both)
        w = _each(f"mul.ftz.f32 $0, $1, {_hex(middle)};", w)
        return list(zip(_each("fma.rn.ftz.f32 $0, $1, $2, $3;", h, slope, w), both, slope))


def _each(code: str, *columns: list) -> list:
    return [_assembled(code, *each) for each in zip(*columns)]


def _assembled(code: str, *arguments: Array) -> Array:
    """One instruction for every element: its result is written when all arguments are read."""
    return backend.elementwise_inline_asm(
        code, args=list(arguments), constraints="=f" + ",f" * len(arguments), pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(arguments[0].shape, jnp.float32)],
    )[0]  # fmt: skip


def times_plus(a: Array, b: Array, c: Array, interpret: bool) -> Array:
    return a * b + c if interpret else _assembled("fma.rn.f32 $0, $1, $2, $3;", a, b, c)


def _hex(value: float) -> str:
    return f"0f{struct.unpack('>I', struct.pack('>f', value))[0]:08X}"


def _horner(powers: np.ndarray, w: Array) -> Array:
    total: Any = float(powers[-1])
    for c in powers[-2::-1]:
        total = total * w + float(c)
    return total
