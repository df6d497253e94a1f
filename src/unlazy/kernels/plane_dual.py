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
    """scale · E φφ, and scale · (rate · E φφ + Θ E φ'φ')."""

    scale: float
    tangent: bool
    signed: bool

    def of(self, sigma: Array, theta: Any, left: Array, right: Array, rate: Any) -> tuple:
        """As plain arrays: what the assembly does."""
        G, Q = in_cosine(self.degree)
        both = left * right
        rho = jnp.where(both == 0, 0.0, jnp.clip(sigma / jnp.where(both == 0, 1.0, both), -1, 1))
        u = 1 - rho * rho
        if not self.tangent:
            return (both * (0.25 * self.scale * rho + _horner(self.scale * G, jnp.sqrt(u))),)
        w = jnp.sqrt(jnp.where(u < TOUCH, 0.0, u))
        slope = jnp.where(both == 0, 0.0, self.scale * (0.25 + rho * _horner(Q, w)))
        value = both * (rho * slope + (self.scale / (2 * np.pi)) * w)
        return value, theta * slope if rate is None else theta * slope + rate * value

    @property
    def degree(self) -> int:
        """Of the polynomial: 1.5e-7 off, for Σ alone, and 1e-7."""
        return 7 if self.tangent else 6

    def many(self, sigma: list, theta: list, left: list, right: list, rate: Any, interpret: bool) -> list[tuple]:
        """Of several columns, as GPU assembly: fused multiply-adds, quick roots and reciprocals (two units of rounding
        each). Step by step for all of them: a processor that waits for one result works on the next column.
        """
        if interpret:
            return [self.of(*each, rate) for each in zip(sigma, theta, left, right)]
        G, Q = in_cosine(self.degree)
        both = [l * r for l, r in zip(left, right)]
        rho = _each("rcp.approx.ftz.f32 $0, $1;", both)
        rho = _each("mul.ftz.f32 $0, $1, $2;", sigma, rho)
        if self.signed:
            rho = _each(f"max.ftz.f32 $0, $1, {_hex(-1)};", rho)
        rho = _each(f"min.ftz.f32 $0, $1, {_hex(1)};", rho)
        w = _each(f"{{ .reg .f32 n; neg.ftz.f32 n, $1; fma.rn.ftz.f32 $0, n, $1, {_hex(1)}; }}", rho)
        if self.tangent:
            touch = f"setp.lt.ftz.f32 b, $1, {_hex(TOUCH)}; selp.f32 $0, {_hex(0)}, $1, b;"
            w = _each(f"{{ .reg .pred b; {touch} }}", w)
        w = _each("sqrt.approx.ftz.f32 $0, $1;", w)
        powers = self.scale * (Q if self.tangent else G)
        g = _each(f"fma.rn.ftz.f32 $0, $1, {_hex(powers[-1])}, {_hex(powers[-2])};", w)
        for c in powers[-3::-1]:
            g = _each(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(c)};", g, w)
        if not self.tangent:
            g = _each(f"fma.rn.ftz.f32 $0, $1, {_hex(self.scale / 4)}, $2;", rho, g)
            return [(v * t,) for v, t in zip(g, both)]
        g = _each(f"fma.rn.ftz.f32 $0, $1, $2, {_hex(self.scale / 4)};", rho, g)
        dead = f"setp.eq.ftz.f32 b, $2, {_hex(0)}; selp.f32 $0, {_hex(0)}, $1, b;"
        slope = _each(f"{{ .reg .pred b; {dead} }}", g, both)
        w = _each(f"mul.ftz.f32 $0, $1, {_hex(self.scale / (2 * np.pi))};", w)
        value = _each("fma.rn.ftz.f32 $0, $1, $2, $3;", rho, slope, w)
        value = [v * t for v, t in zip(value, both)]
        if rate is None:
            return [(v, h * m) for v, h, m in zip(value, theta, slope)]
        rated = [v * rate for v in value]
        return list(zip(value, _each("fma.rn.ftz.f32 $0, $1, $2, $3;", theta, slope, rated)))


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
