"""(K + ρW⁻¹)α = y for a Gram matrix at hand, on the host: by a Cholesky factor for one ridge, by a spectrum for all.

A thousand rows are LAPACK's: a factor and the diagonal of its inverse cost a tenth of an eigendecomposition, so whoever
looks at few ridges takes the factor. Under a ridge that float32 can see the factor is one of float32, at half the cost,
and solutions are refined by residuals in float64 (Higham, Accuracy and Stability of Numerical Algorithms, ch. 12).
`direct` is for kernels and large n: it forms K itself and refines.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.linalg import dot
from unlazy.core.precision import precision

Square = Float[np.ndarray, "n n"]
VISIBLE = 1e-3
"""The smallest ridge, in units of the mean of k(x, x), under which a factor in float32 is refined: residuals then fall
by about n·2⁻²⁴/VISIBLE a round."""
CLEAR = 1e-2
"""The smallest ridge under which a fit is judged in float32 altogether: a leave-one-out residual is then off by about
√n·2⁻²⁴/CLEAR of itself, 2e-4 for a thousand rows, at random, and the mean of their squares by the square of that."""
ENOUGH_ROWS = 600
"""Below, rounds of refinement cost what the factor saves."""
REFINED = 1e-9
"""Residual of a refined solution, over the right-hand side."""
ROUNDS = 8


def factor(
    K: Square, ridge: float, weights: Float[np.ndarray, " n"] | None = None, dtype: type | None = None
) -> Square | None:
    """L of K + ρW⁻¹ = LLᵀ, zeros above it, in K's precision or another; None where that is not positive to rounding. K
    stays as it is."""
    from scipy.linalg.lapack import dpotrf, spotrf

    # K is symmetric: its transpose is what LAPACK wants, and no copy is turned around
    A = np.array(K.T, dtype or K.dtype, order="F")
    A.reshape(-1, order="F")[:: len(K) + 1] += ridge if weights is None else ridge / weights
    L, failed = (dpotrf if A.dtype == np.float64 else spotrf)(A, lower=1, overwrite_a=1, clean=1)
    return None if failed else L


class Factored(NamedTuple):
    """K + ρW⁻¹ with its factor, of float32 where that is enough."""

    A: Square
    """K itself."""
    added: Float[np.ndarray, " n"] | float
    """ρW⁻¹."""
    L: Square

    def solve(self, B: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"] | None:
        """(K + ρW⁻¹)⁻¹B; None where rounds of refinement do not end."""
        if self.L.dtype == B.dtype:
            return substitute(self.L, B)
        added = np.broadcast_to(self.added, len(B))[:, None]
        norm = np.linalg.norm(B, axis=0)
        found, left = np.zeros_like(B), B
        for _ in range(ROUNDS):
            found = found + substitute(self.L, left.astype(self.L.dtype)).astype(B.dtype)
            left = B - dot(self.A, found) - added * found
            if (np.linalg.norm(left, axis=0) <= REFINED * norm).all():
                return found
        return None


def factored(
    K: Square, relative_ridge: float, weights: Float[np.ndarray, " n"] | None, columns: int
) -> Factored | None:
    """K + ρW⁻¹ ready to solve for so many right-hand sides; ρ in units of the mean of k(x, x). None where it is not
    positive to rounding."""
    ridge = relative_ridge * float(np.mean(np.diagonal(K)))
    added = ridge if weights is None else ridge / weights
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    if K.dtype == np.float64 and len(K) >= ENOUGH_ROWS and smallest >= VISIBLE and 50 * columns <= len(K):
        L = factor(K, ridge, weights, np.float32)
        if L is not None:
            return Factored(K, added, L)
    L = factor(K, ridge, weights)
    return None if L is None else Factored(K, added, L)


def judging_precision(n: int, relative_ridge: float, weights: Float[np.ndarray, " n"] | None) -> type:
    """The precision in which a fit to n rows is compared with others."""
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    return np.float32 if n >= ENOUGH_ROWS and smallest >= CLEAR else np.float64


def substitute(L: Square, B: Float[np.ndarray, "n *c"]) -> Float[np.ndarray, "n *c"]:
    """(LLᵀ)⁻¹B."""
    from scipy.linalg import cho_solve

    return cho_solve((L, True), B, check_finite=False)


def inverse_diagonal(L: Square, last: int | None = None) -> Float[np.ndarray, " m"]:
    """The last diagonal entries (all, where None) of (LLᵀ)⁻¹: the squared column norms of the inverse of L's last
    block, so few of them cost little more than the factor."""
    from scipy.linalg.lapack import dtrtri, strtri

    part = slice(0 if last is None else len(L) - last, None)
    inverse, _ = (dtrtri if L.dtype == np.float64 else strtri)(L[part, part], lower=1)
    return np.einsum("ij,ij->j", inverse, inverse)


def eigh(K: Square, overwrite: bool = False) -> tuple[Float[np.ndarray, " n"], Square]:
    """LAPACK on the CPU; the accelerator where there is one. In the precision of K, whatever the caller's scope."""
    if not devices.is_host():
        with precision(K.dtype.name):
            s, V = jnp.linalg.eigh(jnp.asarray(K))
            return np.asarray(s), np.asarray(V)
    from scipy.linalg import eigh

    return eigh(K, driver="evd", check_finite=False, overwrite_a=overwrite)
