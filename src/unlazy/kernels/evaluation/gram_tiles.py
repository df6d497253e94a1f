"""Assembly of Gram matrices from blocks of entries: rows or symmetric tiles at a time, written in place.

A side is an array of points, or a tree of arrays with one row per point; a block may be a tree of matrices.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.arrays import n_points


def assemble(block: Callable, left: Any, right: Any, rows: int | None) -> Any:
    """All entries, at once or `rows` at a time; those of the left side with itself if there is no right side."""
    if right is not None:
        return block(left, right) if rows is None else by_rows(block, left, right, rows)
    return block(left, left) if rows is None else by_tiles(block, left, min(2 * rows, n_points(left)))


def finish(K: Any, on_diagonal: Any, mirror: bool) -> Any:
    """Set the diagonal of K(X, X), and make it exactly symmetric unless tiles have done so.

    This is a separate program: in one program with the formula, XLA would evaluate the formula again for the other
    triangle, and round differently there. It works in place, unless K is being differentiated.
    """
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((K, on_diagonal)))
    return (_finish if traced else _finish_in_place)(K, on_diagonal, mirror)


def _finished(K: Any, on_diagonal: Any, mirror: bool) -> Any:
    """Set the diagonal, and mirror the upper triangle if `mirror`."""
    K = jax.tree.map(_mirrored, K) if mirror else K
    i = jnp.arange(jax.tree.leaves(K)[0].shape[0])
    return jax.tree.map(lambda k, v: k.at[i, i].set(v), K, on_diagonal)


_finish = jax.jit(_finished, static_argnums=2)
_finish_in_place = jax.jit(_finished, static_argnums=2, donate_argnums=0)


def _mirrored(K: Array) -> Array:
    """Copy the upper triangle to the lower one: rounding is not always symmetric.

    A sum, since jaxlib 0.10.2 crashes on where(upper, K, K.T) of about a thousand rows.
    """
    return jnp.triu(K) + jnp.triu(K, 1).T


def by_rows(block: Callable[[Any, Any], Any], left: Any, right: Any, rows: int) -> Any:
    """All entries, `rows` at a time, written in place; the last block overlaps the previous one."""
    n = n_points(left)

    def fill(i: Array, K: Any) -> Any:
        start = jnp.minimum(i * rows, n - rows)
        new = block(part(left, start, rows), right)
        return jax.tree.map(lambda k, p: jax.lax.dynamic_update_slice_in_dim(k, p, start, 0), K, new)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, _empty(block, left, right))


def by_tiles(block: Callable[[Any, Any], Any], points: Any, side: int) -> Any:
    """K(X, X) by square tiles on and above the diagonal, each written twice.

    That is half the work, and symmetric whatever the rounding.
    """
    pairs = symmetric_tiles(n_points(points), side)
    corners = jnp.asarray(pairs)

    def fill(p: Array, K: Any) -> Any:
        s, t = corners[p, 0], corners[p, 1]
        # without the barriers, XLA would evaluate the formula again for each use, column by column
        tiles = jax.lax.optimization_barrier(block(part(points, s, side), part(points, t, side)))
        tiles = jax.tree.map(lambda T: jax.lax.cond(s == t, _mirrored, lambda T: T, T), tiles)
        tiles = jax.lax.optimization_barrier(tiles)
        K = jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T, (s, t)), K, tiles)
        return jax.tree.map(lambda k, T: jax.lax.dynamic_update_slice(k, T.T, (t, s)), K, tiles)

    return jax.lax.fori_loop(0, len(pairs), fill, _empty(block, points, points))


def starts(n: int, side: int) -> list[int]:
    """Start indices of tiles; the last one overlaps the previous one, so that all have one shape and one program."""
    return [min(i * side, n - side) for i in range(math.ceil(n / side))]


def symmetric_tiles(n: int, side: int) -> list[tuple[int, int]]:
    """Start indices of tiles above the diagonal, then of those on it.

    The last tiles overlap others, and the ones that are written last count.
    """
    at = starts(n, side)
    return [(s, t) for i, s in enumerate(at) for t in at[i + 1 :]] + [(s, s) for s in at]


def part(side: Any, start: int | Array, rows: int) -> Any:
    """`rows` points of a side from `start` on."""
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, rows), side)


def _empty(block: Callable, left: Any, right: Any) -> Any:
    """Zeros of the shape of a block."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(block, left, right))
