"""K(X, Z) @ v as a Mosaic GPU program for Hopper chips: what `products.fused.fused_product` computes, warpgroups with
parts.

One warpgroup copies tiles of Z ahead with the bulk copy engine. Each of the others takes 64 rows of X at a time: the
inner products of a tile go to the tensor cores at once, from the same halves, and while they run the other groups
evaluate their formula and sum. Every multiprocessor has one program, which goes on from tile to tile of its share
(`products.fused.hopper_schedule`). Every thread sums for itself until the end of its rows, and the order of sums is
that of the tiles, so the same call gives the same bits on the same card. What is added to inner products is part of
them (`operands`): a number read from shared memory for every pair would cost more than its formula.

Several columns of V are one more product of the tensor cores for every tile, of K in two parts and V in three. Other
chips and a JAX without this backend are left to `products.fused.fused_product`. A CPU runs it in JAX's interpreter of
such programs, for tests.
"""

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from unlazy.core import devices
from unlazy.products.engines.pairs import add_compensated
from unlazy.products.fused.hopper_schedule import Shares
from unlazy.products.fused.hopper_tiles import LANE, ROWS, Compiled, Interpreted, backend
from unlazy.products.fused.ptx import PairProgram
from unlazy.products.fused.split_precision import Parts, split

WIDEST = 128
"""Inner dimensions up to here are held on chip whole."""
COLUMNS, NUMBERS = 8, 16
"""Columns of V that are multiplied at a time, and numbers of both points of a pair up to which registers hold them."""
COPYING, MOST = 40, 240
"""Registers a thread of the copying warpgroup keeps, and the most another may have; they share the rest of 512."""
STEP, REST, FREE = 16, 2, 4
"""Columns that a tensor instruction multiplies; numbers of a point beyond those of whole halves that a product more has
room for, beside what is added; columns of halves that hold it, where so many are left."""
FOLD = 4
"""Tiles whose sums are added up before rounding is compensated."""


class Cut(NamedTuple):
    """Warpgroups that compute, rows of Z in a tile, tiles in flight, programs unless one a multiprocessor; every how
    manieth pair takes its power of two by multiply-adds (0: none), unless the form's own.

    On an H200, n = 2^18, m = 2^16, d = 32, sides prepared, calls in a row, 10^12 pairs a second: the Gaussian kernel
    3.1 like this, 2.8 with three groups, 2.6 with 64 rows. X in registers, groups that take turns at the tensor cores
    and tiles in two pieces, one multiplied while the other is evaluated, gain nothing.
    """

    groups: int = 4
    z: int = 128
    stages: int = 2
    programs: int | None = None
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


def shares(n: int, m: int, d: int, cut: Cut) -> Shares:
    """Of n rows of X and m of Z, of d numbers each."""
    row_bytes = 4 * inner_width(d) + 2 * STEP
    tiles, folds = pl.cdiv(n, ROWS * cut.groups), pl.cdiv(m, FOLD * cut.z)
    return Shares.of(tiles, folds, FOLD * cut.z * row_bytes, cut.programs or devices.multiprocessors())


def padding(shared: Shares, cut: Cut) -> tuple[int, int]:
    """Rows of X and of Z that fill whole tiles, those of Z in whole folds."""
    return shared.tiles * ROWS * cut.groups, shared.chunks * shared.folds * FOLD * cut.z


def operands(parts: Parts, points: Float[Array, "n d"], added: Float[Array, " n"] | None, first: bool) -> list[Array]:
    """What the tensor cores multiply of a side of d numbers: its parts in columns that they take, and a third array of
    a product more where those are too few for all numbers and what is added.

    There, numbers beyond are a column for every product of parts; a(x) + a(z) is three parts of a beside three ones,
    and the other way round. Where four columns are free it is in them: (a1, 1, a2, 1) and (1, a1, 1, a2) of the first
    part; of the second (a3, 0, 0, 0) and (0, a3, 0, 0), which meet the ones of the first, or (a3, 1, 0, 0) and
    (1, a3, 0, 0) where it meets the second alone.
    """
    d, width = points.shape[1], inner_width(points.shape[1])
    both = parts.of(points)
    more = [both[pair[0 if first else 1]][:, k] for k in range(width, d) for pair in parts.dots]
    large, small = (jnp.pad(part[:, :width], ((0, 0), (0, max(0, width - d)))) for part in both)
    if added is not None:
        a1, a2, a3 = split(added, 3, parts.kind)
        one, none = jnp.ones_like(a1), jnp.zeros_like(a1)
        if width - d < FREE:
            more += [a1, a2, a3, one, one, one] if first else [one, one, one, a1, a2, a3]
        else:
            other = none if parts.crossing else one
            columns = ([a1, one, a2, one], [a3, other]) if first else ([one, a1, one, a2], [other, a3])
            large = large.at[:, d : d + FREE].set(jnp.stack(columns[0], 1))
            small = small.at[:, d : d + FREE].set(jnp.stack([*columns[1], none, none], 1))
    if not more:
        return [large, small]
    return [large, small, jnp.stack(more + [jnp.zeros_like(more[0])] * (STEP - len(more)), 1)]


def in_parts(V: Float[Array, "m c"], columns: int) -> Array:
    """Vᵀ in three bfloat16 parts, one below the other, each of so many rows."""
    return jnp.concatenate([jnp.pad(a.T, ((0, columns - V.shape[1]), (0, 0))) for a in split(V, 3)])


def product(
    program: PairProgram,
    left: tuple[list[Array], list[Array]],
    right: tuple[list[Array], list[Array]],
    *,
    dots: tuple[tuple[int, int], ...],
    relief: int = 0,
    signs: Int[Array, "2"] | None = None,
    shared: Shares,
    cut: Cut,
    interpret: Any = None,
) -> Float[Array, "n *c"]:
    """K @ v. A side is what the tensor cores multiply (`operands`), by `dots` of its first two, and its numbers of one
    point each, v the last of Z's, or V's parts (`in_parts`). Rows fill whole tiles (`padding`).

    With `signs`, |v| is part of what is added: tiles before the first number have v's of either sign in turn, + first,
    those from there on the sign that the second is.
    """
    (n, m), rows = padding(shared, cut), ROWS * cut.groups
    stages, of_chunk = min(cut.stages, FOLD), shared.folds * FOLD
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
        group, index = lax.axis_index("group"), lax.axis_index("program")
        first, last = shared.stretch(index)
        count = (last - first) * FOLD  # tiles of every chunk
        begin = lax.rem(first, jnp.int32(shared.folds)) * FOLD  # not `first`: four times that may be no int32

        def fetch(step: Any, slot: Any) -> None:
            tile = lax.div(step, count) * of_chunk + lax.rem(begin + lax.rem(step, count), jnp.int32(of_chunk))
            at = pl.ds(tile * cut.z, cut.z)
            for ref, into in zip(z_refs, z_kept):
                where = tuple(at if size == m else slice(None) for size in ref.shape)
                backend.copy_gmem_to_smem(ref.at[where], into.at[slot], full.at[slot])

        @pl.when(group == cut.groups)
        def _() -> None:
            backend.set_max_registers(COPYING, action="decrease")
            for step in range(ahead):
                fetch(jnp.int32(step), step)

            @pl.loop(ahead, shared.chunks * count)
            def _(step: Any) -> None:
                slot = lax.rem(step, jnp.int32(stages))
                backend.barrier_wait(empty.at[slot])
                fetch(step, slot)

            for step in range(ahead):  # nobody leaves before all have seen the last
                backend.barrier_wait(empty.at[lax.rem(shared.chunks * count + step, jnp.int32(stages))])

        @pl.when(group < cut.groups)
        def _() -> None:
            backend.set_max_registers(_registers(cut.groups), action="increase")
            on_tile = Interpreted(program) if interpret else Compiled(program, relief)
            x_halves = [ref.at[group] for ref in x_kept[:halves]]
            turning = [ref[i] for ref in sign_refs for i in range(2)]

            def step(before: Any, ahead: Any, p: list, k: Any, part: Array) -> Array:
                """The k-th tile of Z in a chunk; `before` and `ahead` tiles of this program and of Z came before it."""
                slot = lax.rem(before + k, jnp.int32(stages))
                if not given:  # of the tile before: numbers read for its formula have come by now
                    backend.barrier_arrive(empty.at[lax.rem(before + k + stages - 1, jnp.int32(stages))])
                backend.barrier_wait(full.at[slot])
                t = on_tile.inner_products(_products(x_halves, [ref.at[slot] for ref in z_kept[:halves]], dots))
                if not given:
                    q = [on_tile.points(ref.at[slot], 1) for ref in z_kept[halves : len(z_kept) - several]]
                    if several:
                        return part + on_tile.contracted(t, p, q, z_kept[-1].at[slot], columns)
                    return part + on_tile.summed(t, p, q, weighted=True)
                backend.barrier_arrive(empty.at[slot])
                at = ahead + k
                sign = jnp.where(at < turning[0], 1 - 2 * (at & 1), turning[1]).astype(jnp.float32)
                return part + sign * on_tile.summed(t, p, [], weighted=False)

            def of_rows(chunk: Any, tile: Any) -> None:
                """All folds of a chunk in this program's share that a tile of rows meets."""
                mine = pl.ds(tile * rows + group * ROWS, ROWS)
                for ref, into in zip(x_refs, x_kept):
                    backend.copy_gmem_to_smem(ref.at[mine], into.at[group], ready.at[group])
                backend.barrier_wait(ready.at[group])
                p = [on_tile.points(ref.at[group], 0) for ref in x_kept[halves:]]
                begun = tile * shared.folds
                here = partial(step, chunk * count + (begun - first) * FOLD, chunk * of_chunk, p)

                def fold(k: Any, total: tuple[Array, Array]) -> tuple[Array, Array]:
                    part = lax.fori_loop(k * FOLD, (k + 1) * FOLD, here, on_tile.zeros(columns))
                    return add_compensated(total, part)

                nothing = on_tile.zeros(columns)
                ends = jnp.maximum(first - begun, 0), jnp.minimum(last - begun, shared.folds)
                total, _ = lax.fori_loop(*ends, fold, (nothing, nothing))
                sums[group] = total if several else jnp.sum(total, 1)
                backend.commit_smem()
                backend.copy_smem_to_gmem(sums.at[group], out.at[chunk * shared.parts + shared.part(index), mine])
                backend.wait_smem_to_gmem(0)

            @pl.loop(0, shared.chunks)
            def _(chunk: Any) -> None:
                @pl.loop(lax.div(first, jnp.int32(shared.folds)), lax.div(last - 1, jnp.int32(shared.folds)) + 1)
                def _(tile: Any) -> None:
                    of_rows(chunk, tile)

    parts = backend.kernel(
        kernel, grid=(shared.programs,), grid_names=("program",),
        out_type=jax.ShapeDtypeStruct(
            (shared.chunks * shared.parts, n, *([columns] if several else [])), jnp.float32
        ),
        num_threads=cut.groups + 1, thread_name="group", scratch_types=scratch,
        compiler_params=backend.CompilerParams(approx_math=True), interpret=interpret,
    )(*x_arrays, *z_arrays, *given)  # fmt: skip
    parts = parts.reshape(shared.chunks, shared.parts, shared.tiles, -1)
    found = jnp.where(shared.left()[..., None], parts, 0.0).sum((0, 1))  # what nobody left is no number
    return found.reshape(n, *([columns] if several else []))


def _shared_out(items: Any, *counts: int) -> list:
    """The first count of items, the next count, and so on."""
    rest = iter(items)
    return [tuple(itertools.islice(rest, count)) for count in counts]


def _registers(groups: int) -> int:
    """For a thread of each computing warpgroup: what the copying one leaves of what all began with. Asking for more
    than there is would wait for ever."""
    begun = 512 // (groups + 1) // 8 * 8
    return min(MOST, (begun * (groups + 1) - COPYING) // groups // 8 * 8)


def _products(x: list, z: list, dots: tuple[tuple[int, int], ...]) -> list[tuple]:
    """Products whose sum is a + X @ Zᵀ, of parts of X and Z: the smallest first, what is added before the largest."""
    *small, largest = [(x[i], z[j]) for i, j in dots]
    return [*small, *zip(x[2:], z[2:]), largest]
