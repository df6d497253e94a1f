"""K(X, Z) @ v as a Mosaic GPU program for Hopper chips: what `products.fused` computes, warpgroups with parts.

One warpgroup copies tiles of Z ahead with the bulk copy engine. Each of the others owns some rows of X: the inner
products of a tile go to the tensor cores at once, from the same bfloat16 halves, and while they run the other groups
evaluate their formula and sum. The order of sums is that of the tiles, so the same call gives the same bits.

One column of v; several, other chips and a JAX without this backend are left to `products.fused`. A CPU runs it in
JAX's interpreter of such programs, for tests.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from unlazy.products.pairs import add_compensated
from unlazy.products.ptx import PairProgram

try:  # experimental: what its users cannot do without may be missing too
    from jax.experimental.pallas import mosaic_gpu as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

WIDEST = 128
"""Inner dimensions up to here are held on chip whole."""
COPYING, MOST = 40, 240
"""Registers a thread of the copying warpgroup keeps, and the most another may have; they share the rest of 512."""


class Cut(NamedTuple):
    """Warpgroups that compute, rows of Z in a tile, tiles in flight, pieces Z is cut into, rows of X of a warpgroup:
    the 64 of one instruction, or several times as many, which share the numbers read for a tile of Z; columns of a tile
    whose formula is evaluated at a time (all of them), fewer for fewer registers and more to compile.

    On an H200, n = 2^18, m = 2^16, d = 32, the Gaussian kernel, all numbers of a tile read before its products:
    2.39·10^12 pairs a second like this, 2.31 with three tiles in flight, 2.02 with two warpgroups, 1.95 by
    products.fused; other kernels no faster than there.
    """

    groups: int = 3
    z: int = 128
    stages: int = 2
    splits: int | None = None
    rows: int = 64
    piece: int | None = None


def inner_width(d: int) -> int:
    """d padded to what is held on chip: a power of two from 16 on."""
    return max(16, pl.next_power_of_2(d))


def takes(d: int) -> bool:
    """Whether there is a program for points of d numbers."""
    return backend is not None and inner_width(d) <= WIDEST


def product(
    program: PairProgram,
    left: tuple[list[Array], list[Array]],
    right: tuple[list[Array], list[Array]],
    v: Float[Array, " m"],
    *,
    added: bool,
    sharp: bool,
    splits: int = 1,
    cut: Cut | None = None,
    interpret: Any = None,
) -> Float[Array, "s n"]:
    """K @ v of every split of Z. A side is its two bfloat16 halves (of Z transposed) and its numbers of one point each,
    the added one first; rows fill whole tiles (`padding`)."""
    cut = cut or Cut()
    (n, width), m = left[0][0].shape, v.shape[0]
    share, rows = m // splits, cut.rows * cut.groups
    stages = min(cut.stages, share // cut.z)
    slab = min(width, 64)
    x_arrays, z_arrays = [*left[0], *left[1]], [*right[0], *right[1], v]

    def on_chip(a: Array, *tile: int) -> Any:
        """Memory for tiles of a, halves as the tensor cores read them."""
        swizzled = (backend.TilingTransform((8, slab)), backend.SwizzleTransform(2 * slab))
        return backend.SMEM(tile, a.dtype, transforms=swizzled if a.ndim == 2 else ())

    scratch = [
        *[on_chip(a, cut.groups, cut.rows, *a.shape[1:]) for a in x_arrays],
        *[on_chip(a, stages, *a.shape[:-1], cut.z) for a in z_arrays],
        backend.SMEM((cut.groups, cut.rows), jnp.float32),
        backend.Barrier(num_arrivals=len(x_arrays), num_barriers=cut.groups),
        backend.Barrier(num_arrivals=len(z_arrays), num_barriers=stages),
        backend.Barrier(num_arrivals=cut.groups, num_barriers=stages),
    ]

    def kernel(*refs: Any) -> None:
        a, b = len(x_arrays), len(x_arrays) + len(z_arrays)
        x_refs, z_refs, out, kept = refs[:a], refs[a:b], refs[b], refs[b + 1 : -4]
        x_kept, z_kept = kept[:a], kept[a:]
        sums, ready, full, empty = refs[-4:]
        group, tile, split = (lax.axis_index(name) for name in ("group", "tile", "split"))
        tiles = share // cut.z

        def fetch(step: Any, slot: Any) -> None:
            at = pl.ds(split * share + step * cut.z, cut.z)
            for ref, into in zip(z_refs, z_kept):
                backend.copy_gmem_to_smem(ref.at[(slice(None), at)[-ref.ndim :]], into.at[slot], full.at[slot])

        @pl.when(group == cut.groups)
        def _() -> None:
            backend.set_max_registers(COPYING, action="decrease")
            for step in range(stages):
                fetch(step, step)

            @pl.loop(0, tiles - stages)
            def _(step: Any) -> None:
                slot = lax.rem(step, jnp.int32(stages))
                backend.barrier_wait(empty.at[slot])
                fetch(step + stages, slot)

            for step in range(tiles - stages, tiles):  # nobody leaves before all is read
                backend.barrier_wait(empty.at[step % stages])

        @pl.when(group < cut.groups)
        def _() -> None:
            backend.set_max_registers(_registers(cut.groups), action="increase")
            mine = pl.ds(tile * rows + group * cut.rows, cut.rows)
            for ref, into in zip(x_refs, x_kept):
                backend.copy_gmem_to_smem(ref.at[mine], into.at[group], ready.at[group])
            backend.barrier_wait(ready.at[group])
            read, piece = _Reader(cut.rows, bool(interpret)), cut.piece or cut.z
            p = [read.points(ref.at[group], 0) for ref in x_kept[2:]]
            halves = [ref.at[group] for ref in x_kept[:2]]

            def values(slot: Any, t: Array, at: int) -> Array:
                """K v of some columns of a tile."""
                q = [read.points(ref.at[slot, pl.ds(at, piece)], 1) for ref in z_kept[2 + added :]]
                across_x, across_z = ([read.across(a, i, piece) for a in n] for i, n in enumerate((p[added:], q)))
                t = t if piece == cut.z else lax.slice(t, (0, at), (cut.rows, at + piece))
                return program.evaluate(t, across_x, across_z[:-1]) * across_z[-1]

            def step(k: Any, total: tuple[Array, Array]) -> tuple[Array, Array]:
                slot, seed = lax.rem(k, jnp.int32(stages)), None
                backend.barrier_wait(full.at[slot])
                if added:
                    seed = read.across(p[0], 0, cut.z) + read.across(read.points(z_kept[2].at[slot], 1), 1, cut.z)
                t = read.inner_products(halves, [ref.at[slot] for ref in z_kept[:2]], seed, sharp)
                part = functools.reduce(operator.add, [values(slot, t, at) for at in range(0, cut.z, piece)])
                backend.barrier_arrive(empty.at[slot])
                return add_compensated(total, jnp.sum(part, 1))

            nothing = read.zeros()
            sums[group] = lax.fori_loop(0, tiles, step, (nothing, nothing))[0]
            backend.commit_smem()
            backend.copy_smem_to_gmem(sums.at[group], out.at[split, mine])
            backend.wait_smem_to_gmem(0)

    return backend.kernel(
        kernel, out_type=jax.ShapeDtypeStruct((splits, n), jnp.float32), grid=(n // rows, splits),
        grid_names=("tile", "split"), num_threads=cut.groups + 1, thread_name="group", scratch_types=scratch,
        compiler_params=backend.CompilerParams(approx_math=True), interpret=interpret,
    )(*x_arrays, *z_arrays)  # fmt: skip


def _registers(groups: int) -> int:
    """For a thread of each computing warpgroup: what the copying one leaves of what all began with. Asking for more
    than there is would wait for ever."""
    begun = 512 // (groups + 1) // 8 * 8
    return min(MOST, (begun * (groups + 1) - COPYING) // groups // 8 * 8)


class _Reader:
    """Tiles in the registers of a warpgroup, laid out as the tensor cores leave them. JAX's interpreter knows no
    layouts, nor accumulators that begin with numbers: there both are left out."""

    def __init__(self, rows: int, interpreted: bool):
        self.rows, self.interpreted = rows, interpreted

    def points(self, ref: Any, axis: int) -> Array:
        """Numbers of one point each, those along `axis` of a tile."""
        return ref[...] if self.interpreted else backend.load(ref, (), layout=backend.Layout.WGMMA.reduce(1 - axis))

    def across(self, numbers: Array, axis: int, columns: int) -> Array:
        """The same at every pair of some columns."""
        return lax.broadcast_in_dim(numbers, (self.rows, columns), [axis])

    def zeros(self) -> Array:
        """A number for every row."""
        none = jnp.zeros(self.rows, jnp.float32)
        return none if self.interpreted else backend.layout_cast(none, backend.Layout.WGMMA.reduce(1))

    def inner_products(self, x: list, z: list, seed: Array | None, sharp: bool) -> Array:
        """seed + X @ Zᵀ from halves of X and Zᵀ, the smallest products first."""
        (x_hi, x_lo), (z_hi, z_lo) = x, z

        def dots(total: Any) -> None:
            for a, b in ([(x_lo, z_lo)] if sharp else []) + [(x_hi, z_lo), (x_lo, z_hi), (x_hi, z_hi)]:
                backend.wgmma(total, a, b)

        def alone(total: Any) -> Array:
            dots(total)
            return total[...]

        if seed is not None and not self.interpreted:
            return pl.run_state(dots)(backend.ACC.init(seed))
        found = pl.run_scoped(alone, backend.ACC((self.rows, z_hi.shape[1]), jnp.float32))
        return found if seed is None else found + seed


def padding(n: int, m: int, splits: int, cut: Cut) -> tuple[int, int]:
    """Rows of X and of Z that fill whole tiles."""
    return cut.rows * cut.groups * pl.cdiv(n, cut.rows * cut.groups), splits * cut.z * pl.cdiv(m, splits * cut.z)
