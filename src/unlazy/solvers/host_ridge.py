"""(K + ρW⁻¹)α = y for a Gram matrix at hand, on the host: by a Cholesky factor for one ridge, by a spectrum for all.

A thousand rows are LAPACK's: a factor and the diagonal of its inverse cost a tenth of an eigendecomposition, so whoever
looks at few ridges takes the factor. `direct` is for kernels and large n: it forms K itself and refines.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core import device
from unlazy.core.precision import precision

Square = Float[np.ndarray, "n n"]


def factor(K: Square, ridge: float, weights: Float[np.ndarray, " n"] | None = None) -> Square | None:
    """L of K + ρW⁻¹ = LLᵀ, zeros above it; None where that is not positive to rounding. K stays as it is."""
    from scipy.linalg.lapack import dpotrf, spotrf

    A = np.array(K.T, order="F")  # K is symmetric: its transpose is what LAPACK wants, and no copy is turned around
    A.reshape(-1, order="F")[:: len(K) + 1] += ridge if weights is None else ridge / weights
    L, failed = (dpotrf if K.dtype == np.float64 else spotrf)(A, lower=1, overwrite_a=1, clean=1)
    return None if failed else L


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
    if not device.is_host():
        with precision(K.dtype.name):
            s, V = jnp.linalg.eigh(jnp.asarray(K))
            return np.asarray(s), np.asarray(V)
    from scipy.linalg import eigh

    return eigh(K, driver="evd", check_finite=False, overwrite_a=overwrite)
