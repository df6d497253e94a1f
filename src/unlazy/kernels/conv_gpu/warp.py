"""What one warp of a card can do, as `warps` asks for it: on a card (Mosaic GPU), or on arrays, for tests.

Both have the same methods, so the program is written once. Numbers with a point are handled by steps
(kernels.conv_gpu.relu_dual), whole numbers by their operators.
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

from unlazy.core.mosaic import assembled
from unlazy.kernels.conv_gpu.relu_dual import Step, on_arrays

arith: Any = _arith  # what is said of their types is of generated code that is replaced
scf: Any = _scf

LANES, VECTOR = 32, 4
"""Threads of a warp, and numbers that one of them reads or writes at once."""


class Arrays:
    """Every warp of a program side by side: numbers of threads are arrays of warps × lanes."""

    def __init__(self, warps: int, inputs: list[Array], outputs: list[int]):
        self.inputs = [a.reshape(-1) for a in inputs]
        self.outputs = [jnp.zeros(size, jnp.float32) for size in outputs]
        self.warp = jnp.broadcast_to(jnp.arange(warps, dtype=jnp.int32)[:, None], (warps, LANES))
        self.lane = jnp.broadcast_to(jnp.arange(LANES, dtype=jnp.int32), (warps, LANES))

    each = staticmethod(on_arrays)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return jnp.where(condition, a, b)

    def whole(self, value: int) -> Any:
        return jnp.full(self.lane.shape, value, jnp.int32)

    def number(self, value: float) -> Any:
        return jnp.full(self.lane.shape, value, jnp.float32)

    def as_number(self, condition: Any) -> Any:
        return condition.astype(jnp.float32)

    def no(self, condition: Any) -> Any:
        return ~condition

    def neighbor(self, value: Any, side: int, lanes: int) -> Any:
        """Of the lane before (-1) or after, among so many; its own at the end."""
        other = jnp.clip(self.lane % lanes + side, 0, lanes - 1) - self.lane % lanes + self.lane
        return jnp.take_along_axis(value, other, 1)

    def reader(self, which: int, start: Any) -> Callable[[int], list]:
        """Of an input: four numbers from a place on, a constant further."""
        return lambda further: [self.inputs[which][start + further + k] for k in range(VECTOR)]

    def some(self, which: int, start: Any, where: Any, further: int) -> list:
        """The same where it holds, and zeros elsewhere."""
        values = self.inputs[which]
        return [jnp.where(where, values.at[start + further + k].get(mode="clip"), 0) for k in range(VECTOR)]

    def keep(self, which: int, start: Any, size: int) -> Callable[[Any], Callable[[int], list]]:
        """So many numbers of an input from a place on, which is the same for all warps of a block, brought on chip:
        a reader of them."""
        return lambda place: self.reader(which, start + place)

    def read(self, which: int, place: int) -> Any:
        return jnp.broadcast_to(self.inputs[which][place], self.lane.shape)

    def store(self, which: int, start: Any, values: list, where: Any, add: Any) -> None:
        """Four numbers, where it holds; added to what lies there where `add` does."""
        out = self.outputs[which]
        for k, value in enumerate(values):
            at = jnp.where(where, start + k, out.size)
            out = out.at[at].set(jnp.where(add, out.at[at].get(mode="fill", fill_value=0), 0) + value, mode="drop")
        self.outputs[which] = out

    def repeat(self, times: Any, body: Callable, carry: tuple) -> tuple:
        leaves, tree = jax.tree.flatten(carry)

        def once(_: Any, kept: tuple) -> tuple:
            before, self.outputs = self.outputs, list(kept[1])
            found = jax.tree.leaves(body(jax.tree.unflatten(tree, kept[0])))
            after, self.outputs = self.outputs, before
            return found, after

        leaves, self.outputs = lax.fori_loop(0, jnp.max(times), once, (leaves, self.outputs))
        return jax.tree.unflatten(tree, leaves)


class Whole:
    """A whole number of a thread of a card, or a condition."""

    def __init__(self, value: Any):
        self.value = value

    def _with(self, operation: Callable, other: Any) -> "Whole":
        if not isinstance(other, Whole):
            other = Whole(arith.constant(self.value.type, ir.IntegerAttr.get(self.value.type, int(other))))
        return Whole(operation(self.value, other.value))

    def _compared(self, how: Any, other: Any) -> "Whole":
        return self._with(lambda a, b: arith.cmpi(how, a, b), other)

    def __add__(self, other: Any) -> "Whole":
        return self._with(arith.addi, other)

    def __sub__(self, other: Any) -> "Whole":
        return self._with(arith.subi, other)

    def __mul__(self, other: Any) -> "Whole":
        return self._with(arith.muli, other)

    def __and__(self, other: Any) -> "Whole":
        return self._with(arith.andi, other)

    def __or__(self, other: Any) -> "Whole":
        return self._with(arith.ori, other)

    def __rshift__(self, other: Any) -> "Whole":
        return self._with(arith.shrsi, other)

    def __floordiv__(self, other: Any) -> "Whole":
        """Of numbers that are not negative."""
        return self._with(arith.divui, other)

    def __mod__(self, other: Any) -> "Whole":
        return self._with(arith.remui, other)

    def __ge__(self, other: Any) -> "Whole":
        return self._compared(arith.CmpIPredicate.sge, other)

    def __lt__(self, other: Any) -> "Whole":
        return self._compared(arith.CmpIPredicate.slt, other)

    def __eq__(self, other: Any) -> "Whole":  # type: ignore[override]
        return self._compared(arith.CmpIPredicate.eq, other)

    __hash__ = None  # type: ignore[assignment]


class Card:
    """One warp, as Mosaic GPU is told: every step is a line of assembly."""

    def __init__(self, inputs: list, outputs: list, kept: Any, warps_of_block: int):
        self.kept, self.warps_of_block = kept, warps_of_block
        self._number, self._whole = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        self._address = ir.IntegerType.get_signless(64)
        self._vector = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * VECTOR)})>")
        self.inputs, self.outputs = ([self._begin(ref) for ref in refs] for refs in (inputs, outputs))
        thread, block = (Whole(assembled(f"mov.u32 $0, {name};", "=r", self._whole)) for name in ("%tid.x", "%ctaid.x"))
        self.thread, self.lane = thread, thread & (LANES - 1)
        self.warp = block * warps_of_block + (thread >> (LANES - 1).bit_length())

    def _begin(self, ref: Any) -> Any:
        return arith.index_cast(self._address, memref.extract_aligned_pointer_as_index(ref))

    def each(self, step: Step, *columns: list) -> list:
        constraints = "=f" + ",f" * len(columns)
        return [assembled(step.code, constraints, self._number, *given) for given in zip(*columns)]

    def whole(self, value: int) -> Whole:
        return Whole(arith.constant(self._whole, ir.IntegerAttr.get(self._whole, value)))

    def number(self, value: float) -> Any:
        return arith.constant(self._number, ir.FloatAttr.get(self._number, value))

    def as_number(self, condition: Whole) -> Any:
        return arith.select(condition.value, self.number(1.0), self.number(0.0))

    def no(self, condition: Whole) -> Whole:
        return condition == 0

    def select(self, condition: Whole, a: Whole, b: Whole) -> Whole:
        return Whole(arith.select(condition.value, a.value, b.value))

    def neighbor(self, value: Any, side: int, lanes: int) -> Any:
        how, within = ("up", 0) if side < 0 else ("down", LANES - 1)
        code = f"shfl.sync.{how}.b32 $0, $1, 1, {(LANES - lanes) << 8 | within}, 0xffffffff;"
        return assembled(code, "=f,f", self._number, value)

    def _at(self, begin: Any, start: Whole) -> Any:
        bytes_ = arith.muli(
            arith.extsi(self._address, start.value),
            arith.constant(self._address, ir.IntegerAttr.get(self._address, 4)),
        )
        return arith.addi(begin, bytes_)

    def reader(self, which: int, start: Whole) -> Callable[[int], list]:
        return self._reader(self._at(self.inputs[which], start), "global.nc")

    def _reader(self, at: Any, space: str) -> Callable[[int], list]:
        def read(further: int) -> list:
            code = f"ld.{space}.v4.f32 {{$0, $1, $2, $3}}, [$4 + {4 * further}];"
            return self._four(assembled(code, "=f,=f,=f,=f,l", self._vector, at))

        return read

    def _four(self, vector: Any) -> list:
        return [
            ir.Operation.create(
                "llvm.extractvalue", results=[self._number], operands=[vector],
                attributes={"position": ir.DenseI64ArrayAttr.get([k])},
            ).result
            for k in range(VECTOR)
        ]  # fmt: skip

    def some(self, which: int, start: Whole, where: Whole, further: int) -> list:
        code = (
            "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
            "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; "
            f"@p ld.global.nc.v4.f32 {{$0, $1, $2, $3}}, [$4 + {4 * further}]; }}"
        )
        given = self._at(self.inputs[which], start), arith.extui(self._whole, where.value)
        return self._four(assembled(code, "=&f,=&f,=&f,=&f,l,r", self._vector, *given))

    def keep(self, which: int, start: Whole, size: int) -> Callable[[Whole], Callable[[int], list]]:
        at, to, four = self._at(self.inputs[which], start), self._begin(self.kept), LANES * VECTOR
        warps, own = self.warps_of_block, self.thread * VECTOR

        def copy(carry: tuple) -> tuple:
            (place,) = carry
            code = (
                "{ .reg .f32 a, b, c, d; .reg .pred p; setp.ne.b32 p, $2, 0; "
                "@p ld.global.nc.v4.f32 {a, b, c, d}, [$0]; @p st.shared.v4.f32 [$1], {a, b, c, d}; }"
            )
            held = arith.extui(self._whole, (place < size).value)
            assembled(code, "l,l,r", None, self._at(at, place), self._at(to, place), held, acts=True)
            return (place + warps * four,)

        self.repeat(self.whole(-(-size // (warps * four))), copy, (own,))
        assembled("bar.sync 0;", "", None, acts=True)
        return lambda place: self._reader(self._at(to, place), "shared")

    def read(self, which: int, place: int) -> Any:
        code = f"ld.global.nc.f32 $0, [$1 + {4 * place}];"
        return assembled(code, "=f,l", self._number, self.inputs[which])

    def store(self, which: int, start: Whole, values: list, where: Whole, add: Whole) -> None:
        to = self._at(self.outputs[which], start)
        for condition, act in ((where & add, "red.global.add.v4.f32"), (where & self.no(add), "st.global.v4.f32")):
            held = arith.extui(self._whole, condition.value)
            code = f"{{ .reg .pred p; setp.ne.b32 p, $5, 0; @p {act} [$4], {{$0, $1, $2, $3}}; }}"
            assembled(code, "f,f,f,f,l,r", None, *values, to, held, acts=True)

    def repeat(self, times: Whole, body: Callable, carry: tuple) -> tuple:
        leaves, tree = jax.tree.flatten(carry, is_leaf=lambda leaf: isinstance(leaf, Whole))
        is_whole = [isinstance(leaf, Whole) for leaf in leaves]

        def bare(values: list) -> list:
            return [v.value if isinstance(v, Whole) else v for v in values]

        def dressed(values: Any) -> tuple:
            return jax.tree.unflatten(tree, [Whole(v) if whole else v for v, whole in zip(values, is_whole)])

        first, one = (arith.constant(self._whole, ir.IntegerAttr.get(self._whole, k)) for k in (0, 1))
        loop = scf.ForOp(first, times.value, one, bare(leaves))
        with ir.InsertionPoint(loop.body):
            found = body(dressed(loop.inner_iter_args))
            scf.YieldOp(bare(jax.tree.leaves(found, is_leaf=lambda leaf: isinstance(leaf, Whole))))
        return dressed(loop.results)
