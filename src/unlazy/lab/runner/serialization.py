"""Serialization of parameters and measures: canonical JSON, and floats that round-trip bit for bit."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from unlazy.lab.experiment import RESERVED_COLUMNS, Measures, Params


def canonical_json(params: Params) -> str:
    """Canonical JSON of parameters: sorted keys, NumPy scalars as Python numbers. 1 and 1.0 remain different."""
    try:
        return json.dumps(params, sort_keys=True, separators=(",", ":"), default=_plain)
    except TypeError as error:
        raise ValueError(
            f"parameters must be numbers, strings, or lists of them, so that they can be stored: {error}"
        ) from error


def check_measures(measures: object, params: Collection[str] = ()) -> Measures:
    """The measures that a trial returned; raise if they are not a flat dict or a name is already a column."""
    if not isinstance(measures, dict) or not all(isinstance(name, str) for name in measures):
        raise TypeError(f"a trial must return a dict of measures by name, got {measures!r}")
    for name in measures:
        if name in params or name in RESERVED_COLUMNS:
            what = "a parameter" if name in params else "a column of every trial"
            raise ValueError(f"the measure {name!r} has the name of {what}; rename it")
    return measures


def normalize_measures(measures: object, params: Collection[str] = ()) -> Measures:
    """Measures as Python numbers (shape ()) and NumPy arrays; raise if one cannot be stored."""
    return {name: _measure(name, value) for name, value in check_measures(measures, params).items()}


def pack(measures: Measures) -> tuple[str, bytes | None]:
    """Serialize normalized measures: numbers as JSON (with NaN and Infinity as in Python), arrays as safetensors."""
    numbers = {k: v for k, v in measures.items() if not isinstance(v, np.ndarray)}
    arrays = {k: np.ascontiguousarray(v) for k, v in measures.items() if isinstance(v, np.ndarray)}
    return json.dumps(numbers, separators=(",", ":")), save(arrays) if arrays else None


def unpack(numbers: str, arrays: bytes | None) -> Measures:
    """Inverse of `pack`."""
    found = json.loads(numbers)
    if not isinstance(found, dict):
        raise ValueError(f"not a set of measures: {numbers[:80]!r}")
    return found | (load(arrays) if arrays else {})


def _measure(name: str, value: Any) -> Any:
    """One normalized measure."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and not (array.dtype.kind == "U" and array.ndim == 0):
        raise TypeError(f"measure {name!r} must be real numbers, got {array.dtype}; return its parts separately")
    return array.item() if array.ndim == 0 else array


def _plain(value: Any) -> Any:
    """Python number of a NumPy scalar."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} has type {type(value).__name__}")
