"""K(X, Z) @ V on the GPU in one pass: inner products, kernel formula and sums stay on chip.

Both sides are converted to the fused form of the kernel (products.fused.fused_forms) once. One of two programs then
multiplies: products.fused.hopper on Hopper GPUs if it supports the problem, otherwise products.fused.triton. A
`HopperTile` or `TritonTile` selects one of them. Z is split into pieces if X has too few rows to occupy the GPU.
"""

from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from unlazy.core import devices, engines, mosaic
from unlazy.core.arrays import Matrix, Points, floats_on_device
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.gram_blocks import deferred_formula_validation, embed_sides
from unlazy.products.engines.blocked import validated_sides
from unlazy.products.fused import first_check, hopper, triton
from unlazy.products.fused.fused_forms import Form, GaussianForm, MaternForm, NearSettings, Prepared, form_of
from unlazy.products.fused.ptx import assembly, pair_program
from unlazy.products.fused.split_precision import SplitPoints
from unlazy.products.fused.tiling import Interpret, padded, repeated
from unlazy.products.fused.triton import TritonTile

Tile = TritonTile | hopper.HopperTile
"""Tile sizes, which select one of the two programs."""
_ZERO_EXPONENT = -1e4
"""An exponent so small that its power of two is zero."""


def available(kernel: Kernel, X: Points) -> bool:
    """Whether the product can be fused: float32 arrays on a CUDA GPU and a kernel with an entry formula.

    Not under `jax.ensure_compile_time_eval`, which would also evaluate the constants of the fused program.
    """
    if devices.kind() != "gpu" or getattr(X, "ndim", 0) != 2:  # trees and images have no inner products
        return False
    form = form_of(kernel)
    if X.dtype != jnp.float32 or form is None or _evaluates_constants():
        return False
    return _usable("triton", form) or (devices.is_hopper() and _for_hopper(form, kernel, X) and _usable("mosaic", form))


def _usable(engine: str, form: Form) -> bool:
    """Whether a program may run for kernels of this form: it is installed, allowed, and right on this device."""
    if engine == "triton" and triton.backend is None:
        return False
    kind = first_check.family(form)
    return engines.usable(engine, kind.__name__, lambda: first_check.verdict(kind, partial(_multiply_by, engine)))


def _multiply_by(engine: str, kernel: Kernel, X: Array, Z: Array, V: Array, interpret: Interpret = False) -> Array:
    """K(X, Z) @ V with one of the programs."""
    columns = V.size // V.shape[0]
    fast = engine == "mosaic"
    tile = hopper.default_tile(X.shape[1], columns) if fast else _triton_tile(_fused_form(kernel)[0], columns)
    return matmul(kernel, X, Z, V, tile=tile, interpret=interpret)


def engine_of(side: "FusedSide", columns: int) -> str:
    """The program that multiplies: "mosaic" or "triton"."""
    tile = _tile(side.form, len(side.prepared.rows), side.prepared.points.shape[1], columns)
    return "mosaic" if isinstance(tile, hopper.HopperTile) else "triton"


def _for_hopper(form: Form, kernel: Kernel, X: Array) -> bool:
    """Whether products.fused.hopper applies: the points fit on chip, and the formula has no tables or loops."""
    left, _ = jax.eval_shape(partial(_prepared, form), kernel, X, X)
    taken = hopper.supports(left.points.shape[1]) and assembly(form, len(left.rows)) is not None
    return taken and _lowers_for_hopper()


@lru_cache
def _lowers_for_hopper() -> bool:
    """Whether the installed JAX version can lower products.fused.hopper."""
    return all(
        mosaic.can_lower(partial(_traced_for_hopper, form, columns), "products")
        for form, columns in ((GaussianForm(), 1), (MaternForm(0.5), 8))
    )


def _traced_for_hopper(form: Form, columns: int) -> Any:
    points, number, V = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 1), (1,), (1, columns)))
    side: Any = Prepared(points, [number], added=number)  # type: ignore[arg-type, list-item]
    return _apply_sides.trace(form, side, side, V, hopper.default_tile(1, columns), False)


def _evaluates_constants() -> bool:
    """Whether JAX evaluates constants while tracing (`jax.ensure_compile_time_eval`)."""
    return not jax.make_jaxpr(lambda: jnp.zeros(2))().eqns


def matmul(
    kernel: Kernel, X: Points, Z: Points, V: Float[Matrix, " m *c"], *,
    tile: Tile | None = None, interpret: Interpret = False,
) -> Float[Array, " n *c"]:  # fmt: skip
    """K(X, Z) @ V without forming K; float32, relative error near 1e-6 (4e-6 with several columns).

    The result of the validation is read after the product was launched: waiting for it would cost as much as 10^9
    pairs."""
    form, formula = _fused_form(kernel)
    left, right = type(kernel).read(kernel, X, Z)  # bound methods of an Equinox module cost as much as a launch
    finish_validation = deferred_formula_validation(formula, (left, right), ("X", "Z"), False)
    result = _prepare_and_multiply(form, floats_on_device(formula), left, right, V, tile, interpret)
    finish_validation()
    return result


class FusedSide(eqx.Module):
    """One side of K, embedded, centered and converted to the fused form, for repeated products."""

    form: Form = eqx.field(static=True)
    prepared: Prepared


def prepare(kernel: Kernel, X: Points, Z: Points) -> tuple[FusedSide, FusedSide]:
    """Prepare both sides of K(X, Z): `apply(left, right, V)` is K @ V and `apply(right, left, U)` is Kᵀ @ U.

    Both products use the same rounded points and thus the same K, which conjugate gradients on KᵀK require.
    """
    form, formula = _fused_form(kernel)
    left, right = _prepared(form, formula, *validated_sides(kernel, X, Z))
    return FusedSide(form, left), FusedSide(form, right)


def _fused_form(kernel: Kernel) -> tuple[Form, InnerProductKernel]:
    form, formula = form_of(kernel), kernel.formula
    if form is None or formula is None:
        name = type(kernel).__name__
        raise ValueError(f"{name} has no entry formula that can be fused: use products.matmul, which chooses an engine")
    return form, formula


def apply(
    left: FusedSide,
    right: FusedSide,
    V: Float[Matrix, " m *c"],
    *,
    tile: Tile | None = None,
    interpret: Interpret = False,
) -> Float[Array, " n *c"]:
    """K @ V for sides returned by `prepare`."""
    return _apply_sides(left.form, left.prepared, right.prepared, V, tile, interpret)


def _tile(form: Form, rows: int, d: int, columns: int) -> Tile:
    """Tile sizes that were fastest on an H200: expensive formulas need smaller tiles for higher occupancy."""
    hopping = devices.is_hopper() and hopper.supports(d) and columns <= hopper.COLUMNS and _lowers_for_hopper()
    hopping = hopping and _usable("mosaic", form)
    program = assembly(form, rows) if hopping else None
    light = program is not None and program.left_count + program.right_count <= hopper.MAX_OPERANDS
    if light or not _usable("triton", form):
        return hopper.default_tile(d, columns)
    return _triton_tile(form, columns)


def _triton_tile(form: Form, columns: int) -> TritonTile:
    if columns > 1:
        return TritonTile(x=128, z=64)
    return TritonTile(x=64, z=64) if (1, 1) in form.parts.dots else TritonTile(x=64, z=128)


@partial(jax.jit, static_argnames=("form", "tile", "interpret"))
def _prepare_and_multiply(
    form: Form, kernel: InnerProductKernel, X: Array, Z: Array, V: Array, tile: Tile | None, interpret: Interpret
) -> Array:
    """Preparation and product in one program: a separate launch costs as much as 10^8 pairs."""
    return _apply_sides(form, *_prepared(form, kernel, X, Z), V, tile, interpret)


@partial(jax.jit, static_argnames=("form", "tile", "interpret"))
def _apply_sides(
    form: Form, left: Prepared, right: Prepared, V: Array, tile: Tile | None, interpret: Interpret
) -> Array:
    columns = V.reshape(V.shape[0], -1)
    s_left, s_right = left.scale, right.scale
    weighted = columns if s_right is None else columns * s_right[:, None]
    product = _near_or_far(form, left, right, weighted, tile, interpret)
    product = product if s_left is None else product * s_left[:, None]
    if left.apart is not None and right.apart is not None:
        product = product + left.apart[:, None] * jnp.sum(right.apart[:, None] * columns, 0)
    return product.reshape(product.shape[:1] + V.shape[1:])


@partial(jax.jit, static_argnames="form")
def _prepared(form: Form, kernel: InnerProductKernel, X: Array, Z: Array) -> tuple[Prepared, Prepared]:
    left, right = embed_sides(kernel, X, Z)
    return form.prepare(kernel, left), form.prepare(kernel, right)


def _near_or_far(
    form: Form, left: Prepared, right: Prepared, V: Array, tile: Tile | None, interpret: Interpret
) -> Array:
    """Multiply with the form and the split precision that the norms of the points require."""
    near, far = form.near, form.far
    by_near = _program(form, near, left, V, tile, interpret)
    added = [side.added for side in (left, right) if side.added is not None]
    if near is None or not added or (far is form and by_near.func is triton.product):
        return by_near(left, right, V)
    largest, mean = (-2 * jnp.minimum(*map(f, added)) for f in (jnp.min, jnp.mean))
    # False if a value is NaN, which polynomial powers of two would turn into a finite number
    within = (near.least <= largest) & (largest <= near.most) & (mean <= near.mean)
    return lax.cond(within, by_near, _program(far, None, left, V, tile, interpret), left, right, V)


def _program(
    form: Form, near: NearSettings | None, left: Prepared, V: Array, tile: Tile | None, interpret: Interpret
) -> partial:
    """Function of (left, right, V) that multiplies, with one of the two programs; `near` allows lower precision."""
    tile = tile or _tile(form, len(left.rows), left.points.shape[1], V.shape[1])
    if isinstance(tile, hopper.HopperTile):
        return partial(_on_hopper, form, near, tile, interpret)
    return partial(triton.product, form, tile=tile, interpret=interpret)


def _on_hopper(
    form: Form,
    near: NearSettings | None,
    cut: hopper.HopperTile,
    interpret: Interpret,
    left: Prepared,
    right: Prepared,
    V: Array,
) -> Array:
    """Multiply with products.fused.hopper, a few columns at a time."""
    parts = [V[:, k : k + hopper.COLUMNS] for k in range(0, V.shape[1], hopper.COLUMNS)]
    return jnp.concatenate([_few_columns(form, near, cut, interpret, left, right, V) for V in parts], 1)


def _few_columns(
    form: Form,
    near: NearSettings | None,
    cut: hopper.HopperTile,
    interpret: Interpret,
    left: Prepared,
    right: Prepared,
    V: Array,
) -> Array:
    n, (m, c) = left.points.shape[0], V.shape
    v, parts = V[:, 0], near.parts if near else form.parts
    program = pair_program(form.formula, len(left.rows), near.powers if near else None)
    relief = near.powers.every if near and cut.relief is None else cut.relief or 0
    x_rows, z_rows = program.left(form.numbers(left, parts)), program.right(form.numbers(right, parts))
    x_added, z_added = (_added(parts, side) for side in (left, right))
    Z, size, signs = right.points, None, None
    if c == 1 and form.exponential and not z_rows and z_added is not None:
        size = jnp.max(jnp.abs(v))
        shared = hopper.make_schedule(n, m + cut.z, Z.shape[1], cut)
        n_full, m_full = hopper.padding(shared, cut)
        order, signs = _by_sign(v, cut.z, m_full)
        exponent = jnp.maximum(jnp.log2(jnp.abs(v) / jnp.where(size > 0, size, 1)), _ZERO_EXPONENT)
        Z = Z.at[order].get(mode="fill", fill_value=0)
        z_added = (z_added + exponent).at[order].get(mode="fill", fill_value=_ZERO_EXPONENT)
    else:
        shared = hopper.make_schedule(n, m, Z.shape[1], cut)
        n_full, m_full = hopper.padding(shared, cut)
        columns = hopper.LANE * pl.cdiv(c, hopper.LANE)
        weights = padded(v, m_full) if c == 1 else hopper.in_parts(padded(V, m_full, c), columns)
        z_rows = [*(repeated(r, m_full) for r in z_rows), weights]

    def operands(points: Array, added: Array | None, rows: int, first: bool) -> list[Array]:
        return hopper.operands(parts, padded(points, rows), None if added is None else repeated(added, rows), first)

    product = hopper.product(
        program, (operands(left.points, x_added, n_full, True), [repeated(r, n_full) for r in x_rows]),
        (operands(Z, z_added, m_full, False), z_rows), dots=parts.dots, signs=signs,
        relief=relief, shared=shared, cut=cut, interpret=interpret or None,
    )  # fmt: skip
    product = product.reshape(n_full, -1)[:n, :c]
    return product if size is None else product * size


def _added(parts: SplitPoints, side: Prepared) -> Array | None:
    """The added term a of one side, corrected for the rounding of the split points."""
    if side.added is None:
        return None
    excess = parts.norm_correction(side.points)
    return side.added if excess is None else side.added + excess


def _by_sign(v: Array, tile: int, rows: int) -> tuple[Array, Array]:
    """Permutation of v into tiles of one sign each (index len(v): padding), alternating between positive and negative
    tiles as long as both remain, so that partial sums stay small. Also returns the number of alternating tiles and the
    sign of the remaining ones."""
    positive, at = v > 0, jnp.arange(len(v))
    found = jnp.cumsum(positive)  # number of positive values up to each position
    rank = jnp.where(positive, found - 1, at - found)
    tiles = [pl.cdiv(count, tile) for count in (found[-1], len(v) - found[-1])]
    both, lies = jnp.minimum(*tiles), rank // tile
    places = jnp.where(lies < both, 2 * lies + ~positive, both + lies) * tile + rank % tile
    order = jnp.full(rows, len(v)).at[places].set(at, unique_indices=True)
    return order, jnp.stack([2 * both, jnp.where(tiles[0] > tiles[1], 1, -1)]).astype(jnp.int32)
