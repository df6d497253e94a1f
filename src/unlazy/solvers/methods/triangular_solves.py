"""Triangular factors on a GPU: UUᵀ and solves with few right-hand sides, by blocks, so that all work is in products.

A triangular solve with one column runs a GPU one row at a time, and an explicit inverse costs M³. Here only the
diagonal blocks are inverted; U x = v is then solved block by block, x_i = U_ii⁻¹(v_i - Σ_{j>i} U_ij x_j), which reads
the matrix once. Golub and Van Loan, Matrix Computations, §3.1.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot

BLOCK = 2048
"""Rows of a diagonal block."""


class UpperFactor(eqx.Module):
    """Upper triangular U with the inverses of its diagonal blocks."""

    U: Float[Array, "M M"]
    inverses: tuple[Float[Array, "_ _"], ...]

    def solve(self, v: Float[Array, "M c"]) -> Float[Array, "M c"]:
        """U⁻¹ v."""
        return _solve(self, v)

    def solve_transposed(self, v: Float[Array, "M c"]) -> Float[Array, "M c"]:
        """U⁻ᵀ v."""
        return _solve_transposed(self, v)


@jax.jit
def upper_factor(K: Float[Array, "M M"], diagonal: Float[Array, ""]) -> UpperFactor:
    """U with UᵀU = K + diagonal·I, from the lower triangle of K; NaN if that is not positive definite."""
    M = K.shape[0]
    U = jax.lax.linalg.cholesky(K.at[jnp.diag_indices(M)].add(diagonal), symmetrize_input=False).T
    inverses = tuple(
        jax.scipy.linalg.solve_triangular(U[s, s], jnp.eye(s.stop - s.start, dtype=K.dtype)) for s in _blocks(M)
    )
    return UpperFactor(U, inverses)


@jax.jit
def lower_of_outer(U: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower triangle of UUᵀ by blocks (blocks above the diagonal are zero): M³/3 multiply-adds instead of M³."""
    M = U.shape[0]
    rows = []
    for s in _blocks(M):
        row = dot(U[s, s.start :], U[: s.stop, s.start :].T)
        rows.append(jnp.pad(row, ((0, 0), (0, M - s.stop))))
    return jnp.concatenate(rows)


def _blocks(M: int) -> list[slice]:
    """Slices of the diagonal blocks."""
    return [slice(start, min(start + BLOCK, M)) for start in range(0, M, BLOCK)]


@jax.jit
def _solve(F: UpperFactor, v: Array) -> Array:
    """U⁻¹ v, block by block."""
    solved = v[:0]
    for s, inverse in reversed(list(zip(_blocks(v.shape[0]), F.inverses, strict=True))):
        rest = v[s] - dot(F.U[s, s.stop :], solved)
        solved = jnp.concatenate([dot(inverse, rest), solved])
    return solved


@jax.jit
def _solve_transposed(F: UpperFactor, v: Array) -> Array:
    """U⁻ᵀ v, block by block."""
    solved = v[:0]
    for s, inverse in zip(_blocks(v.shape[0]), F.inverses, strict=True):
        rest = v[s] - dot(F.U[: s.start, s].T, solved)
        solved = jnp.concatenate([solved, dot(inverse.T, rest)])
    return solved
