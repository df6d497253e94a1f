"""K(X, Z) @ V as a Pallas program for the Triton backend; on a CPU it runs in interpret mode, for tests.

Each program owns a tile of rows of X and streams over Z. ⟨x,z⟩ is computed on the tensor cores from operands that were
split into two bfloat16 parts (x = hi + lo; hi·hi + hi·lo + lo·hi, and lo·lo for kernels with a kink at x = z), which
gives float32 accuracy. The formula of the kernel (products.fused.fused_forms, compiled to PTX by products.fused.ptx) is
applied to the tile in registers, and the result is contracted with V there. For several columns of V, the tile of K is
split into two parts as well and multiplied on the tensor cores.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from unlazy.products.engines.blocked import add_compensated
from unlazy.products.fused.fused_forms import Form, Prepared
from unlazy.products.fused.ptx import PairProgram, assembly
from unlazy.products.fused.split_precision import split
from unlazy.products.fused.tiling import Interpret, padded, pieces, repeated

try:  # the Triton backend may be removed from JAX; without it the caller falls back to XLA blocks
    from jax.experimental.pallas import triton as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

_WHOLE = 64
"""Up to this inner dimension all columns are kept on chip; beyond it, slabs of 32 columns are streamed."""
_FEW = 8
"""Up to this many columns of V, two of its parts fit into the minimum width of the tensor cores."""


class TritonTile(NamedTuple):
    """Tile sizes of the Triton program: rows of X and Z per tile, warps, pipeline stages, pieces of Z."""

    x: int = 64
    z: int = 128
    warps: int = 4
    stages: int = 2
    splits: int | None = None


def product(form: Form, left: Prepared, right: Prepared, V: Array, tile: TritonTile, interpret: Interpret) -> Array:
    """K @ V for prepared sides."""
    X, Z, x_rows, z_rows = left.points, right.points, left.rows, right.rows
    n, m, c = X.shape[0], Z.shape[0], V.shape[1]
    program = None if interpret else assembly(form, len(x_rows))
    if program is not None:
        x_rows, z_rows = program.left(x_rows), program.right(z_rows)
    x_added, z_added = ([] if side.added is None else [side.added] for side in (left, right))
    width, n_tiles = _inner_width(X.shape[1]), pl.cdiv(n, tile.x)
    splits = pieces(n_tiles, pl.cdiv(m, tile.z), tile.splits)
    share = tile.z * pl.cdiv(m, splits * tile.z)
    n_full, m_full = n_tiles * tile.x, splits * share
    wide = 1 if c == 1 else max(16, pl.next_power_of_2(c))
    values = [padded(V[:, 0], m_full)] if c == 1 else _in_parts(padded(V, m_full, max(_FEW, pl.next_power_of_2(c))))
    arrays = (
        [padded(a, n_full, width) for a in form.parts.split(X)],
        [repeated(r, n_full) for r in (*x_added, *x_rows)],
        [padded(a, m_full, width) for a in form.parts.split(Z)],
        [repeated(r, m_full) for r in (*z_added, *z_rows)],
        values,
    )
    x_block, z_block = _rows_block(tile.x, 0), _rows_block(share, 1)
    parts = pl.pallas_call(
        partial(_body, form=form, program=program, tile=tile, added=len(x_added), counts=[len(a) for a in arrays]),
        grid=(n_tiles, splits),
        in_specs=[(x_block if k < 2 else z_block)(a.shape) for k, group in enumerate(arrays) for a in group],
        out_specs=pl.BlockSpec((None, tile.x, wide)[: 2 + (c > 1)], lambda i, s: (s, i, 0)[: 2 + (c > 1)]),
        out_shape=jax.ShapeDtypeStruct((splits, n_full, wide)[: 2 + (c > 1)], jnp.float32),
        compiler_params=backend.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name="kernel_matmul",
    )(*[a for group in arrays for a in group])
    sums = parts.sum(0).reshape(n_full, wide)[:n]
    return sums[:, :c] + sums[:, _FEW : _FEW + c] if 1 < c <= _FEW else sums[:, :c]


def _in_parts(V: Array) -> list[Array]:
    """V in three bfloat16 parts, for `_contract`. The tensor cores need at least 16 columns, so for up to 8 columns two
    parts are placed side by side."""
    hi, mid, lo = split(V, 3)
    if V.shape[1] > _FEW:
        return [hi, mid, lo]
    return [jnp.concatenate([hi, mid], 1), jnp.concatenate([lo, jnp.zeros_like(lo)], 1)]


def _rows_block(rows: int, axis: int) -> Callable:
    """Block of an array for the program at (i, s): block row i (axis 0) or s (axis 1), all columns."""

    def spec(shape: tuple) -> pl.BlockSpec:
        return pl.BlockSpec((rows, *shape[1:]), lambda *at: (at[axis], 0)[: len(shape)])

    return spec


def _body(*refs, form: Form, program: PairProgram | None, tile: TritonTile, added: int, counts: list[int]) -> None:
    """Multiply one tile of rows of X with one piece of Z."""
    groups, rest = [], list(refs)
    for count in counts:
        groups.append(rest[:count])
        rest = rest[count:]
    x_parts, x_rows, z_parts, z_rows, values = groups
    (out,) = rest
    p = [ref[:][:, None] for ref in x_rows]
    read_x = _reader(x_parts, slice(None))

    def step(j: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        span = pl.ds(j * tile.z, tile.z)
        q = [ref[span][None, :] for ref in z_rows]
        start = p[0] + q[0] if added else jnp.zeros((1, 1), jnp.float32)
        seed = jnp.broadcast_to(start, (tile.x, tile.z))
        t = _inner_products(read_x, _reader(z_parts, span), seed, x_parts[0].shape[1], (1, 1) in form.parts.dots)
        apply = form.formula if program is None else partial(_apply, program)
        K = apply(t, p[added:], q[added:])
        return add_compensated(sums, _contract(K, [ref[span] if ref.ndim == 1 else ref[span, :] for ref in values]))

    nothing = jnp.zeros(out.shape, jnp.float32)
    out[...] = lax.fori_loop(0, z_parts[0].shape[0] // tile.z, step, (nothing, nothing))[0]


def _apply(program: PairProgram, t: Array, p: list, q: list) -> Array:
    arguments = [t, *[jnp.broadcast_to(a, t.shape) for a in (*p, *q)]]
    result = [jax.ShapeDtypeStruct(t.shape, jnp.float32)]
    return backend.elementwise_inline_asm(
        program.code, args=arguments, constraints=program.constraints, pack=1, result_shape_dtypes=result
    )[0]


def _contract(K: Array, values: list) -> Array:
    """K @ V for a tile: a sum if V has one column, products of bfloat16 parts otherwise.

    K has two parts and V three, so that only K is rounded and KᵀK stays symmetric.
    """
    if len(values) == 1:
        return jnp.sum(K * values[0][None, :], axis=1)
    hi, lo = _halves(K)
    if len(values) == 2:
        v_large, v_lo = values
        return backend.dot(hi, v_lo) + backend.dot(lo, v_large) + backend.dot(hi, v_large)
    v_hi, v_mid, v_lo = values
    small = backend.dot(hi, v_lo) + backend.dot(lo, v_mid)
    return small + backend.dot(hi, v_mid) + backend.dot(lo, v_hi) + backend.dot(hi, v_hi)


def _halves(K: Array) -> tuple[Array, Array]:
    """K as a sum of two bfloat16 values, with relative error 2^-17.

    The first part is rounded with bit operations: a compiler that may keep excess precision would remove a cast to
    bfloat16 and back, and the second part would be zero.
    """
    bits = lax.bitcast_convert_type(K, jnp.int32)
    hi = lax.bitcast_convert_type((bits + 0x8000) & -0x10000, jnp.float32)
    return hi.astype(jnp.bfloat16), (K - hi).astype(jnp.bfloat16)


def _inner_products(read_x: Callable, read_z: Callable, seed: Array, width: int, sharp: bool) -> Array:
    """seed + X @ Zᵀ; the two functions read a slab of the (hi, lo) parts."""

    def slab(total: Array, start: Any, size: int) -> Array:
        x_hi, x_lo = read_x(start, size)
        z_hi, z_lo = read_z(start, size)
        small = total + backend.dot(x_lo, z_lo, trans_b=True) if sharp else total
        small = small + backend.dot(x_hi, z_lo, trans_b=True) + backend.dot(x_lo, z_hi, trans_b=True)
        return small + backend.dot(x_hi, z_hi, trans_b=True)

    if width <= _WHOLE:
        return slab(seed, 0, width)
    return lax.fori_loop(0, width // 32, lambda k, total: slab(total, 32 * k, 32), seed)


def _reader(parts: list, span: Any) -> Callable:
    """Function that reads columns start … start + size of the given rows; read only once if one slab has all
    columns."""
    if parts[0].shape[1] <= _WHOLE:
        held = [ref[span, :] for ref in parts]
        return lambda start, size: held
    return lambda start, size: [ref[span, pl.ds(start, size)] for ref in parts]


def _inner_width(d: int) -> int:
    """d padded for the tensor cores: a power of two from 16 to 64, or a multiple of 32."""
    return max(16, pl.next_power_of_2(d)) if d <= _WHOLE else 32 * pl.cdiv(d, 32)
