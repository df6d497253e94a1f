"""Randomly pivoted Cholesky with rows sharded over devices: K ≈ F Fᵀ; F and the residual diagonal are sharded by rows.

The method is described in solvers.methods.pivoted_cholesky. Here pivots are drawn where the diagonal is stored: the
largest values of log(left_i) plus Gumbel noise are a draw without replacement in proportion to left (Efraimidis and
Spirakis 2006), and the largest of the largest of each device are the largest overall. Devices exchange the pivots of a
round and their rows, nothing of length n.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

from unlazy.core.arrays import dot, n_points, precision
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import part
from unlazy.products.engines.sharded import AXIS, ShardedOperator, prepare_rows, replicate, sharded_program, valid_rows
from unlazy.solvers.methods.pivoted_cholesky import append_columns, orthogonalize_pivots

FLOAT64_CHUNK_ROWS = 8192
"""Rows of F converted to float64 at a time."""


def sharded_cholesky(K: ShardedOperator, rank: int, rng: np.random.Generator) -> Float[Array, "p k"]:
    """F with at most `rank` columns; padding rows are zero."""
    mesh, rank = K.mesh, min(rank, K.rows)
    by_rows = NamedSharding(mesh, P(AXIS))
    block = min(rank, max(10, rank // 20))
    points = K.left
    if K.fused:  # a fused operator stores unprepared rows
        points = prepare_rows(mesh)(K.kernel, points)
    pick, columns_of, strike = (program(mesh, K.rows, block) for program in (_draw_pivots, _columns, _update_diagonal))
    left, total = _diagonal(mesh, K.rows)(K.kernel, points)
    start, used = float(total), 0
    F = jax.jit(lambda: jnp.zeros((n_points(points), rank), K.dtype), out_shardings=by_rows)()
    key = jax.random.key_data(jax.random.key(int(rng.integers(2**31))))
    for draw in range(4 * rank):  # every round uses or discards at least one pivot, so the loop ends long before
        if used >= rank or not float(total) > 1e-6 * start:
            break
        pivots, found = (np.asarray(a) for a in pick(left, np.asarray(key), np.int32(draw)))
        several = min(block, rank - used, int(found))
        pivots = np.where(np.arange(block) < several, pivots, pivots[0])
        columns, core = columns_of(K.kernel, points, F, pivots)
        W, kept = orthogonalize_pivots(np.asarray(core, np.float64)[:several, :several])
        gone: Any = 0.0
        if len(kept):
            padded = np.zeros((block, block), K.dtype)
            padded[: W.shape[0], : W.shape[1]] = W
            F, gone = append_columns(F, columns, padded, used)
            used += len(kept)
        struck = np.full(block, -1, np.int32)
        struck[: len(kept) or several] = pivots[kept] if len(kept) else pivots[:several]
        left, total = strike(left, gone * jnp.ones_like(left[:, 0]), struck)
    return F[:, :used]


def sharded_preconditioner(K: ShardedOperator, F: Float[Array, "p k"], ridge: float) -> Callable[[Array], Array]:
    """r → (F Fᵀ + ρI)⁻¹ r for float64 vectors sharded like F.

    Two local products per application; devices exchange k numbers.
    """
    with precision("float64"):
        core = np.array(_gram64(K.mesh)(F))
    core[np.diag_indices_from(core)] += ridge
    factor = cho_factor(core, lower=True, check_finite=False)

    def apply(r: Array) -> Array:
        inner = np.asarray(_transposed_matmul(K.mesh)(F, r), np.float64)
        return _woodbury_correction(
            r, F, replicate(cho_solve(factor, inner, check_finite=False).astype(F.dtype), K.mesh), ridge
        )

    return apply


def _gather_rows(tree: Any, indices: Array) -> Any:
    """Rows of a sharded pytree at global indices, on every device: each device contributes its rows."""
    local = n_points(tree)
    own = indices - jax.lax.axis_index(AXIS) * local
    mine = (own >= 0) & (own < local)

    def rows(leaf: Array) -> Array:
        taken = leaf[jnp.clip(own, 0, local - 1)]
        shown = mine.reshape((-1,) + (1,) * (taken.ndim - 1))
        return jax.lax.psum(jnp.where(shown, taken, jnp.zeros_like(taken)), AXIS)

    return jax.tree.map(rows, tree)


@functools.cache
def _diagonal(mesh: Mesh, n: int) -> Callable:
    """The diagonal of K, sharded, and its sum."""

    def of(kernel: Kernel, points: Any) -> tuple[Array, Array]:
        def one(side: Any) -> Array:
            alone = jax.tree.map(lambda leaf: leaf[None], side)
            return kernel.block(alone, alone)[0, 0]

        left = jnp.where(valid_rows(n_points(points), n), jnp.maximum(jax.vmap(one)(points), 0)[:, None], 0)
        return left, jax.lax.psum(jnp.sum(left), AXIS)

    return sharded_program(of, mesh, (P(), P(AXIS)), (P(AXIS), P()))


@functools.cache
def _draw_pivots(mesh: Mesh, n: int, block: int) -> Callable:
    """Draw pivots in proportion to the residual diagonal, and count the valid ones."""

    def of(left: Array, key: Array, draw: Array) -> tuple[Array, Array]:
        local, here = left.shape[0], jax.lax.axis_index(AXIS)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), draw), here)
        noise = jax.random.gumbel(key, (local,), left.dtype)
        score = jnp.where(left[:, 0] > 0, jnp.log(jnp.where(left[:, 0] > 0, left[:, 0], 1)) + noise, -jnp.inf)
        most = min(block, local)
        best, where = jax.lax.top_k(score, most)
        all_best, all_where = (jax.lax.all_gather(a, AXIS, tiled=True) for a in (best, where + here * local))
        best, where = jax.lax.top_k(all_best, min(block, all_best.shape[0]))
        pivots = jnp.resize(all_where[where], (block,))
        return pivots, jnp.sum(best > -jnp.inf)

    return sharded_program(of, mesh, (P(AXIS), P(), P()), (P(), P()))


@functools.cache
def _columns(mesh: Mesh, n: int, block: int) -> Callable:
    """Columns of K - F Fᵀ at the pivots, sharded, and their rows at the pivots."""

    def of(kernel: Kernel, points: Any, F: Array, pivots: Array) -> tuple[Array, Array]:
        at_pivots, F_pivots = _gather_rows((points, F), pivots)
        columns = kernel.block(points, at_pivots) - dot(F, F_pivots.T)
        columns = jnp.where(valid_rows(columns.shape[0], n), columns, 0)
        return columns, _gather_rows(columns, pivots)

    return sharded_program(of, mesh, (P(), P(AXIS), P(AXIS), P()), (P(AXIS), P()))


@functools.cache
def _update_diagonal(mesh: Mesh, n: int, block: int) -> Callable:
    """The residual diagonal minus what new columns explain, zero at used pivots."""

    def of(left: Array, gone: Array, struck: Array) -> tuple[Array, Array]:
        index = jax.lax.axis_index(AXIS) * left.shape[0] + jnp.arange(left.shape[0])
        done = jnp.any(index[:, None] == struck[None, :], 1)
        left = jnp.where(done[:, None], 0, jnp.maximum(left - gone[:, None], 0))
        return left, jax.lax.psum(jnp.sum(left), AXIS)

    return sharded_program(of, mesh, (P(AXIS), P(AXIS), P()), (P(AXIS), P()))


@functools.cache
def _gram64(mesh: Mesh) -> Callable:
    """FᵀF in float64."""

    def of(F: Array) -> Array:
        local = F.shape[0]
        rows = min(local, FLOAT64_CHUNK_ROWS)

        def add(i: Any, total: Array) -> Array:
            start = jnp.minimum(i * rows, local - rows)
            fresh = start + jnp.arange(rows) >= i * rows
            some = jnp.where(fresh[:, None], part(F, start, rows), 0).astype(total.dtype)
            return total + dot(some.T, some)

        zero = jnp.zeros((F.shape[1],) * 2, jnp.float64)
        return jax.lax.psum(jax.lax.fori_loop(0, -(-local // rows), add, zero), AXIS)

    return sharded_program(of, mesh, (P(AXIS),), P())


@functools.cache
def _transposed_matmul(mesh: Mesh) -> Callable:
    """Fᵀr."""

    def of(F: Array, r: Array) -> Array:
        return jax.lax.psum(dot(r.T.astype(F.dtype), F).T, AXIS)

    return sharded_program(of, mesh, (P(AXIS), P(AXIS)), P())


@jax.jit
def _woodbury_correction(r: Array, F: Array, weights: Array, ridge: float | Array) -> Array:
    """(r - F·weights)/ρ."""
    return (r - dot(F, weights).astype(r.dtype)) / ridge
