"""Initial parameters of several networks from one random draw."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def draw_parameters(networks: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
    """Initial parameters of all networks (N(0, 1) in the NTK parametrization) from one draw, which compiles once."""
    shapes = jax.eval_shape(lambda: tuple(network.init(key) for network in networks))
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves)])
