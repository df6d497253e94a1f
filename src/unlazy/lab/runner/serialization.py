"""Parameters and measures as text and bytes: one spelling per value, and every float comes back bit for bit."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np

from unlazy.lab.experiment import COLUMNS, Params


def canonical(params: Params) -> str:
    """The one JSON text of these parameters: keys sorted, NumPy numbers as plain ones. 1 and 1.0 stay different."""
    try:
        return json.dumps(params, sort_keys=True, separators=(",", ":"), default=_plain)
    except TypeError as error:
        raise ValueError(
            f"parameters must be numbers, words, or lists of them, so that they can be stored: {error}"
        ) from error


def check_measures(measures: Any, params: Collection[str] = ()) -> dict[str, Any]:
    """What a trial returned, if it is a flat dict of measures, none of which has the name of another column."""
    if not isinstance(measures, dict) or not all(isinstance(name, str) for name in measures):
        raise TypeError(f"a trial returns a dict of named measures, got {measures!r}")
    for name in measures:
        if name in params or name in COLUMNS:
            what = "a parameter" if name in params else "a column that every trial has"
            raise ValueError(f"the measure {name!r} is called like {what}; give it a name of its own")
    return measures


def tidy(measures: Any, params: Collection[str] = ()) -> dict[str, Any]:
    """Measures as plain numbers (shape ()) and NumPy arrays; what cannot be stored is refused here, in the trial."""
    return {name: _measure(name, value) for name, value in check_measures(measures, params).items()}


def pack(measures: dict[str, Any]) -> tuple[str, bytes | None]:
    """Tidy measures as JSON (numbers; NaN and infinities in Python's spelling) and safetensors (arrays)."""
    from safetensors.numpy import save

    numbers = {k: v for k, v in measures.items() if not isinstance(v, np.ndarray)}
    arrays = {k: np.ascontiguousarray(v) for k, v in measures.items() if isinstance(v, np.ndarray)}
    return json.dumps(numbers, separators=(",", ":")), save(arrays) if arrays else None


def unpack(numbers: str, arrays: bytes | None) -> dict[str, Any]:
    """The measures that `pack` put away."""
    from safetensors.numpy import load

    found = json.loads(numbers)
    if not isinstance(found, dict):
        raise ValueError(f"not a set of measures: {numbers[:80]!r}")
    return found | (load(arrays) if arrays else {})


def _measure(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and not (array.dtype.kind == "U" and array.ndim == 0):
        raise TypeError(f"measure {name!r} must be real numbers, got {array.dtype}; return its parts separately")
    return array.item() if array.ndim == 0 else array


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
