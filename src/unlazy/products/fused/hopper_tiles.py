"""Operations of a Hopper warpgroup on one tile of pairs, for products.fused.hopper: inner products on the tensor cores,
the kernel formula, and sums. Implemented with assembly for the GPU (Mosaic GPU), and with arrays for JAX's
interpreter."""

import functools
import inspect
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import vector
from jaxtyping import Array

from unlazy.core.mosaic import inline_assembly
from unlazy.products.fused.ptx import PairProgram

try:  # experimental in JAX, so any of these imports may fail
    from jax.experimental.mosaic.gpu import FragmentedArray
    from jax.experimental.pallas import mosaic_gpu as backend
except ImportError:  # pragma: no cover
    backend = FragmentedArray = None  # type: ignore[assignment, misc]

ROWS, LANE, PAIR = 64, 8, 2
"""Rows of a tensor core instruction, columns over which the threads of a row are distributed, columns per thread."""


class Compiled:
    """Tiles in the registers of a warpgroup, in the layout of the tensor cores; formulas as assembly."""

    def __init__(self, program: PairProgram, relief: int):
        self.program, self.layout = program, backend.Layout.WGMMA
        self.relief = 0 if program.polynomial_code is None else relief

    def points(self, ref: Any, axis: int) -> Array:
        """Per-point values along `axis` of a tile."""
        whole = [()] if "idx" in inspect.signature(backend.load).parameters else []  # before JAX 0.12
        return backend.load(ref, *whole, layout=self.layout.reduce(1 - axis))

    def zeros(self, columns: int) -> Array:
        """Zero accumulators of all threads."""
        return backend.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), self.layout)

    def inner_products(self, dots: list[tuple]) -> Array:
        """Sum of the products a @ bᵀ of all pairs (a, b), on the tensor cores."""

        def alone(total: Any) -> Array:
            for a, b in dots:
                backend.wgmma(total, a, backend.transpose_ref(b, (1, 0)))
            return total[...]

        return pl.run_scoped(alone, backend.ACC((ROWS, dots[0][1].shape[0]), jnp.float32))

    def contracted(self, t: Array, p: list, q: list, V: Any, columns: int) -> Array:
        """K @ V of a tile, with K in two bfloat16 parts and V in three; the smallest product is omitted."""
        hi, lo = self._halves(t, p, q)

        def alone(large: Any, small: Any) -> Array:
            backend.wgmma(large, hi, backend.transpose_ref(V, (1, 0)))
            backend.wgmma(small, lo, backend.transpose_ref(V.at[pl.ds(0, 2 * columns)], (1, 0)))
            parts = [
                (a, k * columns) for a, count in ((small[...], 2), (large[...], 3)) for k in reversed(range(count))
            ]
            return functools.reduce(operator.add, [lax.slice(a, (0, k), (ROWS, k + columns)) for a, k in parts])

        return pl.run_scoped(alone, *(backend.ACC((ROWS, count * columns), jnp.float32) for count in (3, 2)))

    def _halves(self, t: Array, p: list, q: list) -> list[Array]:
        """K of a tile as a sum of two bfloat16 values."""
        half = backend.ShapeDtypeStruct(t.shape, jnp.bfloat16, layout=self.layout)

        @backend.inline_mgpu(arg_types=(self.layout, *self._sides(p, q)), return_type=[half, half])
        def inlined(_: Any, t: Any, p: list, q: list) -> Any:
            found = [np.empty_like(t.registers) for _ in range(2)]
            for at, values in self._values(t, p, q):
                for registers, packed in zip(found, _two_halves(*values)):
                    registers[at] = packed
            return [FragmentedArray(_registers=a, _layout=t.layout, _is_signed=None) for a in found]

        return inlined(t, p, q)

    def _sides(self, p: list, q: list) -> tuple[list, list]:
        return [self.layout.reduce(1)] * len(p), [self.layout.reduce(0)] * len(q)

    def _values(self, t: Any, p: list, q: list) -> Iterator[tuple[tuple, list]]:
        """K of a tile, register by register."""
        across = [a.broadcast_in_dim(t.shape, (axis,), t.layout) for axis, n in enumerate((p, q)) for a in n]
        program, count = self.program, itertools.count(1)
        for at, pair in np.ndenumerate(t.registers):
            each = []
            for operands in zip(*[_numbers(r) for r in (pair, *(a.registers[at] for a in across))]):
                use_polynomial = self.relief and next(count) % self.relief == 0
                code = program.polynomial_code if use_polynomial else program.code
                each.append(_assembled(code or "", program.constraints, *operands))
            yield at, each

    def summed(self, t: Array, p: list, q: list, weighted: bool) -> Array:
        """Partial sums K v per lane of a tile, where v is the last of q; sums of K if not `weighted`."""
        returned = backend.ShapeDtypeStruct((ROWS, LANE), jnp.float32, layout=self.layout)

        @backend.inline_mgpu(arg_types=(self.layout, *self._sides(p, q)), return_type=returned)
        def inlined(_: Any, t: Any, p: list, q: list) -> Any:
            sums: dict = {}
            v = q.pop().broadcast_in_dim(t.shape, (1,), t.layout).registers if weighted else None
            for at, values in self._values(t, p, q):
                for e, value in enumerate(values):
                    lane = ((at[0], 0, *at[2:]), e)
                    factors = [value] if v is None else [value, _numbers(v[at])[e]]
                    sums[lane] = _add(sums.get(lane), *factors)
            kept = np.empty((t.registers.shape[0], 1, *t.registers.shape[2:]), object)
            for at in np.ndindex(kept.shape):
                kept[at] = vector.from_elements(t.registers.flat[0].type, [sums[at, e] for e in range(PAIR)])
            return FragmentedArray(_registers=kept, _layout=t.layout, _is_signed=None)

        return inlined(t, p, q)


def _numbers(register: Any) -> list:
    """The values in a Mosaic register, which holds neighbors of a row."""
    return [
        vector.extract(register, dynamic_position=[], static_position=ir.DenseI64ArrayAttr.get([e]))
        for e in range(PAIR)
    ]


def _assembled(code: str, constraints: str, *operands: Any, result: Any = None) -> Any:
    """A float computed by inline assembly."""
    return inline_assembly(code, constraints, result or ir.F32Type.get(), *operands)


def _add(total: Any, *factors: Any) -> Any:
    """total + the product of one or two factors."""
    if total is None:
        return factors[0] if len(factors) == 1 else _assembled("mul.f32 $0, $1, $2;", "=f,f,f", *factors)
    code = "add.f32 $0, $1, $2;" if len(factors) == 1 else "fma.rn.f32 $0, $1, $2, $3;"
    return _assembled(code, "=f" + ",f" * (len(factors) + 1), *factors, total)


def _two_halves(first: Any, second: Any) -> list:
    """Two floats as sums of bfloat16 values: the high parts packed in one register, the low parts in another."""
    whole, words = ir.IntegerType.get_signless(32), ir.VectorType.get([PAIR], ir.BF16Type.get())

    def packed(a: Any, b: Any) -> Any:
        return _assembled("cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", b, a, result=whole)

    large = packed(first, second)
    codes = ("shl.b32 h, $1, 16;", "and.b32 h, $1, 0xffff0000;")
    small = [
        _assembled(f"{{ .reg .b32 h; {code} sub.f32 $0, $2, h; }}", "=f,r,f", large, number)
        for code, number in zip(codes, (first, second))
    ]
    return [ir.Operation.create("llvm.bitcast", results=[words], operands=[a]).result for a in (large, packed(*small))]


class Interpreted:
    """The same operations for JAX's interpreter, which supports neither layouts nor assembly."""

    def __init__(self, program: PairProgram):
        self.program = program

    def points(self, ref: Any, axis: int) -> Array:
        """Per-point values along `axis` of a tile."""
        return ref[...]

    def zeros(self, columns: int) -> Array:
        """Zero accumulators of all threads."""
        return jnp.zeros((ROWS, columns), jnp.float32)

    def inner_products(self, dots: list[tuple]) -> Array:
        """Sum of the products a @ bᵀ of all pairs (a, b), on the tensor cores."""
        arrays = [[ref[...].astype(jnp.float32) for ref in pair] for pair in dots]
        return functools.reduce(operator.add, [jnp.sum(a[:, None] * b[None], -1) for a, b in arrays])

    def _values(self, t: Array, p: list, q: list) -> Array:
        sides = ([lax.broadcast_in_dim(a, t.shape, [axis]) for a in numbers] for axis, numbers in enumerate((p, q)))
        return self.program.evaluate(t, *sides)

    def contracted(self, t: Array, p: list, q: list, V: Any, columns: int) -> Array:
        """K @ V of a tile, with K in two bfloat16 parts and V in three; the smallest product is omitted."""
        whole = V[...].astype(jnp.float32).reshape(3, columns, -1).sum(0)
        return jnp.sum(self._values(t, p, q)[:, None] * whole[None], -1)

    def summed(self, t: Array, p: list, q: list, weighted: bool) -> Array:
        """Partial sums K v per lane of a tile, where v is the last of q; sums of K if not `weighted`."""
        weights = lax.broadcast_in_dim(q[-1], t.shape, [1]) if weighted else 1.0
        return (self._values(t, p, q[:-1] if weighted else q) * weights).reshape(ROWS, -1, LANE).sum(1)
