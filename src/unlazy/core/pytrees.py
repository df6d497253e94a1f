"""Parameter pytrees: separate the differentiable part, iterate over layers, broadcast values over them."""

from typing import Any

import equinox as eqx
import jax


def split_parameters(params: Any) -> tuple[Any, Any]:
    """Partition a pytree into (differentiable part, rest), with None at the leaves of the other part.

    `eqx.combine` joins the two. Real and complex arrays are differentiable, and so are Python floats, as for
    `jax.grad`; within an Equinox module only arrays are, as for `eqx.filter_grad`: a Python float there is a setting.
    """

    def is_module(part: Any) -> bool:
        return isinstance(part, eqx.Module)

    module = any(map(is_module, jax.tree.leaves(params, is_leaf=is_module)))

    def is_trainable(leaf: Any) -> bool:
        return eqx.is_inexact_array(leaf) or (isinstance(leaf, float | complex) and not module)

    trainable, fixed = eqx.partition(params, is_trainable)
    if not jax.tree.leaves(trainable):
        raise ValueError(f"nothing to differentiate: {jax.tree.structure(params)} contains no array of floats")
    return trainable, fixed


def parameter_layers(trainable: Any) -> list[Any]:
    """Top-level entries of a parameter pytree that have parameters."""
    entries = jax.tree.leaves(trainable, is_leaf=lambda part: part is not trainable)
    return [entry for entry in entries if jax.tree.leaves(entry)]


def broadcast_over(values: Any, params: Any) -> Any:
    """One value per parameter array, from a pytree that may be a prefix of `params` (a scalar, or one per layer)."""
    try:
        return jax.tree.map(lambda value, part: jax.tree.map(lambda _: value, part), values, params)
    except ValueError as error:
        raise ValueError(
            f"rates must be a scalar, one per layer, or have the structure of the parameters: "
            f"{jax.tree.structure(values)} does not match {jax.tree.structure(params)}"
        ) from error
