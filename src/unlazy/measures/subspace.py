"""Share of a learned representation that lies in the relevant subspace S* [D5]."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import accepts_array_likes, dot


@accepts_array_likes
def energy(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, ""]:
    """Share of the squared norm of W inside a subspace, ‖W Uᵀ‖²_F/‖W‖²_F.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.
    subspace : array of shape (r, d)
        U, with orthonormal rows.

    Returns
    -------
    scalar array
        r/d on average for random rows, 1 if all rows lie in the subspace, 0 if W = 0.

    Examples
    --------
    >>> from unlazy.measures import energy
    >>> round(float(energy([[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0]])), 4)
    0.9
    """
    total = jnp.sum(jnp.square(W))
    inside = jnp.sum(jnp.square(_product(W, subspace.T)))
    return jnp.where(total > 0, inside / jnp.where(total > 0, total, 1), 0.0)


@accepts_array_likes
def row_alignment(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, " w"]:
    """|cosine| of every row with a subspace, ‖U w_j‖/‖w_j‖.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.
    subspace : array of shape (r, d)
        U, with orthonormal rows.

    Returns
    -------
    array of shape (w,)
        Zero for a zero row.

    Examples
    --------
    >>> from unlazy.measures import row_alignment
    >>> row_alignment([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], [[1.0, 0.0]]).tolist()
    [1.0, 0.0, 1.0]
    """
    norms = jnp.linalg.norm(W, axis=1)
    inside = jnp.linalg.norm(_product(W, subspace.T), axis=1)
    return jnp.where(norms > 0, inside / jnp.where(norms > 0, norms, 1), 0.0)


@accepts_array_likes
def cosines(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, " k"]:
    """Cosines of the principal angles between two subspaces, in descending order.

    Parameters
    ----------
    first : array of shape (r, d)
    second : array of shape (s, d)
        Orthonormal rows.

    Returns
    -------
    array of shape (min(r, s),)
    """
    return jnp.clip(jnp.linalg.svd(_product(first, second.T), compute_uv=False), 0, 1)


@accepts_array_likes
def principal_angles(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, " k"]:
    """Principal angles between two subspaces in radians, in ascending order.

    Small angles are computed from sines, since arccos loses digits near 1.

    Parameters
    ----------
    first : array of shape (r, d)
        Orthonormal rows that span one subspace.
    second : array of shape (s, d)
        Orthonormal rows that span the other.

    Returns
    -------
    array of shape (min(r, s),)

    References
    ----------
    Björck and Golub (1973), Numerical methods for computing angles between linear subspaces.

    Examples
    --------
    >>> from unlazy.measures import principal_angles
    >>> angles = principal_angles([[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]])
    >>> round(float(angles[0]), 4)
    0.9273
    """
    small, large = (first, second) if first.shape[0] <= second.shape[0] else (second, first)
    across = small - _product(_product(small, large.T), large)
    sines = jnp.clip(jnp.linalg.svd(across, compute_uv=False), 0, 1)[::-1]
    c = cosines(first, second)
    return jnp.where(c > 0.7, jnp.arcsin(sines[: c.shape[0]]), jnp.arccos(c))


@accepts_array_likes
def overlap(first: Float[Array, "r d"], second: Float[Array, "s d"]) -> Float[Array, ""]:
    """Root mean square of the cosines of the principal angles.

    Parameters
    ----------
    first : array of shape (r, d)
        Orthonormal rows that span one subspace.
    second : array of shape (s, d)
        Orthonormal rows that span the other.

    Returns
    -------
    scalar array
        1 if one subspace contains the other, √(max(r, s)/d) on average for random ones.

    Examples
    --------
    >>> from unlazy.measures import overlap
    >>> round(float(overlap([[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]])), 4)
    0.6
    """
    return jnp.sqrt(jnp.mean(jnp.square(cosines(first, second))))


@accepts_array_likes
def top_directions(W: Float[Array, "w d"], r: int) -> Float[Array, "r d"]:
    """The r leading right singular vectors of W, as rows.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.
    r : int
        Number of directions.

    Returns
    -------
    array of shape (r, d)

    Raises
    ------
    ValueError
        If r is not between 1 and min(w, d).

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import top_directions
    >>> W = np.array([[3.0, 0.0], [-4.0, 0.0], [0.0, 1.0]])
    >>> np.abs(top_directions(W, 1)).round(4).tolist()  # up to sign
    [[1.0, 0.0]]
    """
    if not 1 <= r <= min(W.shape):
        raise ValueError(f"r must be between 1 and min(W.shape) = {min(W.shape)}, got {r}")
    return jnp.linalg.svd(W, full_matrices=False)[2][:r]


@accepts_array_likes
def top_overlap(W: Float[Array, "w d"], subspace: Float[Array, "r d"]) -> Float[Array, ""]:
    """Overlap of a subspace with the leading right singular vectors of W.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.
    subspace : array of shape (r, d)
        Orthonormal rows.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> from unlazy.measures import top_overlap
    >>> W = [[3.0, 0.0], [-4.0, 0.0], [0.0, 1.0]]
    >>> round(float(top_overlap(W, [[1.0, 0.0]])), 4)
    1.0
    """
    return overlap(top_directions(W, subspace.shape[0]), subspace)


def _product(first: Float[Array, "a d"], second: Float[Array, "d b"]) -> Float[Array, "a b"]:
    """Matrix product in the dtype of the first factor."""
    return dot(first, second.astype(first.dtype))
