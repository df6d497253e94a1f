"""K(X, Z) @ V as a warp-specialized Mosaic GPU program for Hopper GPUs, called by `products.fused.fused_product`.

One warpgroup prefetches tiles of Z with the tensor memory accelerator. Each other warpgroup processes 64 rows of X at a
time: the inner products of a tile run asynchronously on the tensor cores while other warpgroups evaluate their formula
and accumulate. There is one persistent program per multiprocessor, which processes its share of tiles
(`products.fused.hopper_schedule`). Every thread accumulates separately until the end of its rows, in the order of the
tiles, so results are bitwise reproducible on the same GPU. Terms that are added to inner products become extra columns
of the operands (`operands`): reading one value per pair from shared memory would cost more than the formula.

For several columns of V, each tile needs one more product on the tensor cores, with K in two parts and V in three.
Other GPUs and JAX versions without this backend use `products.fused.triton`. On a CPU the program runs in JAX's
interpreter, for tests."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from unlazy.core import devices
from unlazy.products.engines.blocked import add_compensated
from unlazy.products.fused.hopper_schedule import WorkSchedule
from unlazy.products.fused.hopper_tiles import LANE, ROWS, Compiled, Interpreted, backend
from unlazy.products.fused.ptx import PairProgram
from unlazy.products.fused.split_precision import SplitPoints, split
from unlazy.products.fused.tiling import Interpret

MAX_WIDTH = 128
"""Maximum inner dimension: all columns of the points are kept on chip."""
COLUMNS, MAX_OPERANDS = 8, 16
"""Columns of V that are multiplied at a time, and maximum number of per-point operands of a formula."""
COPY_REGISTERS, MAX_REGISTERS = 40, 240
"""Registers per thread of the copying warpgroup, and the maximum for the others, which share the rest of 512."""
STEP, REST, FREE = 16, 2, 4
"""Inner dimension of a tensor core instruction; coordinates beyond a power of two that fit into one extra product
together with the added terms; unused columns that are needed to store the added terms in the operands themselves."""
FOLD = 4
"""Tiles that are accumulated between two steps of compensated summation."""


class HopperTile(NamedTuple):
    """Tile sizes of the Hopper program: computing warpgroups, rows of Z per tile, pipeline stages, programs (default:
    one per multiprocessor), and `relief`: every k-th pair evaluates exp2 as a polynomial (0: none, default: set by the
    form).

    Throughput of the Gaussian kernel on an H200 (n = 2^18, m = 2^16, d = 32, prepared sides, repeated calls), in 10^12
    pairs per second: 3.1 with the defaults, 2.8 with three groups, 2.6 with 64 rows. X in registers, groups that
    alternate on the tensor cores, and tiles in two pieces (one multiplied while the other is evaluated) gain nothing.
    """

    groups: int = 4
    z: int = 128
    stages: int = 2
    programs: int | None = None
    relief: int | None = None


def inner_width(d: int) -> int:
    """Padded inner dimension: the next power of two from 16 on, or the previous one if at most `REST` coordinates
    exceed it."""
    width = max(STEP, pl.next_power_of_2(d))
    return width // 2 if STEP <= width // 2 < d <= width // 2 + REST else width


def supports(d: int) -> bool:
    """Whether points of dimension d are supported."""
    return backend is not None and inner_width(d) <= MAX_WIDTH


def default_tile(d: int, columns: int) -> HopperTile:
    """The fastest tile sizes on an H200 for points of dimension d."""
    if inner_width(d) > 64:
        return HopperTile(3, 64)
    return HopperTile(3) if columns > 1 else HopperTile()


def make_schedule(n: int, m: int, d: int, cut: HopperTile) -> WorkSchedule:
    """Work schedule for n rows of X and m rows of Z of dimension d."""
    row_bytes = 4 * inner_width(d) + 2 * STEP
    tiles, folds = pl.cdiv(n, ROWS * cut.groups), pl.cdiv(m, FOLD * cut.z)
    return WorkSchedule.build(tiles, folds, FOLD * cut.z * row_bytes, cut.programs or devices.multiprocessors())


def padding(shared: WorkSchedule, cut: HopperTile) -> tuple[int, int]:
    """Rows of X and Z after padding to full tiles and folds."""
    return shared.tiles * ROWS * cut.groups, shared.chunks * shared.folds * FOLD * cut.z


def operands(
    parts: SplitPoints, points: Float[Array, "n d"], added: Float[Array, " n"] | None, first: bool
) -> list[Array]:
    """Tensor core operands of one side: its two parts, padded to supported widths, and a third array for an extra
    product if these columns cannot hold all coordinates and the added term.

    In the third array each coordinate beyond the width has one column per product of parts; a(x) + a(z) is encoded as
    the three parts of a next to three ones, and vice versa. If four columns are free, they are used instead:
    (a1, 1, a2, 1) and (1, a1, 1, a2) in the first part; in the second part (a3, 0, 0, 0) and (0, a3, 0, 0), which are
    multiplied by the ones of the first part, or (a3, 1, 0, 0) and (1, a3, 0, 0) if there are no cross terms.
    """
    d, width = points.shape[1], inner_width(points.shape[1])
    both = parts.split(points)
    more = [both[pair[0 if first else 1]][:, k] for k in range(width, d) for pair in parts.dots]
    large, small = (jnp.pad(part[:, :width], ((0, 0), (0, max(0, width - d)))) for part in both)
    if added is not None:
        a1, a2, a3 = split(added, 3, parts.kind)
        one, none = jnp.ones_like(a1), jnp.zeros_like(a1)
        if width - d < FREE:
            more += [a1, a2, a3, one, one, one] if first else [one, one, one, a1, a2, a3]
        else:
            other = none if parts.has_cross_terms else one
            columns = ([a1, one, a2, one], [a3, other]) if first else ([one, a1, one, a2], [other, a3])
            large = large.at[:, d : d + FREE].set(jnp.stack(columns[0], 1))
            small = small.at[:, d : d + FREE].set(jnp.stack([*columns[1], none, none], 1))
    if not more:
        return [large, small]
    return [large, small, jnp.stack(more + [jnp.zeros_like(more[0])] * (STEP - len(more)), 1)]


def in_parts(V: Float[Array, "m c"], columns: int) -> Array:
    """Vᵀ in three bfloat16 parts, stacked vertically, each padded to `columns` rows."""
    return jnp.concatenate([jnp.pad(a.T, ((0, columns - V.shape[1]), (0, 0))) for a in split(V, 3)])


def product(
    program: PairProgram,
    left: tuple[list[Array], list[Array]],
    right: tuple[list[Array], list[Array]],
    *,
    dots: tuple[tuple[int, int], ...],
    relief: int = 0,
    signs: Int[Array, "2"] | None = None,
    shared: WorkSchedule,
    cut: HopperTile,
    interpret: Interpret | None = None,
) -> Float[Array, " n *c"]:
    """K @ V. Each side consists of tensor core operands (`operands`; `dots` are the products of the first two) and
    per-point values; the last value of the right side is v, or the parts of V (`in_parts`). Rows are padded to full
    tiles (`padding`).

    With `signs`, |v| is included in the added term: tiles with index below signs[0] have alternating signs of v,
    starting with +, and all later tiles have the sign signs[1].
    """
    (n, m), rows = padding(shared, cut), ROWS * cut.groups
    stages, of_chunk = min(cut.stages, FOLD), shared.folds * FOLD
    x_arrays, z_arrays = [*left[0], *left[1]], [*right[0], *right[1]]
    halves, several = len(left[0]), z_arrays[-1].ndim == 2 and len(right[1]) > 0
    columns = z_arrays[-1].shape[0] // 3 if several else LANE
    given = [] if signs is None else [signs]
    ahead = stages if given else stages - 1  # tiles requested before the first one is released

    def on_chip(a: Array, *tile: int) -> Any:
        """Shared memory for tiles of a, swizzled for the tensor cores."""
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
        x_refs, z_refs, sign_refs, (out,), x_kept, z_kept, (sums, ready, full, empty) = _split_items(
            refs, len(x_arrays), len(z_arrays), len(given), 1, len(x_arrays), len(z_arrays), 4
        )
        group, index = lax.axis_index("group"), lax.axis_index("program")
        first, last = shared.program_range(index)
        count = (last - first) * FOLD  # tiles of every chunk
        begin = lax.rem(first, jnp.int32(shared.folds)) * FOLD  # not `first * FOLD`, which may overflow int32

        def fetch(step: Any, slot: Any) -> None:
            tile = lax.div(step, count) * of_chunk + lax.rem(begin + lax.rem(step, count), jnp.int32(of_chunk))
            at = pl.ds(tile * cut.z, cut.z)
            for ref, into in zip(z_refs, z_kept):
                where = tuple(at if size == m else slice(None) for size in ref.shape)
                backend.copy_gmem_to_smem(ref.at[where], into.at[slot], full.at[slot])

        @pl.when(group == cut.groups)
        def _() -> None:
            backend.set_max_registers(COPY_REGISTERS, action="decrease")
            for step in range(ahead):
                fetch(jnp.int32(step), step)

            @pl.loop(ahead, shared.chunks * count)
            def _(step: Any) -> None:
                slot = lax.rem(step, jnp.int32(stages))
                backend.barrier_wait(empty.at[slot])
                fetch(step, slot)

            for step in range(ahead):  # do not exit before all groups have read the last tile
                backend.barrier_wait(empty.at[lax.rem(shared.chunks * count + step, jnp.int32(stages))])

        @pl.when(group < cut.groups)
        def _() -> None:
            backend.set_max_registers(_registers(cut.groups), action="increase")
            on_tile = Interpreted(program) if interpret else Compiled(program, relief)
            x_halves = [ref.at[group] for ref in x_kept[:halves]]
            turning = [ref[i] for ref in sign_refs for i in range(2)]

            def step(before: Any, ahead: Any, p: list, k: Any, part: Array) -> Array:
                """Add the k-th tile of Z; `before` and `ahead` are the offsets within the program and within Z."""
                slot = lax.rem(before + k, jnp.int32(stages))
                if not given:  # release the previous tile: its per-point values have been read by now
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
                """Multiply a row tile with all folds of a chunk in the range of this program."""
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
    found = jnp.where(shared.written()[..., None], parts, 0.0).sum((0, 1))  # unwritten partial sums are uninitialized
    return found.reshape(n, *([columns] if several else []))


def _split_items(items: Any, *counts: int) -> list:
    """Split items into consecutive groups of the given lengths."""
    rest = iter(items)
    return [tuple(itertools.islice(rest, count)) for count in counts]


def _registers(groups: int) -> int:
    """Registers per thread of a computing warpgroup: its share of those that the copying warpgroup releases. Requesting
    more than available would deadlock."""
    begun = 512 // (groups + 1) // 8 * 8
    return min(MAX_REGISTERS, (begun * (groups + 1) - COPY_REGISTERS) // groups // 8 * 8)


def _products(x: list, z: list, dots: tuple[tuple[int, int], ...]) -> list[tuple]:
    """Pairs of operands whose products sum to a + X @ Zᵀ: the smallest first, the added terms before the largest."""
    *small, largest = [(x[i], z[j]) for i, j in dots]
    return [*small, *zip(x[2:], z[2:]), largest]
