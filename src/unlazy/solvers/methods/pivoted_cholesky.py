"""Low-rank factor K ≈ F Fᵀ by randomly pivoted Cholesky: pivots are drawn in proportion to the residual diagonal.

Chen, Epperly, Tropp and Webber (2023), in its blocked form. A round draws `block` pivots, so that columns of K are
computed by matrix products; pivots already explained by others of the round are dropped.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from unlazy.core.arrays import Matrix, dot
from unlazy.kernels.base import Kernel
from unlazy.products.engines.blocked import prepare_sides


def randomly_pivoted_cholesky(
    kernel: Kernel,
    X: Float[Array, "n d"],
    rank: int,
    rng: np.random.Generator,
    K: Float[np.ndarray, "n n"] | None = None,
) -> tuple[Float[Matrix, "n k"], Float[np.ndarray, " n"]]:
    """Factor F with at most `rank` columns, and the diagonal of the residual K - F Fᵀ.

    Pass K if it is already stored.
    """
    n = X.shape[0]
    rank = min(rank, n)
    block = min(rank, max(10, rank // 20))
    work = _StoredColumns(K, rank) if K is not None else _ComputedColumns(kernel, X, rank, block)
    left = np.maximum(np.asarray(kernel.diag(X), np.float64), 0)
    start, used = left.sum(), 0
    while used < rank and left.sum() > 1e-6 * start:
        count = min(block, rank - used, int(np.count_nonzero(left)))
        pivots = rng.choice(n, size=count, replace=False, p=left / left.sum())
        weights, kept = orthogonalize_pivots(np.asarray(work.residual_columns(pivots, used), np.float64))
        if len(kept):
            left = np.maximum(left - work.extend(weights, used), 0)
            left[pivots[kept]] = 0
            used += len(kept)
        else:
            left[pivots] = 0
    return work.F[:, :used], left


def orthogonalize_pivots(core: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W such that (residual columns) @ W extends F, and the pivots kept; greedy pivoting drops explained pivots.

    core is the residual kernel between the pivots. With core[kept, kept] = L Lᵀ, W = L⁻ᵀ on the kept rows.
    """
    scale = float(np.trace(core))
    if scale <= 0:
        return np.zeros((core.shape[0], 0)), np.zeros(0, int)
    factor, order, rank, _ = dpstrf(core, tol=1e-6 * scale, lower=1)
    kept = order[:rank] - 1
    W = np.zeros((core.shape[0], rank))
    W[kept] = solve_triangular(np.tril(factor[:rank, :rank]), np.eye(rank), lower=True).T
    return W, kept


class _StoredColumns:
    """Columns of a stored K, in NumPy: nothing to compile."""

    def __init__(self, K: np.ndarray, rank: int):
        self.K, self.F = K, np.zeros((K.shape[0], rank), K.dtype)

    def residual_columns(self, pivots: np.ndarray, used: int) -> np.ndarray:
        """Compute the columns of K - F Fᵀ at the pivots; return their rows at the pivots."""
        self.columns = self.K[pivots].T - dot(self.F[:, :used], self.F[pivots, :used].T)
        return self.columns[pivots]

    def extend(self, W: np.ndarray, used: int) -> np.ndarray:
        """Write new columns of F; return their squared rows, to be subtracted from the diagonal."""
        new = dot(self.columns, W.astype(self.F.dtype))
        self.F[:, used : used + W.shape[1]] = new
        return np.einsum("ij,ij->i", new, new, dtype=np.float64)


class _ComputedColumns:
    """Columns computed on the device of the inputs. The pivots are padded: one compilation for all rounds."""

    def __init__(self, kernel: Kernel, X: Array, rank: int, block: int):
        self.kernel, self.block = kernel, block
        self.points, _ = jax.jit(prepare_sides)(kernel, X, None)
        self.F = jnp.zeros((X.shape[0], rank), X.dtype)

    def residual_columns(self, pivots: np.ndarray, used: int) -> np.ndarray:
        """Compute the columns of K - F Fᵀ at the pivots; return their rows at the pivots."""
        padded = np.concatenate([pivots, np.full(self.block - pivots.size, pivots[0])])
        self.columns, core = _columns(self.kernel, self.points, self.F, jnp.asarray(padded))
        return np.asarray(core)[: pivots.size, : pivots.size]

    def extend(self, W: np.ndarray, used: int) -> np.ndarray:
        """Write new columns of F; return their squared rows."""
        padded = np.zeros((self.block, self.block))
        padded[: W.shape[0], : W.shape[1]] = W
        self.F, gone = append_columns(self.F, self.columns, jnp.asarray(padded, self.F.dtype), used)
        return np.asarray(gone, np.float64)


@jax.jit
def _columns(kernel: Kernel, points: Any, F: Array, pivots: Array) -> tuple[Array, Array]:
    """Columns of K - F Fᵀ at the pivots, and their rows at the pivots."""
    at_pivots = jax.tree.map(lambda leaf: leaf[pivots], points)
    if kernel.requires_gradients:
        found = kernel.matmul_prepared(points, at_pivots, jnp.eye(pivots.shape[0], dtype=F.dtype))
    else:
        found = kernel.block(points, at_pivots)
    columns = found - dot(F, F[pivots].T)
    return columns, columns[pivots]


@functools.partial(jax.jit, donate_argnums=0)
def append_columns(F: Array, columns: Array, W: Array, used: int | Array) -> tuple[Array, Array]:
    """F with new columns from `used` on, and their squared rows.

    dynamic_update_slice shifts a block that would exceed the end backward, so the block is rolled first.
    """
    new = dot(columns, W)
    block, rank = new.shape[1], F.shape[1]
    begin = jnp.minimum(used, rank - block)
    behind = jax.lax.dynamic_slice_in_dim(F, begin, block, 1)
    shifted = jnp.roll(new, used - begin, axis=1)
    keep = jnp.arange(block) < used - begin
    return jax.lax.dynamic_update_slice_in_dim(F, jnp.where(keep, behind, shifted), begin, 1), jnp.sum(new * new, 1)
