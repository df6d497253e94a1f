"""M × M factors sharded over devices: each holds M/G rows of K and of the inverses of two triangles.

Cholesky by panels, K = L Lᵀ, and L⁻¹ in the same sweep (Gauss-Jordan): for panel j the diagonal block is factorized on
every device, its column below is P = K_·j L_jj⁻ᵀ, and each device subtracts P Pᵀ from its rows of K and P W_j from its
rows of W, which starts as I; W_j = L_jj⁻¹ W_j is then final. Devices exchange one panel of M × b numbers each for K and
W: 2M² numbers in total, for 2M³/G multiply-adds on each device. An inverse is applied by one local product and one sum
or gather of M numbers; triangular solves would be sequential. Golub and Van Loan, Matrix Computations, §4.2.
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

from unlazy.core.arrays import Matrix, dot
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import by_rows
from unlazy.products.engines.blocked import prepare_sides
from unlazy.products.engines.sharded import AXIS, replicate, sharded_program

PANEL = 1024
"""Largest number of columns of a panel."""


class ShardedFactor(eqx.Module):
    """L and W = L⁻¹ of a matrix K = L Lᵀ with M rows, sharded by rows over `mesh`, padded with rows of I."""

    L: Float[Array, "p p"]
    W: Float[Array, "p p"]
    mesh: Mesh = eqx.field(static=True)

    def solve(self, v: Float[np.ndarray, "M c"]) -> np.ndarray:
        """L⁻¹ v."""
        return sharded_matmul(self.W, v, self.mesh)

    def solve_transposed(self, v: Float[np.ndarray, "M c"]) -> np.ndarray:
        """L⁻ᵀ v."""
        return _apply_to_columns(_transposed_matmul(self.mesh), self.W, v, self.mesh)


def sharded_gram(kernel: Kernel, Z: Matrix, mesh: Mesh) -> Float[Array, "p p"]:
    """K(Z, Z) in float64, sharded by rows; padding rows are those of I."""
    M, each = len(Z), rows_per_device(len(Z), mesh)
    kernel = jax.tree.map(np.asarray, kernel)
    padded = np.concatenate([Z, np.repeat(Z[:1], each * mesh.devices.size - M, 0)])
    points = jax.jit(lambda kernel, Z: prepare_sides(kernel, Z)[0])(kernel, padded)
    points = jax.tree.map(lambda leaf: replicate(np.asarray(leaf), mesh), points)
    return _gram(mesh, M)(kernel, points)


def sharded_factor(K: Float[Array, "p p"], M: int, diagonal: float, mesh: Mesh) -> ShardedFactor | None:
    """L and L⁻¹ with L Lᵀ = K + diagonal·I; None if that is not positive definite. K is float64 and not modified."""
    L, W, fine = _factor(mesh, M, panel_width(M, mesh))(K, np.float64(diagonal))
    return ShardedFactor(L, W, mesh) if bool(fine) else None


def sharded_outer(L: Float[Array, "p p"], M: int, scale: float, mesh: Mesh) -> Float[Array, "p p"]:
    """scale · LᵀL, sharded like L; summed over all devices for the rows of one device at a time."""
    return _outer(mesh, M)(L, np.float64(scale))


def sharded_matmul(K: Float[Array, "p p"], v: Float[np.ndarray, "M c"], mesh: Mesh) -> np.ndarray:
    """K v."""
    return _apply_to_columns(_matmul(mesh), K, v, mesh)


def rows_per_device(M: int, mesh: Mesh) -> int:
    """Rows per device: a multiple of the panel width."""
    width = panel_width(M, mesh)
    return math.ceil(M / mesh.devices.size / width) * width


def panel_width(M: int, mesh: Mesh) -> int:
    """Columns of a panel."""
    return min(PANEL, math.ceil(M / mesh.devices.size))


def _apply_to_columns(program: Callable, K: Array, v: np.ndarray, mesh: Mesh) -> np.ndarray:
    """Apply a program to padded columns; return the result on the host."""
    padded = np.concatenate([v, np.zeros((K.shape[0] - len(v), v.shape[1]))])
    return np.asarray(program(K, replicate(padded, mesh)).addressable_data(0))[: len(v)]


@functools.cache
def _gram(mesh: Mesh, M: int) -> Callable:
    """Program for the Gram matrix."""

    def of(kernel: Kernel, points: Any) -> Array:
        total = jax.tree.leaves(points)[0].shape[0]
        each = total // mesh.devices.size
        first = jax.lax.axis_index(AXIS) * each
        own = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, each), points)
        K = by_rows(lambda a, b: kernel.block(a, b).astype(jnp.float64), own, points, min(each, PANEL))
        row, column = first + jnp.arange(each)[:, None], jnp.arange(total)[None, :]
        return jnp.where((row < M) & (column < M), K, (row == column).astype(K.dtype))

    return sharded_program(of, mesh, (P(), P()), P(AXIS))


@functools.cache
def _factor(mesh: Mesh, M: int, width: int) -> Callable:
    """Program for L, L⁻¹ and whether both are finite."""

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
                """Broadcast a block from the device that owns panel j."""
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

    return sharded_program(of, mesh, (P(AXIS), P()), (P(AXIS), P(AXIS), P()))


@functools.cache
def _outer(mesh: Mesh, M: int) -> Callable:
    """Program for scale · LᵀL."""

    def of(L: Array, scale: Array) -> Array:
        each, total = L.shape
        here = jax.lax.axis_index(AXIS)

        def add(g: Any, own: Array) -> Array:
            part = dot(jax.lax.dynamic_slice(L, (0, g * each), (each, each)).T, L)
            return jnp.where(here == g, jax.lax.psum(part, AXIS), own)

        own = jax.lax.fori_loop(0, mesh.devices.size, add, jnp.zeros_like(L)) * scale
        row, column = here * each + jnp.arange(each)[:, None], jnp.arange(total)[None, :]
        return jnp.where((row < M) & (column < M), own, (row == column).astype(L.dtype))

    return sharded_program(of, mesh, (P(AXIS), P()), P(AXIS))


@functools.cache
def _matmul(mesh: Mesh) -> Callable:
    """Program for K v."""
    return sharded_program(lambda K, v: jax.lax.all_gather(dot(K, v), AXIS, tiled=True), mesh, (P(AXIS), P()), P())


@functools.cache
def _transposed_matmul(mesh: Mesh) -> Callable:
    """Program for Kᵀ v."""

    def of(K: Array, v: Array) -> Array:
        own = jax.lax.dynamic_slice_in_dim(v, jax.lax.axis_index(AXIS) * K.shape[0], K.shape[0])
        return jax.lax.psum(dot(own.T, K).T, AXIS)

    return sharded_program(of, mesh, (P(AXIS), P()), P())
