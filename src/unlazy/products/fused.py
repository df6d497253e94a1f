"""K(X, Z) @ V on the GPU in one pass: inner products, the kernel's formula and the sum never leave the chip.

A program owns a tile of rows of X and streams over Z. ⟨x,z⟩ is formed on the tensor cores from operands split
beforehand into two bfloat16 halves (x = hi + lo; hi·hi + hi·lo + lo·hi, and lo·lo for kernels with a kink at x = z),
which keeps float32's level of accuracy; the kernel's formula (products.forms, as assembly by products.ptx) is applied
to the tile in registers and contracted with V there. Several columns of V: the tile of K is split into halves too and
multiplied on the tensor cores. Z is cut into splits where X alone has too few rows to fill the card.

A Pallas program for its Triton backend; on a CPU it runs in interpret mode, for tests. The same for the Mosaic backend
is products.hopper: asked for by its `Cut` in place of a `Tile`, and what a Hopper card gets from a JAX without Triton.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from unlazy.core import device
from unlazy.core.errors import UnlazyWarning
from unlazy.core.inputs import Points
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluate import embedded
from unlazy.products import hopper
from unlazy.products.forms import Form, GaussianForm, MaternForm, Prepared, form_of, split_bfloat16
from unlazy.products.pairs import add_compensated, both_sides
from unlazy.products.ptx import PairProgram, Unsupported, pair_program

try:  # the Triton backend is due to be replaced; without it the caller falls back to XLA blocks
    from jax.experimental.pallas import triton as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

_WHOLE = 64
"""Inner dimensions up to here are one slab held on chip; beyond, slabs of 32 are streamed."""
_FEW = 8
"""Columns of V up to which two of its parts fit into those that the tensor cores take at least."""
_NOTHING = -1e4
"""A power of two that is no number's."""
_ENOUGH, _PROGRAMS = 8, 32
"""Programs for every multiprocessor of the card, so that the last ones do not wait alone: where rows alone make enough
of them, Z is not cut."""


class Tile(NamedTuple):
    """How the work is cut: rows of X and of Z in a tile, warps, pipeline stages, pieces Z is cut into."""

    x: int = 64
    z: int = 128
    warps: int = 4
    stages: int = 2
    splits: int | None = None


def available(kernel: Kernel, X: Any) -> bool:
    """Whether this product can run fused: a float32 array on a CUDA GPU and a kernel with an entry formula.

    Not where constants are folded (`jax.ensure_compile_time_eval`): those of the fused program would be too.
    """
    if device.kind() != "gpu" or getattr(X, "ndim", 0) != 2:  # trees and images have no inner products
        return False
    form = form_of(kernel)
    if X.dtype != jnp.float32 or form is None or folding():
        return False
    return backend is not None or (device.is_hopper() and _for_hopper(form, kernel, X))


def _for_hopper(form: Form, kernel: Kernel, X: Array) -> bool:
    """Whether products.hopper can: all of the points on chip, a formula without tables or loops."""
    left, _ = jax.eval_shape(partial(_prepared, form), kernel, X, X)
    taken = hopper.takes(left.points.shape[1]) and _assembly(form, len(left.rows)) is not None
    return taken and _lowers_for_hopper()


@lru_cache
def _lowers_for_hopper() -> bool:
    """Whether this JAX takes products.hopper: that backend is experimental and changes. Nothing is compiled."""
    try:
        for form, columns in ((GaussianForm(), 1), (MaternForm(0.5), 8)):
            points, number, V = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 1), (1,), (1, columns)))
            side: Any = Prepared(points, [number] * isinstance(form, MaternForm), added=number)  # type: ignore[arg-type, list-item]
            traced = _apply_sides.trace(form, side, side, V, hopper.fitting(1, columns), False)
            traced.lower(lowering_platforms=("cuda",))
    except Exception as problem:
        warnings.warn(
            f"products on Hopper cards take the slower program: JAX {jax.__version__} refuses the other "
            f"({type(problem).__name__}: {str(problem)[:200]})",
            UnlazyWarning,
            stacklevel=2,
        )
        return False
    return True


def folding() -> bool:
    """Whether JAX evaluates constants while it traces."""
    return not jax.make_jaxpr(lambda: jnp.zeros(2))().eqns


def matmul(
    kernel: Kernel, X: Points, Z: Points, V: Float[Array, "m *c"], *,
    tile: Tile | hopper.Cut | None = None, interpret: Any = False,
) -> Float[Array, "n *c"]:  # fmt: skip
    """K(X, Z) @ V without forming K; float32, relative error near 1e-6 (4e-6 with several columns).

    The card multiplies while the points it has looked at are judged: a launch costs as much as 10^9 pairs.
    """
    form, left, right = _formed(kernel), *kernel.read(X, Z)
    admit = kernel.admission(left, right)
    result = _multiplied(form, kernel, left, right, V, tile, interpret)
    admit()
    return result


class Side(eqx.Module):
    """One side of K, embedded, centred and put into its form; kept by those who multiply again and again."""

    form: Form = eqx.field(static=True)
    of: Prepared


def prepared(kernel: Kernel, X: Points, Z: Points) -> tuple[Side, Side]:
    """Both sides of K(X, Z): `apply(left, right, V)` is K @ V and `apply(right, left, U)` is Kᵀ @ U.

    Both use the same rounded points, so of one and the same K: conjugate gradients on KᵀK need that.
    """
    form = _formed(kernel)
    left, right = _prepared(form, kernel, *both_sides(kernel, X, Z))
    return Side(form, left), Side(form, right)


def _formed(kernel: Kernel) -> Form:
    form = form_of(kernel)
    if form is None or kernel.formula is None:
        raise ValueError(f"{type(kernel).__name__} has no entry formula to fuse; use products.matmul, which chooses")
    return form


def apply(
    left: Side, right: Side, V: Float[Array, "m *c"], *, tile: Tile | hopper.Cut | None = None, interpret: Any = False
) -> Float[Array, "n *c"]:
    """K @ V for sides made by `prepared`."""
    return _apply_sides(left.form, left.of, right.of, V, tile, interpret)


def _tile(form: Form, rows: int, d: int, columns: int) -> Tile | hopper.Cut:
    """What was fastest on an H200: heavier formulas want smaller tiles, so that more of them share a processor."""
    hopping = device.is_hopper() and hopper.takes(d) and columns <= hopper.COLUMNS and _lowers_for_hopper()
    program = _assembly(form, rows) if hopping else None
    light = program is not None and program.left_count + program.right_count <= hopper.NUMBERS
    if backend is None or light:
        return hopper.fitting(d, columns)
    if columns > 1:
        return Tile(x=128, z=64)
    return Tile(x=64, z=64) if form.sharp else Tile(x=64, z=128)


@partial(jax.jit, static_argnames=("form", "tile", "interpret"))
def _multiplied(
    form: Form, kernel: InnerProductKernel, X: Array, Z: Array, V: Array, tile: Tile | hopper.Cut | None, interpret: Any
) -> Array:
    """All in one program: to begin one takes as long as 10^8 pairs."""
    return _apply_sides(form, *_prepared(form, kernel, X, Z), V, tile, interpret)


@partial(jax.jit, static_argnames=("form", "tile", "interpret"))
def _apply_sides(
    form: Form, left: Prepared, right: Prepared, V: Array, tile: Tile | hopper.Cut | None, interpret: Any
) -> Array:
    columns = V.reshape(V.shape[0], -1)
    tile = tile or _tile(form, len(left.rows), left.points.shape[1], columns.shape[1])
    s_left, s_right = left.scale, right.scale
    weighted = columns if s_right is None else columns * s_right[:, None]
    if isinstance(tile, hopper.Cut):
        parts = [weighted[:, k : k + hopper.COLUMNS] for k in range(0, weighted.shape[1], hopper.COLUMNS)]
        product = jnp.concatenate([_on_hopper(form, left, right, V, tile, interpret) for V in parts], 1)
    else:
        product = _product(form, left, right, weighted, tile, interpret)
    return (product if s_left is None else product * s_left[:, None]).reshape(product.shape[:1] + V.shape[1:])


@partial(jax.jit, static_argnames="form")
def _prepared(form: Form, kernel: InnerProductKernel, X: Array, Z: Array) -> tuple[Prepared, Prepared]:
    left, right = embedded(kernel, X, Z)
    return form.prepare(kernel, left), form.prepare(kernel, right)


@lru_cache(maxsize=256)
def _assembly(form: Form, rows: int) -> PairProgram | None:
    """The formula as assembly, or None where it uses an operation that has none: Triton then compiles it itself."""
    try:
        return pair_program(form.formula, rows)
    except Unsupported:
        return None


def _padded(A: Array, rows: int, columns: int | None = None) -> Array:
    wide = 0 if columns is None else columns - A.shape[1]
    return jnp.pad(A, ((0, rows - A.shape[0]),) + (((0, wide),) if A.ndim == 2 else ()))


def _repeated(A: Array, rows: int) -> Array:
    """Padded with its first number, so that a formula stays finite where V is zero."""
    return jnp.concatenate([A, jnp.broadcast_to(A[:1], (rows - A.shape[0],))])


def _inner_width(d: int) -> int:
    """d padded to what the tensor cores take: a power of two from 16 to 64, or a multiple of 32."""
    return max(16, pl.next_power_of_2(d)) if d <= _WHOLE else 32 * pl.cdiv(d, 32)


def _splits(n_tiles: int, m_tiles: int, wanted: int | None) -> int:
    """Pieces of Z: enough programs to fill the card, each with at least four tiles to stream."""
    if wanted is not None:
        return min(wanted, m_tiles)
    processors = device.multiprocessors()
    if n_tiles >= _ENOUGH * processors:
        return 1
    return max(1, min(m_tiles // 4, pl.cdiv(_PROGRAMS * processors, n_tiles)))


def _product(form: Form, left: Prepared, right: Prepared, V: Array, tile: Tile, interpret: bool) -> Array:
    X, Z, x_rows, z_rows = left.points, right.points, left.rows, right.rows
    n, m, c = X.shape[0], Z.shape[0], V.shape[1]
    program = None if interpret else _assembly(form, len(x_rows))
    if program is not None:
        x_rows, z_rows = program.left(x_rows), program.right(z_rows)
    x_added, z_added = ([] if side.added is None else [side.added] for side in (left, right))
    width, n_tiles = _inner_width(X.shape[1]), pl.cdiv(n, tile.x)
    splits = _splits(n_tiles, pl.cdiv(m, tile.z), tile.splits)
    share = tile.z * pl.cdiv(m, splits * tile.z)
    n_full, m_full = n_tiles * tile.x, splits * share
    wide = 1 if c == 1 else max(16, pl.next_power_of_2(c))
    values = [_padded(V[:, 0], m_full)] if c == 1 else _in_parts(_padded(V, m_full, max(_FEW, pl.next_power_of_2(c))))
    arrays = (
        [_padded(a, n_full, width) for a in split_bfloat16(X)],
        [_repeated(r, n_full) for r in (*x_added, *x_rows)],
        [_padded(a, m_full, width) for a in split_bfloat16(Z)],
        [_repeated(r, m_full) for r in (*z_added, *z_rows)],
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
    """V in three bfloat16 parts, for `_contract`. The tensor cores take sixteen columns at least: of up to eight, two
    parts lie side by side."""
    hi, mid, lo = split_bfloat16(V, 3)
    if V.shape[1] > _FEW:
        return [hi, mid, lo]
    return [jnp.concatenate([hi, mid], 1), jnp.concatenate([lo, jnp.zeros_like(lo)], 1)]


def _on_hopper(form: Form, left: Prepared, right: Prepared, V: Array, cut: hopper.Cut, interpret: Any) -> Array:
    """The same by products.hopper."""
    n, (m, c), width = left.points.shape[0], V.shape, hopper.inner_width(left.points.shape[1])
    v = V[:, 0]
    program = pair_program(form.formula, len(left.rows), form.relief > 0)
    splits = _splits(pl.cdiv(n, hopper.ROWS * cut.groups), pl.cdiv(m, cut.z), cut.splits)
    x_rows, z_rows = program.left(left.rows), program.right(right.rows)
    x_added, z_added, size, signs = left.added, right.added, None, None
    Z = right.points
    if c == 1 and form.exponential and not z_rows and z_added is not None:
        size = jnp.max(jnp.abs(v))
        n_full, m_full = hopper.padding(n, m + cut.z, splits, cut)
        order, signs = _by_sign(v, cut.z, m_full)
        exponent = jnp.maximum(jnp.log2(jnp.abs(v) / jnp.where(size > 0, size, 1)), _NOTHING)
        Z = Z.at[order].get(mode="fill", fill_value=0)
        z_added = (z_added + exponent).at[order].get(mode="fill", fill_value=_NOTHING)
    else:
        n_full, m_full = hopper.padding(n, m, splits, cut)
        columns = hopper.LANE * pl.cdiv(c, hopper.LANE)
        weights = _padded(v, m_full) if c == 1 else hopper.in_parts(_padded(V, m_full, c), columns)
        z_rows = [*(_repeated(r, m_full) for r in z_rows), weights]

    def halves(points: Array, added: Array | None, rows: int, first: bool) -> list[Array]:
        found = [_padded(a, rows, width) for a in split_bfloat16(points)]
        return found if added is None else [*found, hopper.added_columns(_repeated(added, rows), first)]

    parts = hopper.product(
        program, (halves(left.points, x_added, n_full, True), [_repeated(r, n_full) for r in x_rows]),
        (halves(Z, z_added, m_full, False), z_rows), sharp=form.sharp, signs=signs,
        relief=form.relief if cut.relief is None else cut.relief, splits=splits, cut=cut, interpret=interpret or None,
    )  # fmt: skip
    product = parts.sum(0).reshape(n_full, -1)[:n, :c]
    return product if size is None else product * size


def _by_sign(v: Array, tile: int, rows: int) -> tuple[Array, Array]:
    """Which number of v lies where (len(v): none) in tiles of one sign each, a positive one, a negative one and so on
    as long as there are both, so that sums stay small; how many those are, and the sign of the others."""
    positive = v > 0
    tiles = [pl.cdiv(jnp.sum(kind), tile) for kind in (positive, ~positive)]
    both = jnp.minimum(*tiles)

    def place(kind: Array, first: int) -> Array:
        rank = jnp.cumsum(kind) - 1
        lies = rank // tile
        return jnp.where(lies < both, 2 * lies + first, both + lies) * tile + rank % tile

    places = jnp.where(positive, place(positive, 0), place(~positive, 1))
    order = jnp.full(rows, len(v)).at[places].set(jnp.arange(len(v)), unique_indices=True)
    return order, jnp.stack([2 * both, jnp.where(tiles[0] > tiles[1], 1, -1)]).astype(jnp.int32)


def _rows_block(rows: int, axis: int) -> Callable:
    """Block of an array for the program at (i, s): its rows i (axis 0) or s (axis 1), all of its columns."""

    def spec(shape: tuple) -> pl.BlockSpec:
        return pl.BlockSpec((rows, *shape[1:]), lambda *at: (at[axis], 0)[: len(shape)])

    return spec


def _body(*refs, form: Form, program: PairProgram | None, tile: Tile, added: int, counts: list[int]) -> None:
    """One tile of rows of X against one piece of Z."""
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
        t = _inner_products(read_x, _reader(z_parts, span), seed, x_parts[0].shape[1], form.sharp)
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
    """K @ V for a tile: a sum where V is one column, products of bfloat16 parts where it is several.

    K in two parts, V in three: what is lost is of K alone, so that KᵀK stays symmetric.
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
    """K as a sum of two bfloat16 numbers, to 2^-17 of K.

    The first is cut by its bits: a compiler that may keep excess digits takes a cast to bfloat16 and back for nothing,
    and the second half would be zero.
    """
    bits = lax.bitcast_convert_type(K, jnp.int32)
    hi = lax.bitcast_convert_type((bits + 0x8000) & -0x10000, jnp.float32)
    return hi.astype(jnp.bfloat16), (K - hi).astype(jnp.bfloat16)


def _inner_products(read_x: Callable, read_z: Callable, seed: Array, width: int, sharp: bool) -> Array:
    """seed + X @ Zᵀ; the two functions read a slab of the (hi, lo) halves."""

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
    """Reads columns start … start + size of the given rows; once for all where one slab is the whole width."""
    if parts[0].shape[1] <= _WHOLE:
        held = [ref[span, :] for ref in parts]
        return lambda start, size: held
    return lambda start, size: [ref[span, pl.ds(start, size)] for ref in parts]
