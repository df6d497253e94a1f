"""Operations of one warp: on a GPU (Mosaic GPU), or simulated on arrays for tests.

Both classes have the same methods, so that the program (`warp_loop`) is written once. Floats are handled by steps
(kernels.conv_gpu.relu_dual), integers by operators.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith as _arith
from jax.extend.mlir.dialects import memref
from jax.extend.mlir.dialects import scf as _scf
from jaxtyping import Array

from unlazy.core.mosaic import inline_assembly
from unlazy.kernels.conv_gpu.relu_dual import DualStep, on_arrays

arith: Any = _arith  # the type stubs of the generated code are wrong
scf: Any = _scf

LANES, VECTOR = 32, 4
"""Threads of a warp, and values that a thread reads or writes at once."""


class SimulatedWarp:
    """All warps of a program at once: the values of threads are arrays of shape (warps, lanes)."""

    def __init__(self, warps: int, inputs: list[Array], outputs: list[int]):
        self.inputs = [a.reshape(-1) for a in inputs]
        self.outputs = [jnp.zeros(size, jnp.float32) for size in outputs]
        self.warp = jnp.broadcast_to(jnp.arange(warps, dtype=jnp.int32)[:, None], (warps, LANES))
        self.lane = jnp.broadcast_to(jnp.arange(LANES, dtype=jnp.int32), (warps, LANES))

    evaluate = staticmethod(on_arrays)

    def select(self, condition: Array, a: Array, b: Array) -> Array:
        """a where the condition holds, b elsewhere."""
        return jnp.where(condition, a, b)

    def integer(self, value: int) -> Array:
        """An integer constant."""
        return jnp.full(self.lane.shape, value, jnp.int32)

    def constant(self, value: float) -> Array:
        """A float constant."""
        return jnp.full(self.lane.shape, value, jnp.float32)

    def to_float(self, condition: Array) -> Array:
        """1.0 where the condition holds, 0.0 elsewhere."""
        return condition.astype(jnp.float32)

    def logical_not(self, condition: Array) -> Array:
        """The negated condition."""
        return ~condition

    def neighbor(self, value: Array, side: int, lanes: int) -> Array:
        """The value of the previous (-1) or next (1) lane in groups of `lanes`; at the end of a group, its own."""
        other = jnp.clip(self.lane % lanes + side, 0, lanes - 1) - self.lane % lanes + self.lane
        return jnp.take_along_axis(value, other, 1)

    def reader(self, which: int, start: Array) -> Callable[[int], list]:
        """A function that reads four values of an input from `start` plus a constant offset."""
        return lambda further: [self.inputs[which][start + further + k] for k in range(VECTOR)]

    def masked_read(self, which: int, start: Array, where: Array, further: int) -> list:
        """Read four values where the condition holds, and zeros elsewhere."""
        values = self.inputs[which]
        return [jnp.where(where, values.at[start + further + k].get(mode="clip"), 0) for k in range(VECTOR)]

    def load_on_chip(self, which: int, start: Array, size: int) -> Callable[[Array], Callable[[int], list]]:
        """Copy `size` values of an input to shared memory, and return a reader of them.

        `start` is the same for all warps of a block.
        """
        return lambda place: self.reader(which, start + place)

    def read(self, which: int, place: int) -> Array:
        """Read one value of an input."""
        return jnp.broadcast_to(self.inputs[which][place], self.lane.shape)

    def store(self, which: int, start: Array, values: list, where: Array, add: Array) -> None:
        """Write four values where the condition holds; add to the stored values where `add` holds."""
        out = self.outputs[which]
        for k, value in enumerate(values):
            at = jnp.where(where, start + k, out.size)
            out = out.at[at].set(jnp.where(add, out.at[at].get(mode="fill", fill_value=0), 0) + value, mode="drop")
        self.outputs[which] = out

    def repeat(self, times: Array, body: Callable, carry: tuple) -> tuple:
        """Run the body in a loop, with a carried state."""
        leaves, tree = jax.tree.flatten(carry)

        def once(_: Array, kept: tuple) -> tuple:
            before, self.outputs = self.outputs, list(kept[1])
            found = jax.tree.leaves(body(jax.tree.unflatten(tree, kept[0])))
            after, self.outputs = self.outputs, before
            return found, after

        leaves, self.outputs = lax.fori_loop(0, jnp.max(times), once, (leaves, self.outputs))
        return jax.tree.unflatten(tree, leaves)


class IntegerValue:
    """An integer or a condition of a GPU thread."""

    def __init__(self, value: ir.Value):
        self.value = value

    def _with(self, operation: Callable, other: "IntegerValue | int") -> "IntegerValue":
        if not isinstance(other, IntegerValue):
            other = IntegerValue(arith.constant(self.value.type, ir.IntegerAttr.get(self.value.type, int(other))))
        return IntegerValue(operation(self.value, other.value))

    def _compared(self, how: Any, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(lambda a, b: arith.cmpi(how, a, b), other)

    def __add__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.addi, other)

    def __sub__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.subi, other)

    def __mul__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.muli, other)

    def __and__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.andi, other)

    def __or__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.ori, other)

    def __rshift__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.shrsi, other)

    def __floordiv__(self, other: "IntegerValue | int") -> "IntegerValue":
        """Only for nonnegative values."""
        return self._with(arith.divui, other)

    def __mod__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._with(arith.remui, other)

    def __ge__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._compared(arith.CmpIPredicate.sge, other)

    def __lt__(self, other: "IntegerValue | int") -> "IntegerValue":
        return self._compared(arith.CmpIPredicate.slt, other)

    def __eq__(self, other: "IntegerValue | int") -> "IntegerValue":  # type: ignore[override]
        return self._compared(arith.CmpIPredicate.eq, other)

    __hash__ = None  # type: ignore[assignment]


class GpuWarp:
    """One warp in Mosaic GPU: every step is a line of assembly."""

    def __init__(self, inputs: list, outputs: list, kept: ir.Value, warps_of_block: int):
        self.shared, self.warps_of_block = kept, warps_of_block
        self._float_type, self._integer_type = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        self._address_type = ir.IntegerType.get_signless(64)
        self._vector_type = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * VECTOR)})>")
        self.inputs, self.outputs = ([self._begin(ref) for ref in refs] for refs in (inputs, outputs))
        thread, block = (
            IntegerValue(inline_assembly(f"mov.u32 $0, {name};", "=r", self._integer_type))
            for name in ("%tid.x", "%ctaid.x")
        )
        self.thread, self.lane = thread, thread & (LANES - 1)
        self.warp = block * warps_of_block + (thread >> (LANES - 1).bit_length())

    def _begin(self, ref: ir.Value) -> ir.Value:
        """Address of an array."""
        return arith.index_cast(self._address_type, memref.extract_aligned_pointer_as_index(ref))

    def evaluate(self, step: DualStep, *columns: list) -> list:
        """Evaluate a step on columns of values."""
        constraints = "=f" + ",f" * len(columns)
        return [inline_assembly(step.code, constraints, self._float_type, *given) for given in zip(*columns)]

    def integer(self, value: int) -> IntegerValue:
        """An integer constant."""
        return IntegerValue(arith.constant(self._integer_type, ir.IntegerAttr.get(self._integer_type, value)))

    def constant(self, value: float) -> ir.Value:
        """A float constant."""
        return arith.constant(self._float_type, ir.FloatAttr.get(self._float_type, value))

    def to_float(self, condition: IntegerValue) -> ir.Value:
        """1.0 where the condition holds, 0.0 elsewhere."""
        return arith.select(condition.value, self.constant(1.0), self.constant(0.0))

    def logical_not(self, condition: IntegerValue) -> IntegerValue:
        """The negated condition."""
        return condition == 0

    def select(self, condition: IntegerValue, a: IntegerValue, b: IntegerValue) -> IntegerValue:
        """a where the condition holds, b elsewhere."""
        return IntegerValue(arith.select(condition.value, a.value, b.value))

    def neighbor(self, value: ir.Value, side: int, lanes: int) -> ir.Value:
        """The value of the previous (-1) or next (1) lane in groups of `lanes`; at the end of a group, its own."""
        how, within = ("up", 0) if side < 0 else ("down", LANES - 1)
        code = f"shfl.sync.{how}.b32 $0, $1, 1, {(LANES - lanes) << 8 | within}, 0xffffffff;"
        return inline_assembly(code, "=f,f", self._float_type, value)

    def _at(self, begin: ir.Value, start: IntegerValue) -> ir.Value:
        """Address of an element."""
        bytes_ = arith.muli(
            arith.extsi(self._address_type, start.value),
            arith.constant(self._address_type, ir.IntegerAttr.get(self._address_type, 4)),
        )
        return arith.addi(begin, bytes_)

    def reader(self, which: int, start: IntegerValue) -> Callable[[int], list]:
        """A function that reads four values of an input from `start` plus a constant offset."""
        return self._reader(self._at(self.inputs[which], start), "global.nc")

    def _reader(self, at: ir.Value, space: str) -> Callable[[int], list]:
        def read(further: int) -> list:
            code = f"ld.{space}.v4.f32 {{$0, $1, $2, $3}}, [$4 + {4 * further}];"
            return self._four(inline_assembly(code, "=f,=f,=f,=f,l", self._vector_type, at))

        return read

    def _four(self, vector: ir.Value) -> list:
        """The four values of a vector."""
        return [
            ir.Operation.create(
                "llvm.extractvalue", results=[self._float_type], operands=[vector],
                attributes={"position": ir.DenseI64ArrayAttr.get([k])},
            ).result
            for k in range(VECTOR)
        ]  # fmt: skip

    def masked_read(self, which: int, start: IntegerValue, where: IntegerValue, further: int) -> list:
        """Read four values where the condition holds, and zeros elsewhere."""
        code = (
            "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
            "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; "
            f"@p ld.global.nc.v4.f32 {{$0, $1, $2, $3}}, [$4 + {4 * further}]; }}"
        )
        given = self._at(self.inputs[which], start), arith.extui(self._integer_type, where.value)
        return self._four(inline_assembly(code, "=&f,=&f,=&f,=&f,l,r", self._vector_type, *given))

    def load_on_chip(
        self, which: int, start: IntegerValue, size: int
    ) -> Callable[[IntegerValue], Callable[[int], list]]:
        """Copy `size` values of an input to shared memory, and return a reader of them."""
        at, to, four = self._at(self.inputs[which], start), self._begin(self.shared), LANES * VECTOR
        warps, own = self.warps_of_block, self.thread * VECTOR

        def copy(carry: tuple) -> tuple:
            (place,) = carry
            code = (
                "{ .reg .f32 a, b, c, d; .reg .pred p; setp.ne.b32 p, $2, 0; "
                "@p ld.global.nc.v4.f32 {a, b, c, d}, [$0]; @p st.shared.v4.f32 [$1], {a, b, c, d}; }"
            )
            held = arith.extui(self._integer_type, (place < size).value)
            inline_assembly(code, "l,l,r", None, self._at(at, place), self._at(to, place), held, side_effects=True)
            return (place + warps * four,)

        self.repeat(self.integer(-(-size // (warps * four))), copy, (own,))
        inline_assembly("bar.sync 0;", "", None, side_effects=True)
        return lambda place: self._reader(self._at(to, place), "shared")

    def read(self, which: int, place: int) -> ir.Value:
        """Read one value of an input."""
        code = f"ld.global.nc.f32 $0, [$1 + {4 * place}];"
        return inline_assembly(code, "=f,l", self._float_type, self.inputs[which])

    def store(self, which: int, start: IntegerValue, values: list, where: IntegerValue, add: IntegerValue) -> None:
        """Write four values where the condition holds; add to the stored values where `add` holds."""
        to = self._at(self.outputs[which], start)
        for condition, act in (
            (where & add, "red.global.add.v4.f32"),
            (where & self.logical_not(add), "st.global.v4.f32"),
        ):
            held = arith.extui(self._integer_type, condition.value)
            code = f"{{ .reg .pred p; setp.ne.b32 p, $5, 0; @p {act} [$4], {{$0, $1, $2, $3}}; }}"
            inline_assembly(code, "f,f,f,f,l,r", None, *values, to, held, side_effects=True)

    def repeat(self, times: IntegerValue, body: Callable, carry: tuple) -> tuple:
        """Run the body in a loop, with a carried state."""
        leaves, tree = jax.tree.flatten(carry, is_leaf=lambda leaf: isinstance(leaf, IntegerValue))
        is_whole = [isinstance(leaf, IntegerValue) for leaf in leaves]

        def bare(values: list) -> list:
            return [v.value if isinstance(v, IntegerValue) else v for v in values]

        def dressed(values: Any) -> tuple:
            return jax.tree.unflatten(tree, [IntegerValue(v) if whole else v for v, whole in zip(values, is_whole)])

        first, one = (arith.constant(self._integer_type, ir.IntegerAttr.get(self._integer_type, k)) for k in (0, 1))
        loop = scf.ForOp(first, times.value, one, bare(leaves))
        with ir.InsertionPoint(loop.body):
            found = body(dressed(loop.inner_iter_args))
            scf.YieldOp(bare(jax.tree.leaves(found, is_leaf=lambda leaf: isinstance(leaf, IntegerValue))))
        return dressed(loop.results)
