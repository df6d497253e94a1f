"""ZCA whitening: the whitening that changes points least. Bell and Sejnowski (1997)."""

import numpy as np
from jaxtyping import Float


def zca_matrix(moments: Float[np.ndarray, "d d"], regularization: float) -> Float[np.ndarray, "d d"]:
    """(M + ρ1)^{-1/2}, M the second moments of the points; with ρ as in Shankar et al. (2020).

    >>> bool(np.allclose(zca_matrix(np.diag([3.0, 8.0]), 1.0), np.diag([1 / 2, 1 / 3])))
    True
    """
    values, vectors = np.linalg.eigh(moments)
    # eigenvalues of XᵀX are not negative, and those below rounding may have come out so
    return (vectors / np.sqrt(np.maximum(values, 0) + regularization)) @ vectors.T


def unit_rows(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Every row without its mean, over its norm; a row of equal numbers is 0."""
    rows = rows - rows.mean(1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)
