"""Trees of parameters of any function: what can be differentiated, layer by layer, and rates spread over them."""

from typing import Any

import equinox as eqx
import jax


def split(params: Any) -> tuple[Any, Any]:
    """(what can be differentiated, the rest), None where a leaf belongs to the other; `eqx.combine` joins them.

    Arrays of real numbers are parameters, and numbers too, as for `jax.grad`; in an Equinox module only arrays are, as
    for `eqx.filter_grad`: a number there is a setting.
    """

    def is_module(part: Any) -> bool:
        return isinstance(part, eqx.Module)

    module = any(map(is_module, jax.tree.leaves(params, is_leaf=is_module)))

    def moves(leaf: Any) -> bool:
        return eqx.is_inexact_array(leaf) or (isinstance(leaf, float | complex) and not module)

    moving, fixed = eqx.partition(params, moves)
    if not jax.tree.leaves(moving):
        raise ValueError(f"there is nothing to differentiate: no array of real numbers in {jax.tree.structure(params)}")
    return moving, fixed


def layers_of(moving: Any) -> list[Any]:
    """Top-level entries that have parameters, of a tree of parameters alone."""
    entries = jax.tree.leaves(moving, is_leaf=lambda part: part is not moving)
    return [entry for entry in entries if jax.tree.leaves(entry)]


def spread_over(values: Any, params: Any) -> Any:
    """One value for every parameter array, from a tree that may be coarser (a number, or one number a layer)."""
    try:
        return jax.tree.map(lambda value, part: jax.tree.map(lambda _: value, part), values, params)
    except ValueError as error:
        raise ValueError(
            f"rates must be one number, one per layer, or shaped like the parameters: {jax.tree.structure(values)} "
            f"does not fit {jax.tree.structure(params)}"
        ) from error
