"""Alignment of a kernel with a target or with another kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import accepts_array_likes, dot


@accepts_array_likes
def kernel_alignment(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, ""]:
    """Cosine between two Gram matrices, ⟨K, L⟩_F / (‖K‖_F ‖L‖_F).

    Parameters
    ----------
    K, L : array of shape (n, n)
        Gram matrices at the same points.

    Returns
    -------
    scalar array

    References
    ----------
    Cristianini, Shawe-Taylor, Elisseeff and Kandola (2001), On kernel-target alignment.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import kernel_alignment
    >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> round(float(kernel_alignment(K, 3 * K)), 4)
    1.0
    >>> round(float(kernel_alignment(K, np.eye(2))), 4)
    0.8944
    """
    return jnp.sum(K * L) / (jnp.linalg.norm(K) * jnp.linalg.norm(L))


@accepts_array_likes
def target_alignment(K: Float[Array, "n n"], y: Float[Array, " n *c"]) -> Float[Array, ""]:
    """Alignment of a kernel with the labels, yᵀKy / (‖K‖_F ‖yyᵀ‖_F).

    Parameters
    ----------
    K : array of shape (n, n)
        Gram matrix.
    y : array of shape (n,) or (n, c)
        Labels.

    Returns
    -------
    scalar array
        1 if K = yyᵀ.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import target_alignment
    >>> y = np.array([1.0, -1.0, 1.0])
    >>> round(float(target_alignment(np.outer(y, y), y)), 4)
    1.0
    >>> round(float(target_alignment(np.eye(3), y)), 4)
    0.5774
    """
    Y = y.reshape(y.shape[0], -1)
    return jnp.sum(Y * dot(K, Y)) / (jnp.linalg.norm(K) * jnp.linalg.norm(dot(Y.T, Y)))


@accepts_array_likes
def centered_alignment(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, ""]:
    """Cosine between two Gram matrices after centering both (CKA).

    Parameters
    ----------
    K, L : array of shape (n, n)
        Gram matrices at the same points.

    Returns
    -------
    scalar array

    References
    ----------
    Cortes, Mohri and Rostamizadeh (2012), Algorithms for learning kernels based on centered alignment.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import centered_alignment
    >>> K = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    >>> round(float(centered_alignment(K, K + 5)), 4)  # a constant does not count
    1.0
    """
    return kernel_alignment(_centered(K), _centered(L))


def _centered(K: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """HKH with H = I - 11ᵀ/n."""
    return K - K.mean(0, keepdims=True) - K.mean(1, keepdims=True) + K.mean()


@accepts_array_likes
def entry_correlation(A: Float[Array, "n m"], B: Float[Array, "n m"]) -> Float[Array, ""]:
    """Pearson correlation of the entries of two matrices [E5].

    Invariant under scaling and shifting either matrix.

    Parameters
    ----------
    A, B : array of shape (n, m)
        Matrices to compare.

    Returns
    -------
    scalar array
        0 if one of the matrices is constant.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import entry_correlation
    >>> A = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> round(float(entry_correlation(A, 10 - 2 * A)), 4)
    -1.0
    """
    a, b = A - A.mean(), B - B.mean()
    size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.sum(a * b) / jnp.where(size > 0, size, 1)
