"""Spectral measures of a Gram matrix: eigenvalues, effective dimension, participation ratio [L3]."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import accepts_array_likes


@accepts_array_likes
def gram_spectrum(K: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Eigenvalues of K/n in descending order, estimates of those of the kernel's integral operator.

    Parameters
    ----------
    K : array of shape (n, n)
        Gram matrix.

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import gram_spectrum
    >>> gram_spectrum(np.diag([2.0, 6.0])).tolist()
    [3.0, 1.0]
    """
    return jnp.linalg.eigvalsh(K)[::-1] / K.shape[0]


@accepts_array_likes
def effective_dimension(eigenvalues: Float[Array, " n"], ridge: Float[Array, ""] | float) -> Float[Array, ""]:
    """Effective dimension tr K(K + ρI)⁻¹ = Σ λ/(λ + ρ).

    Parameters
    ----------
    eigenvalues : array of shape (n,)
        Eigenvalues of K; negative ones count as zero.
    ridge : float
        ρ, absolute.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> from unlazy.measures import effective_dimension
    >>> float(effective_dimension([3.0, 1.0, 0.0], 1.0))
    1.25
    """
    lam = jnp.maximum(eigenvalues, 0)
    return jnp.sum(lam / (lam + ridge))


@accepts_array_likes
def participation_ratio(eigenvalues: Float[Array | np.ndarray, " n"]) -> Float[Array, ""] | float:
    """Participation ratio (Σλ)²/Σλ²: effective number of directions of a symmetric matrix.

    Parameters
    ----------
    eigenvalues : array of shape (n,)
        Eigenvalues of the matrix.

    Returns
    -------
    scalar
        n for the identity, 1 for rank one, 0 if all eigenvalues are zero.

    Examples
    --------
    >>> from unlazy.measures import participation_ratio
    >>> float(participation_ratio([1.0, 1.0, 1.0, 1.0]))
    4.0
    >>> float(participation_ratio([5.0, 0.0, 0.0, 0.0]))
    1.0
    """
    squares = (eigenvalues**2).sum()
    return eigenvalues.sum() ** 2 / (squares + (squares == 0))
