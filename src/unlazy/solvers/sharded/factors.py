"""M × M factors over devices: each holds M/G rows of K and of the inverses of two triangles, none of them a whole one.

Cholesky by panels, K = L Lᵀ, and L⁻¹ in the same sweep (Gauss and Jordan): of panel j the diagonal block is factored
everywhere, its column below is P = K_·j L_jj⁻ᵀ, and each device takes P Pᵀ off its rows of K, P W_j off its rows of W,
which began as I; W_j = L_jj⁻¹ W_j is done. Between devices goes a panel of M × b numbers each for K and W: 2M² words in
all, for 2M³/G multiply-adds on each. An inverse is applied by one product where its rows lie, and one sum or gather of
M numbers; triangular solves would wait for each other. Golub and Van Loan, Matrix Computations, §4.2.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from unlazy.core.linalg import dot
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram_tiles import by_rows
from unlazy.products.engines.pairs import entries, prepared
from unlazy.products.engines.sharded import AXIS, everywhere

PANEL = 1024
"""Columns of a panel at most."""


class SpreadFactor(eqx.Module):
    """L and W = L⁻¹ of a matrix K = L Lᵀ of M rows, by rows over the devices of `mesh`, padded with those of I."""

    L: Float[Array, "p p"]
    W: Float[Array, "p p"]
    mesh: Mesh = eqx.field(static=True)

    def solve(self, v: Float[np.ndarray, "M c"]) -> np.ndarray:
        """L⁻¹ v."""
        return times(self.W, v, self.mesh)

    def solve_transposed(self, v: Float[np.ndarray, "M c"]) -> np.ndarray:
        """L⁻ᵀ v."""
        return _on_columns(_transposed_times(self.mesh), self.W, v, self.mesh)


def spread_gram(kernel: Kernel, Z: Any, mesh: Mesh) -> Float[Array, "p p"]:
    """K(Z, Z) in float64, by rows over devices; rows that pad are those of I."""
    M, each = len(Z), share(len(Z), mesh)
    kernel = jax.tree.map(np.asarray, kernel)
    padded = np.concatenate([Z, np.repeat(Z[:1], each * mesh.devices.size - M, 0)])
    points = jax.jit(lambda kernel, Z: prepared(kernel, Z)[0])(kernel, padded)
    points = jax.tree.map(lambda leaf: everywhere(np.asarray(leaf), mesh), points)
    return _gram(mesh, M)(kernel, points)


def spread_factor(K: Float[Array, "p p"], M: int, diagonal: float, mesh: Mesh) -> SpreadFactor | None:
    """L and L⁻¹ with L Lᵀ = K + diagonal·I; None where that is not positive. K is of float64, and stays."""
    L, W, fine = _factor(mesh, M, panel(M, mesh))(K, np.float64(diagonal))
    return SpreadFactor(L, W, mesh) if bool(fine) else None


def spread_outer(L: Float[Array, "p p"], M: int, scale: float, mesh: Mesh) -> Float[Array, "p p"]:
    """scale · LᵀL, by rows as L is: a device's share of the rows at a time is summed over all of them."""
    return _outer(mesh, M)(L, np.float64(scale))


def times(K: Float[Array, "p p"], v: Float[np.ndarray, "M c"], mesh: Mesh) -> np.ndarray:
    """K v."""
    return _on_columns(_times(mesh), K, v, mesh)


def share(M: int, mesh: Mesh) -> int:
    """Rows of a device: a whole number of panels."""
    width = panel(M, mesh)
    return math.ceil(M / mesh.devices.size / width) * width


def panel(M: int, mesh: Mesh) -> int:
    """Columns of a panel."""
    return min(PANEL, math.ceil(M / mesh.devices.size))


def _on_columns(program: Callable, K: Array, v: np.ndarray, mesh: Mesh) -> np.ndarray:
    padded = np.concatenate([v, np.zeros((K.shape[0] - len(v), v.shape[1]))])
    return np.asarray(program(K, everywhere(padded, mesh)).addressable_data(0))[: len(v)]


def _shared(function: Callable, mesh: Mesh, given: tuple, result: Any) -> Callable:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=result, check_vma=False))


@functools.cache
def _gram(mesh: Mesh, M: int) -> Callable:
    def of(kernel: Kernel, points: Any) -> Array:
        total = jax.tree.leaves(points)[0].shape[0]
        each = total // mesh.devices.size
        first = jax.lax.axis_index(AXIS) * each
        own = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, each), points)
        K = by_rows(lambda a, b: entries(kernel, a, b).astype(jnp.float64), own, points, min(each, PANEL))
        row, column = first + jnp.arange(each)[:, None], jnp.arange(total)[None, :]
        return jnp.where((row < M) & (column < M), K, (row == column).astype(K.dtype))

    return _shared(of, mesh, (P(), P()), P(AXIS))


@functools.cache
def _factor(mesh: Mesh, M: int, width: int) -> Callable:
    def of(K: Array, diagonal: Array) -> tuple[Array, Array, Array]:
        each, total = K.shape
        here = jax.lax.axis_index(AXIS)
        row = here * each + jnp.arange(each)
        eye = (row[:, None] == jnp.arange(total)[None, :]).astype(K.dtype)
        small = jnp.eye(width, dtype=K.dtype)

        def step(j: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            A, W = carry
            start = j * width
            mine, local = start // each == here, start % each

            def shown(block: Array) -> Array:
                """A block of the device that has panel j, everywhere."""
                return jax.lax.psum(jnp.where(mine, block, 0), AXIS)

            def put(all_rows: Array, block: Array, at: Any) -> Array:
                changed = jax.lax.dynamic_update_slice(all_rows, block, (local, at))
                return jnp.where(mine, changed, all_rows)

            corner = jnp.linalg.cholesky(shown(jax.lax.dynamic_slice(A, (local, start), (width, width))))
            inverse = jax.scipy.linalg.solve_triangular(corner, small, lower=True)
            below = (row >= start + width)[:, None]
            column = jnp.where(below, dot(jax.lax.dynamic_slice(A, (0, start), (each, width)), inverse.T), 0)
            A = A - dot(column, jax.lax.all_gather(column, AXIS, tiled=True).T)
            A = jax.lax.dynamic_update_slice(A, column, (0, start))
            A = put(A, corner, start)
            own = dot(inverse, shown(jax.lax.dynamic_slice_in_dim(W, local, width)))
            return A, put(W - dot(column, own), own, 0)

        real = (row < M)[:, None]
        A, W = jax.lax.fori_loop(0, total // width, step, (K + jnp.where(real, diagonal * eye, 0), eye))
        A = jnp.where(row[:, None] >= jnp.arange(total)[None, :], A, 0)
        broken = jax.lax.psum(jnp.sum(~jnp.isfinite(W)) + jnp.sum(~jnp.isfinite(A)), AXIS)
        return A, W, broken == 0

    return _shared(of, mesh, (P(AXIS), P()), (P(AXIS), P(AXIS), P()))


@functools.cache
def _outer(mesh: Mesh, M: int) -> Callable:
    def of(L: Array, scale: Array) -> Array:
        each, total = L.shape
        here = jax.lax.axis_index(AXIS)

        def add(g: Any, own: Array) -> Array:
            part = dot(jax.lax.dynamic_slice(L, (0, g * each), (each, each)).T, L)
            return jnp.where(here == g, jax.lax.psum(part, AXIS), own)

        own = jax.lax.fori_loop(0, mesh.devices.size, add, jnp.zeros_like(L)) * scale
        row, column = here * each + jnp.arange(each)[:, None], jnp.arange(total)[None, :]
        return jnp.where((row < M) & (column < M), own, (row == column).astype(L.dtype))

    return _shared(of, mesh, (P(AXIS), P()), P(AXIS))


@functools.cache
def _times(mesh: Mesh) -> Callable:
    return _shared(lambda K, v: jax.lax.all_gather(dot(K, v), AXIS, tiled=True), mesh, (P(AXIS), P()), P())


@functools.cache
def _transposed_times(mesh: Mesh) -> Callable:
    def of(K: Array, v: Array) -> Array:
        own = jax.lax.dynamic_slice_in_dim(v, jax.lax.axis_index(AXIS) * K.shape[0], K.shape[0])
        return jax.lax.psum(dot(own.T, K).T, AXIS)

    return _shared(of, mesh, (P(AXIS), P()), P())
