"""Parameter pytrees: separate the differentiable part, iterate over layers, broadcast values over them."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def split_parameters(params: PyTree) -> tuple[PyTree, PyTree]:
    """Partition a pytree into (differentiable part, rest), with None at the leaves of the other part.

    `eqx.combine` joins the two. Arrays of floats are differentiable, and so are Python floats, as for `jax.grad`;
    within an Equinox module only arrays are, as for `eqx.filter_grad`: a Python float there is a setting. Of Flax
    variables (a mapping with "params" and other collections, such as "batch_stats") only "params" are.

    Raises
    ------
    ValueError
        If nothing is differentiable, or a parameter is complex.
    """
    collections = isinstance(params, Mapping) and "params" in params

    def is_module(part: Any) -> bool:
        return isinstance(part, eqx.Module)

    module = any(map(is_module, jax.tree.leaves(params, is_leaf=is_module)))

    def is_trainable(path: tuple, leaf: Any) -> bool:
        if collections and getattr(path[0], "key", "params") != "params":
            return False
        return eqx.is_inexact_array(leaf) or (isinstance(leaf, float | complex) and not module)

    trainable, fixed = eqx.partition(params, jax.tree_util.tree_map_with_path(is_trainable, params))
    leaves = jax.tree_util.tree_leaves_with_path(trainable)
    if not leaves:
        raise ValueError(f"nothing to differentiate: {jax.tree.structure(params)} contains no array of floats")
    for path, leaf in leaves:
        if jnp.iscomplexobj(leaf):
            raise ValueError(
                f"parameters must be real, but params{jax.tree_util.keystr(path)} is {jnp.result_type(leaf)}: pass "
                "real and imaginary parts as two arrays"
            )
    return trainable, fixed


def parameter_layers(trainable: PyTree) -> list[PyTree]:
    """Top-level entries of a parameter pytree that have parameters."""
    entries = jax.tree.leaves(trainable, is_leaf=lambda part: part is not trainable)
    return [entry for entry in entries if jax.tree.leaves(entry)]


def broadcast_over(values: PyTree, params: PyTree) -> PyTree:
    """One value per parameter array, from a pytree that may be a prefix of `params` (a scalar, or one per layer)."""
    try:
        return jax.tree.map(lambda value, part: jax.tree.map(lambda _: value, part), values, params)
    except ValueError as error:
        raise ValueError(
            f"rates must be a scalar, one per layer, or have the structure of the parameters: "
            f"{jax.tree.structure(values)} does not match {jax.tree.structure(params)}"
        ) from error
