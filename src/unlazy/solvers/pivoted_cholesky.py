"""Low-rank factor K ≈ F Fᵀ by randomly pivoted Cholesky: pivots drawn in proportion to what is left of the diagonal.

Chen, Epperly, Tropp and Webber (2023), in its blocked form. A round draws `block` pivots, so the columns of K are
computed by matrix products; pivots that others of the round have already explained are dropped.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.kernels.base import Kernel
from unlazy.products.pairs import HIGHEST, embedded, entries


def randomly_pivoted_cholesky(
    kernel: Kernel, X: Float[Array, "n d"], rank: int, rng: np.random.Generator, block: int | None = None
) -> tuple[Float[Array, "n k"], Float[np.ndarray, " n"]]:
    """F with at most `rank` columns, and what is left of the diagonal of K - F Fᵀ."""
    n = X.shape[0]
    rank = min(rank, n)
    block = min(rank, block or max(10, rank // 10))
    points, _ = jax.jit(embedded)(kernel, X, None)
    left = np.maximum(np.asarray(kernel.diag(X), np.float64), 0)
    start = left.sum()
    F = jnp.zeros((n, rank), X.dtype)
    used = 0
    while used < rank and left.sum() > 1e-6 * start and np.count_nonzero(left) > 0:
        count = min(block, rank - used, int(np.count_nonzero(left)))
        pivots = rng.choice(n, size=count, replace=False, p=left / left.sum())
        # the count of pivots varies, so it is padded: one compilation for all rounds
        padded = np.concatenate([pivots, np.full(block - count, pivots[0])])
        columns, core = _columns(kernel, points, F, jnp.asarray(padded))
        weights, kept = _orthogonalised(np.asarray(core, np.float64)[:count, :count])
        step = np.zeros((block, block))
        step[:count, : len(kept)] = weights
        F, gone = _append(F, columns, jnp.asarray(step, X.dtype), used)
        left = np.maximum(left - np.asarray(gone, np.float64), 0)
        left[pivots[kept]] = 0
        used += len(kept)
        if not len(kept):
            left[pivots] = 0
    return F[:, :used], left


def _orthogonalised(core: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W with columns such that (residual columns) @ W extends F; greedy pivoting drops pivots that are explained.

    core is the residual kernel between the pivots. With core[kept, kept] = L Lᵀ, W = L⁻ᵀ on the kept rows.
    """
    from scipy.linalg import solve_triangular
    from scipy.linalg.lapack import dpstrf

    scale = float(np.trace(core))
    if scale <= 0:
        return np.zeros((core.shape[0], 0)), np.zeros(0, int)
    factor, order, rank, _ = dpstrf(core, tol=1e-6 * scale, lower=1)
    kept = order[:rank] - 1
    L = np.tril(factor[:rank, :rank])
    W = np.zeros((core.shape[0], rank))
    W[kept] = solve_triangular(L, np.eye(rank), lower=True).T
    return W, kept


@jax.jit
def _columns(kernel: Kernel, points: Array, F: Array, pivots: Array) -> tuple[Array, Array]:
    """Columns of K - F Fᵀ at the pivots, and their rows at the pivots."""
    columns = entries(kernel, points, points[pivots]) - jnp.matmul(F, F[pivots].T, precision=HIGHEST)
    return columns, columns[pivots]


@functools.partial(jax.jit, donate_argnums=0)
def _append(F: Array, columns: Array, W: Array, used: int | Array) -> tuple[Array, Array]:
    """Write the new columns behind the `used` ones; also their squares, which leave the diagonal.

    A block that would stick out at the end is shifted back by dynamic_update_slice, so it is rolled first.
    """
    new = jnp.matmul(columns, W, precision=HIGHEST)
    block, rank = new.shape[1], F.shape[1]
    begin = jnp.minimum(used, rank - block)
    behind = jax.lax.dynamic_slice_in_dim(F, begin, block, 1)
    shifted = jnp.roll(new, used - begin, axis=1)
    keep = jnp.arange(block) < used - begin
    return jax.lax.dynamic_update_slice_in_dim(F, jnp.where(keep, behind, shifted), begin, 1), jnp.sum(new * new, 1)
