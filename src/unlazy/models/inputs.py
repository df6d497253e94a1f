"""Rows of a batch of inputs, in whatever form a network takes it."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from unlazy.models.protocol import Inputs


def count_rows(inputs: Inputs) -> int | None:
    """Points along the first axis, or None if the arrays do not agree on it."""
    lengths: set[int] = set()
    map_arrays(lambda part: lengths.add(len(part)), inputs)
    return lengths.pop() if len(lengths) == 1 else None


def take_rows(inputs: Inputs, rows: NDArray[np.integer] | slice) -> Inputs:
    """The same rows of every array; of data frames as arrays."""
    return map_arrays(lambda part: part.iloc[rows].to_numpy() if hasattr(part, "iloc") else part[rows], inputs)


def map_arrays(f: Callable[[Inputs], Inputs], inputs: Inputs) -> Inputs:
    """Apply f to every array of at least one axis in nested tuples, lists and mappings."""
    if isinstance(inputs, Mapping):
        mapped = {key: map_arrays(f, part) for key, part in inputs.items()}
        return type(inputs)(mapped) if type(inputs) is not dict and hasattr(inputs, "data") else mapped  # type: ignore[call-arg]
    if isinstance(inputs, tuple) and hasattr(inputs, "_fields"):
        return type(inputs)(*(map_arrays(f, part) for part in inputs))
    if isinstance(inputs, tuple):
        return tuple(map_arrays(f, part) for part in inputs)
    if hasattr(inputs, "shape"):
        return f(inputs) if len(inputs.shape) else inputs
    if isinstance(inputs, list):
        nested = any(hasattr(part, "shape") or isinstance(part, Mapping | tuple) for part in inputs)
        return [map_arrays(f, part) for part in inputs] if nested else f(np.asarray(inputs))
    return inputs
