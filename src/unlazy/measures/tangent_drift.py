"""How far training moved: kernels, features, parameters, each relative to where it started. Small is lazy [K10]."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers


@of_any_numbers
def relative_change(start: Float[Array, "*s"], now: Float[Array, "*s"]) -> Float[Array, ""]:
    """‖A_t - A_0‖_F / ‖A_0‖_F: of a tangent kernel (its drift) or of hidden features (their movement)."""
    return jnp.linalg.norm(jnp.ravel(now - start)) / jnp.linalg.norm(jnp.ravel(start))


def parameter_movement(start: Any, now: Any) -> Float[Array, " layers"]:
    """‖θ_l,t - θ_l,0‖ / ‖θ_l,0‖ of every layer (top-level entry of the parameters)."""
    before = jax.tree.leaves(start, is_leaf=lambda part: part is not start)
    after = jax.tree.leaves(now, is_leaf=lambda part: part is not now)
    moved = [_norm(jax.tree.map(jnp.subtract, b, a)) for a, b in zip(before, after)]
    return jnp.stack([m / _norm(a) for m, a in zip(moved, before)])


def distance(start: Any, now: Any) -> Float[Array, ""]:
    """‖θ_t - θ_0‖ over all parameters."""
    return _norm(jax.tree.map(jnp.subtract, now, start))


def _norm(tree: Any) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
