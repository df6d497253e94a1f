"""K(X, Z) @ v as a Mosaic GPU program for Hopper chips: what `products.fused` computes, warpgroups with parts.

One warpgroup copies tiles of Z ahead with the bulk copy engine. Each of the others owns 64 rows of X: the inner
products of a tile go to the tensor cores at once, from the same bfloat16 halves, and while they run the other groups
evaluate their formula and sum. Every thread sums for itself until the end, and the order of sums is that of the tiles,
so the same call gives the same bits. What is added to inner products is part of them (`operands`): a number read from
shared memory for every pair would cost more than its formula.

Several columns of V are one more product of the tensor cores for every tile, of K in two parts and V in three. Other
chips and a JAX without this backend are left to `products.fused`. A CPU runs it in JAX's interpreter of such programs,
for tests.
"""

import functools
import inspect
import itertools
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import vector
from jaxtyping import Array, Float, Int

from unlazy.core.mosaic import assembled
from unlazy.products.forms import split
from unlazy.products.pairs import add_compensated
from unlazy.products.ptx import PairProgram

try:  # experimental: what its users cannot do without may be missing too
    from jax.experimental.mosaic.gpu import FragmentedArray
    from jax.experimental.pallas import mosaic_gpu as backend
except ImportError:  # pragma: no cover
    backend = FragmentedArray = None  # type: ignore[assignment, misc]

WIDEST = 128
"""Inner dimensions up to here are held on chip whole."""
COLUMNS, NUMBERS = 8, 16
"""Columns of V that are multiplied at a time, and numbers of both points of a pair up to which registers hold them."""
COPYING, MOST = 40, 240
"""Registers a thread of the copying warpgroup keeps, and the most another may have; they share the rest of 512."""
ROWS, LANE, PAIR = 64, 8, 2
"""Rows of a tensor instruction, columns of a tile in which every thread has its own, and how many that are."""
STEP, REST, FREE = 16, 2, 4
"""Columns that a tensor instruction multiplies; numbers of a point beyond those of whole halves that a product more has
room for, beside what is added; columns of halves that hold it, where so many are left."""
FOLD = 4
"""Tiles whose sums are added up before rounding is compensated."""


class Cut(NamedTuple):
    """Warpgroups that compute, rows of Z in a tile, tiles in flight, pieces Z is cut into; every how manieth pair takes
    its power of two by multiply-adds (0: none), unless the form's own.

    On an H200, n = 2^18, m = 2^16, d = 32, sides prepared, 10^12 pairs a second: the Gaussian kernel 2.75 like this,
    2.6 with three groups, 2.2 with two, 1.9 by products.fused. X in registers and groups that take turns at the tensor
    cores gain nothing.
    """

    groups: int = 4
    z: int = 128
    stages: int = 2
    splits: int | None = None
    relief: int | None = None


def inner_width(d: int) -> int:
    """Columns of halves of d numbers: a power of two from 16 on, the next one or, with `REST` numbers or fewer beyond
    it, the last."""
    width = max(STEP, pl.next_power_of_2(d))
    return width // 2 if STEP <= width // 2 < d <= width // 2 + REST else width


def takes(d: int) -> bool:
    """Whether there is a program for points of d numbers."""
    return backend is not None and inner_width(d) <= WIDEST


def fitting(d: int, columns: int) -> Cut:
    """What was fastest on an H200 for points of d numbers, and fits there."""
    if inner_width(d) > 64:
        return Cut(3, 64)
    return Cut(3) if columns > 1 else Cut()


def padding(n: int, m: int, splits: int, cut: Cut) -> tuple[int, int]:
    """Rows of X and of Z that fill whole tiles, those of Z in whole folds."""
    rows, columns = ROWS * cut.groups, splits * cut.z * FOLD
    return rows * pl.cdiv(n, rows), columns * pl.cdiv(m, columns)


def operands(halves: list[Array], added: Float[Array, " n"] | None, sharp: bool, first: bool) -> list[Array]:
    """What the tensor cores multiply of a side of d numbers: both halves in columns that they take, and a third array
    of a product more where those are too few for all numbers and what is added.

    There, numbers beyond are (hi, hi, lo) on one side and (hi, lo, hi) on the other; a(x) + a(z) is three bfloat16
    parts of a beside three ones, and the other way round. Where four columns are free it is in them: (a1, 1, a2, 1) and
    (1, a1, 1, a2) of hi with (a3, 0, 0, 0) and (0, a3, 0, 0) of lo, so that hi·hi adds the first two parts of both, and
    hi·lo and lo·hi the third of one each.
    """
    hi, lo = halves
    d, width = hi.shape[1], inner_width(hi.shape[1])
    more: list[Array] = []
    for k in range(width, d):
        products = ((hi, hi), (hi, lo), (lo, hi), (lo, lo))[: 3 + sharp]
        more += [pair[0 if first else 1][:, k] for pair in products]
    hi, lo = (jnp.pad(half[:, :width], ((0, 0), (0, max(0, width - d)))) for half in halves)
    if added is not None:
        a1, a2, a3 = split(added, 3)
        one, none = jnp.ones_like(a1), jnp.zeros_like(a1)
        if width - d < FREE:
            more += [a1, a2, a3, one, one, one] if first else [one, one, one, a1, a2, a3]
        else:
            large, small = ([a1, one, a2, one], [a3, none]) if first else ([one, a1, one, a2], [none, a3])
            hi = hi.at[:, d : d + FREE].set(jnp.stack(large, 1))
            lo = lo.at[:, d : d + FREE].set(jnp.stack([*small, none, none], 1))
    if not more:
        return [hi, lo]
    return [hi, lo, jnp.stack(more + [jnp.zeros_like(more[0])] * (STEP - len(more)), 1)]


def in_parts(V: Float[Array, "m c"], columns: int) -> Array:
    """Vᵀ in three bfloat16 parts, one below the other, each of so many rows."""
    return jnp.concatenate([jnp.pad(a.T, ((0, columns - V.shape[1]), (0, 0))) for a in split(V, 3)])


def product(
    program: PairProgram,
    left: tuple[list[Array], list[Array]],
    right: tuple[list[Array], list[Array]],
    *,
    sharp: bool,
    relief: int = 0,
    signs: Int[Array, "2"] | None = None,
    splits: int = 1,
    cut: Cut | None = None,
    interpret: Any = None,
) -> Float[Array, "s n *c"]:
    """K @ v of every split of Z. A side is what the tensor cores multiply (`operands`) and its numbers of one
    point each, v the last of Z's, or V's parts (`in_parts`). Rows fill whole
    tiles (`padding`).

    With `signs`, |v| is part of what is added: tiles before the first number have v's of either sign in turn, + first,
    those from there on the sign that the second is.
    """
    cut = cut or Cut()
    n, m = left[0][0].shape[0], right[0][0].shape[0]
    share, rows = m // splits, ROWS * cut.groups
    stages = min(cut.stages, share // cut.z)
    x_arrays, z_arrays = [*left[0], *left[1]], [*right[0], *right[1]]
    halves, several = len(left[0]), z_arrays[-1].ndim == 2 and len(right[1]) > 0
    columns = z_arrays[-1].shape[0] // 3 if several else LANE
    given = [] if signs is None else [signs]
    ahead = stages if given else stages - 1  # tiles asked for before any is released

    def on_chip(a: Array, *tile: int) -> Any:
        """Memory for tiles of a, halves as the tensor cores read them."""
        slab = 64 if several and a is z_arrays[-1] else min(*a.shape, 64)
        swizzled = (backend.TilingTransform((8, slab)), backend.SwizzleTransform(2 * slab))
        return backend.SMEM(tile, a.dtype, transforms=swizzled if a.ndim == 2 else ())

    scratch = [
        *[on_chip(a, cut.groups, ROWS, *a.shape[1:]) for a in x_arrays],
        *[on_chip(a, stages, *(cut.z if size == m else size for size in a.shape)) for a in z_arrays],
        backend.SMEM((cut.groups, ROWS, *([columns] if several else [])), jnp.float32),
        backend.Barrier(num_arrivals=len(x_arrays), num_barriers=cut.groups),
        backend.Barrier(num_arrivals=len(z_arrays), num_barriers=stages),
        backend.Barrier(num_arrivals=cut.groups, num_barriers=stages),
    ]

    def kernel(*refs: Any) -> None:
        x_refs, z_refs, sign_refs, (out,), x_kept, z_kept, (sums, ready, full, empty) = _shared_out(
            refs, len(x_arrays), len(z_arrays), len(given), 1, len(x_arrays), len(z_arrays), 4
        )
        group, tile, split = (lax.axis_index(name) for name in ("group", "tile", "split"))
        tiles = share // cut.z

        def fetch(step: Any, slot: Any) -> None:
            at = pl.ds(split * share + step * cut.z, cut.z)
            for ref, into in zip(z_refs, z_kept):
                where = tuple(at if size == m else slice(None) for size in ref.shape)
                backend.copy_gmem_to_smem(ref.at[where], into.at[slot], full.at[slot])

        @pl.when(group == cut.groups)
        def _() -> None:
            backend.set_max_registers(COPYING, action="decrease")
            for step in range(ahead):
                fetch(step, step)

            @pl.loop(ahead, tiles)
            def _(step: Any) -> None:
                slot = lax.rem(step, jnp.int32(stages))
                backend.barrier_wait(empty.at[slot])
                fetch(step, slot)

            for step in range(tiles, tiles + ahead):  # nobody leaves before all have seen the last
                backend.barrier_wait(empty.at[step % stages])

        @pl.when(group < cut.groups)
        def _() -> None:
            backend.set_max_registers(_registers(cut.groups), action="increase")
            mine = pl.ds(tile * rows + group * ROWS, ROWS)
            for ref, into in zip(x_refs, x_kept):
                backend.copy_gmem_to_smem(ref.at[mine], into.at[group], ready.at[group])
            backend.barrier_wait(ready.at[group])
            on_tile = _Interpreted(program) if interpret else _Compiled(program, relief)
            p = [on_tile.points(ref.at[group], 0) for ref in x_kept[halves:]]
            x_halves = [ref.at[group] for ref in x_kept[:halves]]
            turning = [ref[i] for ref in sign_refs for i in range(2)]

            def step(k: Any, part: Array) -> Array:
                slot = lax.rem(k, jnp.int32(stages))
                if not given:  # of the tile before: numbers read for its formula have come by now
                    backend.barrier_arrive(empty.at[lax.rem(k + stages - 1, jnp.int32(stages))])
                backend.barrier_wait(full.at[slot])
                t = on_tile.inner_products(_dots(x_halves, [ref.at[slot] for ref in z_kept[:halves]], sharp))
                if not given:
                    q = [on_tile.points(ref.at[slot], 1) for ref in z_kept[halves : len(z_kept) - several]]
                    if several:
                        return part + on_tile.contracted(t, p, q, z_kept[-1].at[slot], columns)
                    return part + on_tile.summed(t, p, q, weighted=True)
                backend.barrier_arrive(empty.at[slot])
                at = split * tiles + k
                sign = jnp.where(at < turning[0], 1 - 2 * (at & 1), turning[1]).astype(jnp.float32)
                return part + sign * on_tile.summed(t, p, [], weighted=False)

            def fold(k: Any, total: tuple[Array, Array]) -> tuple[Array, Array]:
                part = lax.fori_loop(k * FOLD, (k + 1) * FOLD, step, on_tile.zeros(columns))
                return add_compensated(total, part)

            nothing = on_tile.zeros(columns)
            total, _ = lax.fori_loop(0, tiles // FOLD, fold, (nothing, nothing))
            sums[group] = total if several else jnp.sum(total, 1)
            backend.commit_smem()
            backend.copy_smem_to_gmem(sums.at[group], out.at[split, mine])
            backend.wait_smem_to_gmem(0)

    return backend.kernel(
        kernel, grid=(n // rows, splits),
        out_type=jax.ShapeDtypeStruct((splits, n, *([columns] if several else [])), jnp.float32),
        grid_names=("tile", "split"), num_threads=cut.groups + 1, thread_name="group", scratch_types=scratch,
        compiler_params=backend.CompilerParams(approx_math=True), interpret=interpret,
    )(*x_arrays, *z_arrays, *given)  # fmt: skip


def _shared_out(items: Any, *counts: int) -> list:
    """The first count of items, the next count, and so on."""
    rest = iter(items)
    return [tuple(itertools.islice(rest, count)) for count in counts]


def _registers(groups: int) -> int:
    """For a thread of each computing warpgroup: what the copying one leaves of what all began with. Asking for more
    than there is would wait for ever."""
    begun = 512 // (groups + 1) // 8 * 8
    return min(MOST, (begun * (groups + 1) - COPYING) // groups // 8 * 8)


def _dots(x: list, z: list, sharp: bool) -> list[tuple]:
    """Products whose sum is a + X @ Zᵀ, of halves of X and Z: the smallest first, what is added before the largest."""
    (x_hi, x_lo, *x_added), (z_hi, z_lo, *z_added) = x, z
    small = [(x_lo, z_lo)] if sharp else []
    return [*small, (x_hi, z_lo), (x_lo, z_hi), *zip(x_added, z_added), (x_hi, z_hi)]


class _Compiled:
    """Tiles in the registers of a warpgroup, laid out as the tensor cores leave them; formulas as assembly."""

    def __init__(self, program: PairProgram, relief: int):
        self.program, self.layout = program, backend.Layout.WGMMA
        self.relief = 0 if program.relieved is None else relief

    def points(self, ref: Any, axis: int) -> Array:
        """Numbers of one point each, those along `axis` of a tile."""
        whole = [()] if "idx" in inspect.signature(backend.load).parameters else []  # before JAX 0.12
        return backend.load(ref, *whole, layout=self.layout.reduce(1 - axis))

    def zeros(self, columns: int) -> Array:
        """Sums of every thread."""
        return backend.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), self.layout)

    def inner_products(self, dots: list[tuple]) -> Array:
        def alone(total: Any) -> Array:
            for a, b in dots:
                backend.wgmma(total, a, backend.transpose_ref(b, (1, 0)))
            return total[...]

        return pl.run_scoped(alone, backend.ACC((ROWS, dots[0][1].shape[0]), jnp.float32))

    def contracted(self, t: Array, p: list, q: list, V: Any, columns: int) -> Array:
        """K @ V of a tile from K in two bfloat16 parts and V in three, all but the smallest product."""
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
        """K of a tile as a sum of two bfloat16 numbers."""
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
        """K of every register of a tile, one by one."""
        across = [a.broadcast_in_dim(t.shape, (axis,), t.layout) for axis, n in enumerate((p, q)) for a in n]
        program, count = self.program, itertools.count(1)
        for at, pair in np.ndenumerate(t.registers):
            each = []
            for operands in zip(*[_numbers(r) for r in (pair, *(a.registers[at] for a in across))]):
                relieved = self.relief and next(count) % self.relief == 0
                code = program.relieved if relieved else program.code
                each.append(_assembled(code or "", program.constraints, *operands))
            yield at, each

    def summed(self, t: Array, p: list, q: list, weighted: bool) -> Array:
        """K v of every lane of a tile, v the last of q; sums of K alone where it is not `weighted`."""
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
    """The numbers of a register of Mosaic's, which holds neighbours of a row."""
    return [
        vector.extract(register, dynamic_position=[], static_position=ir.DenseI64ArrayAttr.get([e]))
        for e in range(PAIR)
    ]


def _assembled(code: str, constraints: str, *operands: Any, result: Any = None) -> Any:
    """A number by assembly of its own."""
    return assembled(code, constraints, result or ir.F32Type.get(), *operands)


def _add(total: Any, *factors: Any) -> Any:
    """total + the product of one or two factors."""
    if total is None:
        return factors[0] if len(factors) == 1 else _assembled("mul.f32 $0, $1, $2;", "=f,f,f", *factors)
    code = "add.f32 $0, $1, $2;" if len(factors) == 1 else "fma.rn.f32 $0, $1, $2, $3;"
    return _assembled(code, "=f" + ",f" * (len(factors) + 1), *factors, total)


def _two_halves(first: Any, second: Any) -> list:
    """Two numbers as sums of bfloat16 ones: the larger parts side by side, and the smaller."""
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


class _Interpreted:
    """The same for JAX's interpreter, which knows no layouts and no assembly."""

    def __init__(self, program: PairProgram):
        self.program = program

    def points(self, ref: Any, axis: int) -> Array:
        return ref[...]

    def zeros(self, columns: int) -> Array:
        return jnp.zeros((ROWS, columns), jnp.float32)

    def inner_products(self, dots: list[tuple]) -> Array:
        arrays = [[ref[...].astype(jnp.float32) for ref in pair] for pair in dots]
        return functools.reduce(operator.add, [jnp.sum(a[:, None] * b[None], -1) for a, b in arrays])

    def _values(self, t: Array, p: list, q: list) -> Array:
        sides = ([lax.broadcast_in_dim(a, t.shape, [axis]) for a in numbers] for axis, numbers in enumerate((p, q)))
        return self.program.evaluate(t, *sides)

    def contracted(self, t: Array, p: list, q: list, V: Any, columns: int) -> Array:
        whole = V[...].astype(jnp.float32).reshape(3, columns, -1).sum(0)
        return jnp.sum(self._values(t, p, q)[:, None] * whole[None], -1)

    def summed(self, t: Array, p: list, q: list, weighted: bool) -> Array:
        weights = lax.broadcast_in_dim(q[-1], t.shape, [1]) if weighted else 1.0
        return (self._values(t, p, q[:-1] if weighted else q) * weights).reshape(ROWS, -1, LANE).sum(1)
