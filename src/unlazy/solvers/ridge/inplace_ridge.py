"""Ridge regression with a free intercept in the memory of K alone, on the host [K2].

The factor K + ρW⁻¹ = UᵀU overwrites K, of which only the lower triangle is read.
"""

import numpy as np
from jaxtyping import Float

from unlazy.solvers.ridge.intercept import weighted_mean
from unlazy.theory.dynamics.leave_one_out import with_intercept


def ridge_coefficients_in_place(
    K: Float[np.ndarray, "n n"],
    Y: Float[np.ndarray, "n c"],
    ridge: float,
    weights: Float[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"]]:
    """α and the intercept; K is overwritten. Raise ValueError if K + ρW⁻¹ is not positive definite to rounding."""
    from scipy.linalg import cho_solve
    from scipy.linalg.lapack import dpotrf

    K.reshape(-1)[:: len(K) + 1] += ridge if weights is None else ridge / weights
    # rows of the lower triangle are columns of the upper one, as LAPACK reads it: no copy
    U, failed = dpotrf(K.T, lower=0, overwrite_a=1, clean=0)
    if failed:
        raise ValueError(f"K + {ridge:.2g}·I is not positive definite to rounding: use a larger ridge")
    center = weighted_mean(Y, weights)
    S = cho_solve((U, False), np.concatenate([Y - center, np.ones((len(Y), 1))], 1), check_finite=False)
    alpha, shift = with_intercept(S[:, :-1], S[:, -1])
    return alpha, center + shift
