"""(K + ρW⁻¹)α = y for a given Gram matrix, on the host: a Cholesky factor for one ridge, a spectrum for all.

For about a thousand rows LAPACK is fastest: a factor and the diagonal of its inverse cost a tenth of an
eigendecomposition, so callers that need few ridges use the factor. If the ridge is large enough for float32, the factor
is computed in float32 at half the cost, and solutions are refined with float64 residuals (Higham, Accuracy and
Stability of Numerical Algorithms, ch. 12). `solvers.methods.direct` is for kernels and large n: it computes K itself.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.linalg import dot
from unlazy.core.precision import precision

Square = Float[np.ndarray, "n n"]
FLOAT32_REFINABLE_RIDGE = 1e-3
"""Smallest ridge, relative to the mean of k(x, x), for which a float32 factor is refined: residuals then decrease by
about n·2⁻²⁴/FLOAT32_REFINABLE_RIDGE per round."""
FLOAT32_RIDGE = 1e-2
"""Smallest relative ridge for which a fit is evaluated in float32 altogether: a leave-one-out residual then has a
random relative error of about √n·2⁻²⁴/FLOAT32_RIDGE, 2e-4 for a thousand rows, and the mean of the squares one of
about the square of that."""
FLOAT32_MIN_ROWS = 600
"""With fewer rows, refinement costs as much as the float32 factor saves."""
REFINEMENT_TOLERANCE = 1e-9
"""Residual of a refined solution, relative to the right-hand side."""
MAX_REFINEMENTS = 8
"""Maximum number of refinement rounds."""


def cholesky_factor(
    K: Square, ridge: float, weights: Float[np.ndarray, " n"] | None = None, dtype: type | None = None
) -> Square | None:
    """L with K + ρW⁻¹ = LLᵀ and zeros above the diagonal, in the precision of K or in `dtype`.

    None if the matrix is not positive definite to rounding. K is not modified.
    """
    from scipy.linalg.lapack import dpotrf, spotrf

    # K is symmetric: its transpose is column-major as LAPACK requires, without a transposing copy
    A = np.array(K.T, dtype or K.dtype, order="F")
    A.reshape(-1, order="F")[:: len(K) + 1] += ridge if weights is None else ridge / weights
    L, failed = (dpotrf if A.dtype == np.float64 else spotrf)(A, lower=1, overwrite_a=1, clean=1)
    return None if failed else L


class RidgeFactorization(NamedTuple):
    """K + ρW⁻¹ with its Cholesky factor, in float32 if that is accurate enough."""

    A: Square
    """The Gram matrix K."""
    added: Float[np.ndarray, " n"] | float
    """ρW⁻¹."""
    L: Square

    def solve(self, B: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"] | None:
        """(K + ρW⁻¹)⁻¹B; None if the refinement does not converge."""
        if self.L.dtype == B.dtype:
            return cholesky_solve(self.L, B)
        added = np.broadcast_to(self.added, len(B))[:, None]
        norm = np.linalg.norm(B, axis=0)
        found, left = np.zeros_like(B), B
        for _ in range(MAX_REFINEMENTS):
            found = found + cholesky_solve(self.L, left.astype(self.L.dtype)).astype(B.dtype)
            left = B - dot(self.A, found) - added * found
            if (np.linalg.norm(left, axis=0) <= REFINEMENT_TOLERANCE * norm).all():
                return found
        return None


def factorize_ridge(
    K: Square, relative_ridge: float, weights: Float[np.ndarray, " n"] | None, columns: int
) -> RidgeFactorization | None:
    """Factorize K + ρW⁻¹ for the given number of right-hand sides; ρ is relative to the mean of k(x, x).

    None if the matrix is not positive definite to rounding.
    """
    ridge = relative_ridge * float(np.mean(np.diagonal(K)))
    added = ridge if weights is None else ridge / weights
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    if (
        K.dtype == np.float64
        and len(K) >= FLOAT32_MIN_ROWS
        and smallest >= FLOAT32_REFINABLE_RIDGE
        and 50 * columns <= len(K)
    ):
        L = cholesky_factor(K, ridge, weights, np.float32)
        if L is not None:
            return RidgeFactorization(K, added, L)
    L = cholesky_factor(K, ridge, weights)
    return None if L is None else RidgeFactorization(K, added, L)


def evaluation_dtype(n: int, relative_ridge: float, weights: Float[np.ndarray, " n"] | None) -> type:
    """Precision in which a fit to n rows is compared with others."""
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    return np.float32 if n >= FLOAT32_MIN_ROWS and smallest >= FLOAT32_RIDGE else np.float64


def cholesky_solve(L: Square, B: Float[np.ndarray, " n *c"]) -> Float[np.ndarray, " n *c"]:
    """(LLᵀ)⁻¹B."""
    from scipy.linalg import cho_solve

    return cho_solve((L, True), B, check_finite=False)


def inverse_diagonal(L: Square, last: int | None = None) -> Float[np.ndarray, " m"]:
    """The last diagonal entries (all if None) of (LLᵀ)⁻¹.

    These are the squared column norms of the inverse of the last block of L, so a few of them cost little more than the
    factor.
    """
    from scipy.linalg.lapack import dtrtri, strtri

    part = slice(0 if last is None else len(L) - last, None)
    inverse, _ = (dtrtri if L.dtype == np.float64 else strtri)(L[part, part], lower=1)
    return np.einsum("ij,ij->j", inverse, inverse)


def eigh(K: Square, overwrite: bool = False) -> tuple[Float[np.ndarray, " n"], Square]:
    """Eigendecomposition by LAPACK on the CPU, or on the GPU if there is one, in the precision of K."""
    if not devices.is_host():
        with precision(K.dtype.name):
            s, V = jnp.linalg.eigh(jnp.asarray(K))
            return np.asarray(s), np.asarray(V)
    from scipy.linalg import eigh

    return eigh(K, driver="evd", check_finite=False, overwrite_a=overwrite)
