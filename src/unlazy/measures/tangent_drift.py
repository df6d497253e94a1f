"""Movement during training of kernels, features and parameters, relative to their start; small is lazy [K10]."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import accepts_array_likes


@accepts_array_likes
def relative_change(start: Float[Array, "*s"], now: Float[Array, "*s"]) -> Float[Array, ""]:
    """Relative change ‖A_t - A_0‖_F / ‖A_0‖_F, for example of a tangent kernel or of hidden features.

    Parameters
    ----------
    start, now : array
        Of the same shape.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> from unlazy.measures import relative_change
    >>> float(relative_change([3.0, 4.0], [3.0, 9.0]))
    1.0
    """
    return jnp.linalg.norm(jnp.ravel(now - start)) / jnp.linalg.norm(jnp.ravel(start))


def parameter_movement(start: PyTree, now: PyTree) -> Float[Array, " layers"]:
    """Relative change ‖θ_l,t - θ_l,0‖ / ‖θ_l,0‖ of each layer.

    Parameters
    ----------
    start, now : pytree
        Parameters; each top-level entry is a layer.

    Returns
    -------
    array of shape (layers,)

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.measures import parameter_movement
    >>> start = [jnp.array([3.0, 4.0]), jnp.array([2.0])]
    >>> parameter_movement(start, [jnp.array([3.0, 9.0]), jnp.array([3.0])]).tolist()
    [1.0, 0.5]
    """
    before = jax.tree.leaves(start, is_leaf=lambda part: part is not start)
    after = jax.tree.leaves(now, is_leaf=lambda part: part is not now)
    moved = [_norm(jax.tree.map(jnp.subtract, b, a)) for a, b in zip(before, after)]
    return jnp.stack([m / _norm(a) for m, a in zip(moved, before)])


def distance(start: PyTree, now: PyTree) -> Float[Array, ""]:
    """Euclidean distance ‖θ_t - θ_0‖ over all parameters.

    Parameters
    ----------
    start, now : pytree
        Parameters.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.measures import distance
    >>> float(distance([jnp.array([0.0]), jnp.array([1.0])], [jnp.array([3.0]), jnp.array([5.0])]))
    5.0
    """
    return _norm(jax.tree.map(jnp.subtract, now, start))


def _norm(tree: Any) -> Float[Array, ""]:
    """Euclidean norm of a pytree."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
