"""ZCA whitening: the whitening transform that changes points least. Bell and Sejnowski (1997)."""

import numpy as np
from jaxtyping import Float


def zca_matrix(moments: Float[np.ndarray, "d d"], regularization: float) -> Float[np.ndarray, "d d"]:
    """ZCA whitening matrix (M + ρI)^{-1/2}, with ρ as in Shankar et al. (2020).

    Parameters
    ----------
    moments : array of shape (d, d)
        Second moments M of the points.
    regularization : float
        ρ, absolute.

    Returns
    -------
    array of shape (d, d)

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.theory.numerics.whitening import zca_matrix
    >>> bool(np.allclose(zca_matrix(np.diag([3.0, 8.0]), 1.0), np.diag([1 / 2, 1 / 3])))
    True
    """
    values, vectors = np.linalg.eigh(moments)
    # rounding may make small eigenvalues of XᵀX negative
    return (vectors / np.sqrt(np.maximum(values, 0) + regularization)) @ vectors.T


def unit_rows(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Subtract the mean of each row and divide by its norm; constant rows become zero."""
    rows = rows - rows.mean(1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)
