"""K(X, Z) @ V on the GPU in one pass: inner products, the kernel's formula and the sum never leave the chip.

Both sides are put into the kernel's form (products.fused.fused_forms) once; then one of two programs multiplies:
products.fused.hopper on Hopper cards where it fits, products.fused.triton elsewhere. A `Cut` or a `Tile` asks for one
of them. Z is cut into pieces where X alone has too few rows to fill the card.
"""

from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from unlazy.core import devices, mosaic
from unlazy.core.arrays import Points, on_device
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluation.gram import embedded
from unlazy.products.engines.pairs import both_sides
from unlazy.products.fused import hopper, triton
from unlazy.products.fused.fused_forms import Form, GaussianForm, MaternForm, Near, Prepared, form_of
from unlazy.products.fused.ptx import assembly, pair_program
from unlazy.products.fused.split_precision import Parts
from unlazy.products.fused.tiling import padded, repeated
from unlazy.products.fused.triton import Tile

_NOTHING = -1e4
"""A power of two that is no number's."""


def available(kernel: Kernel, X: Any) -> bool:
    """Whether this product can run fused: a float32 array on a CUDA GPU and a kernel with an entry formula.

    Not where constants are folded (`jax.ensure_compile_time_eval`): those of the fused program would be too.
    """
    if devices.kind() != "gpu" or getattr(X, "ndim", 0) != 2:  # trees and images have no inner products
        return False
    form = form_of(kernel)
    if X.dtype != jnp.float32 or form is None or folding():
        return False
    return triton.backend is not None or (devices.is_hopper() and _for_hopper(form, kernel, X))


def _for_hopper(form: Form, kernel: Kernel, X: Array) -> bool:
    """Whether products.fused.hopper can: all of the points on chip, a formula without tables or loops."""
    left, _ = jax.eval_shape(partial(_prepared, form), kernel, X, X)
    taken = hopper.takes(left.points.shape[1]) and assembly(form, len(left.rows)) is not None
    return taken and _lowers_for_hopper()


@lru_cache
def _lowers_for_hopper() -> bool:
    """Whether this JAX takes products.fused.hopper."""
    return all(
        mosaic.is_lowered(partial(_traced_for_hopper, form, columns), "products")
        for form, columns in ((GaussianForm(), 1), (MaternForm(0.5), 8))
    )


def _traced_for_hopper(form: Form, columns: int) -> Any:
    points, number, V = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 1), (1,), (1, columns)))
    side: Any = Prepared(points, [number], added=number)  # type: ignore[arg-type, list-item]
    return _apply_sides.trace(form, side, side, V, hopper.fitting(1, columns), False)


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
    form, kind = _formed(kernel), type(kernel)  # a module's own methods cost as much as a launch
    left, right = kind.read(kernel, X, Z)
    admit = kind.admission(kernel, left, right)
    result = _multiplied(form, on_device(kernel), left, right, V, tile, interpret)
    admit()
    return result


class Side(eqx.Module):
    """One side of K, embedded, centered and put into its form; kept by those who multiply again and again."""

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
        name = type(kernel).__name__
        raise ValueError(f"{name} has no entry formula to fuse, or none short enough: use products.matmul, it chooses")
    return form


def apply(
    left: Side, right: Side, V: Float[Array, "m *c"], *, tile: Tile | hopper.Cut | None = None, interpret: Any = False
) -> Float[Array, "n *c"]:
    """K @ V for sides made by `prepared`."""
    return _apply_sides(left.form, left.of, right.of, V, tile, interpret)


def _tile(form: Form, rows: int, d: int, columns: int) -> Tile | hopper.Cut:
    """What was fastest on an H200: heavier formulas want smaller tiles, so that more of them share a processor."""
    hopping = devices.is_hopper() and hopper.takes(d) and columns <= hopper.COLUMNS and _lowers_for_hopper()
    program = assembly(form, rows) if hopping else None
    light = program is not None and program.left_count + program.right_count <= hopper.NUMBERS
    if triton.backend is None or light:
        return hopper.fitting(d, columns)
    if columns > 1:
        return Tile(x=128, z=64)
    return Tile(x=64, z=64) if (1, 1) in form.parts.dots else Tile(x=64, z=128)


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
    s_left, s_right = left.scale, right.scale
    weighted = columns if s_right is None else columns * s_right[:, None]
    product = _near_or_far(form, left, right, weighted, tile, interpret)
    product = product if s_left is None else product * s_left[:, None]
    if left.apart is not None and right.apart is not None:
        product = product + left.apart[:, None] * jnp.sum(right.apart[:, None] * columns, 0)
    return product.reshape(product.shape[:1] + V.shape[1:])


@partial(jax.jit, static_argnames="form")
def _prepared(form: Form, kernel: InnerProductKernel, X: Array, Z: Array) -> tuple[Prepared, Prepared]:
    left, right = embedded(kernel, X, Z)
    return form.prepare(kernel, left), form.prepare(kernel, right)


def _near_or_far(
    form: Form, left: Prepared, right: Prepared, V: Array, tile: Tile | hopper.Cut | None, interpret: Any
) -> Array:
    """By the form and the parts that the points at hand need."""
    near, far = form.near, form.far
    by_near = _program(form, near, left, V, tile, interpret)
    added = [side.added for side in (left, right) if side.added is not None]
    if near is None or not added or (far is form and by_near.func is triton.product):
        return by_near(left, right, V)
    largest, mean = (-2 * jnp.minimum(*map(f, added)) for f in (jnp.min, jnp.mean))
    # not where a number is NaN: powers of two by multiply-adds would make some number of it
    within = (near.least <= largest) & (largest <= near.most) & (mean <= near.mean)
    return lax.cond(within, by_near, _program(far, None, left, V, tile, interpret), left, right, V)


def _program(
    form: Form, near: Near | None, left: Prepared, V: Array, tile: Tile | hopper.Cut | None, interpret: Any
) -> partial:
    """What multiplies two sides by V: one of both programs, of fewer parts where points are near."""
    tile = tile or _tile(form, len(left.rows), left.points.shape[1], V.shape[1])
    if isinstance(tile, hopper.Cut):
        return partial(_on_hopper, form, near, tile, interpret)
    return partial(triton.product, form, tile=tile, interpret=interpret)


def _on_hopper(
    form: Form, near: Near | None, cut: hopper.Cut, interpret: Any, left: Prepared, right: Prepared, V: Array
) -> Array:
    """By products.fused.hopper, some columns at a time."""
    parts = [V[:, k : k + hopper.COLUMNS] for k in range(0, V.shape[1], hopper.COLUMNS)]
    return jnp.concatenate([_few_columns(form, near, cut, interpret, left, right, V) for V in parts], 1)


def _few_columns(
    form: Form, near: Near | None, cut: hopper.Cut, interpret: Any, left: Prepared, right: Prepared, V: Array
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
        shared = hopper.shares(n, m + cut.z, Z.shape[1], cut)
        n_full, m_full = hopper.padding(shared, cut)
        order, signs = _by_sign(v, cut.z, m_full)
        exponent = jnp.maximum(jnp.log2(jnp.abs(v) / jnp.where(size > 0, size, 1)), _NOTHING)
        Z = Z.at[order].get(mode="fill", fill_value=0)
        z_added = (z_added + exponent).at[order].get(mode="fill", fill_value=_NOTHING)
    else:
        shared = hopper.shares(n, m, Z.shape[1], cut)
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


def _added(parts: Parts, side: Prepared) -> Array | None:
    """a of one side, of points as their parts have them."""
    if side.added is None:
        return None
    excess = parts.excess(side.points)
    return side.added if excess is None else side.added + excess


def _by_sign(v: Array, tile: int, rows: int) -> tuple[Array, Array]:
    """Which number of v lies where (len(v): none) in tiles of one sign each, a positive one, a negative one and so on
    as long as there are both, so that sums stay small; how many those are, and the sign of the others."""
    positive, at = v > 0, jnp.arange(len(v))
    found = jnp.cumsum(positive)  # one pass: positive numbers up to each, and so the others
    rank = jnp.where(positive, found - 1, at - found)
    tiles = [pl.cdiv(count, tile) for count in (found[-1], len(v) - found[-1])]
    both, lies = jnp.minimum(*tiles), rank // tile
    places = jnp.where(lies < both, 2 * lies + ~positive, both + lies) * tile + rank % tile
    order = jnp.full(rows, len(v)).at[places].set(at, unique_indices=True)
    return order, jnp.stack([2 * both, jnp.where(tiles[0] > tiles[1], 1, -1)]).astype(jnp.int32)
