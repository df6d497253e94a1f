"""Checkpoints of the stages of a long fit: the result of each stage is stored in one file and read back bit for bit.

Values are nested arrays, numbers, strings, lists, tuples and registered named tuples; kernels are stored as their index
among the candidates. Loading a file therefore runs no code.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from unlazy.kernels.base import Kernel
from unlazy.solvers.checkpoint import Checkpoint, State
from unlazy.training.rfm.iteration import RfmStep
from unlazy.training.rfm.partition import Tree

T = TypeVar("T")
_CLASSES: dict[str, type] = {kind.__name__: kind for kind in (RfmStep, Tree)}


def checkpointable(kind: type[T]) -> type[T]:
    """Class decorator: allow a named tuple in the result of a stage."""
    _CLASSES[kind.__name__] = kind
    return kind


class Stages:
    """Named stages, run one after another. Without a checkpoint they are simply run. `done` is called after each."""

    def __init__(
        self, kernels: Sequence[Kernel] = (), checkpoint: Checkpoint | None = None,
        done: Callable[[str], None] = lambda name: None,
    ):  # fmt: skip
        self._kernels, self._checkpoint, self.done = list(kernels), checkpoint, done
        self._state: State = (checkpoint.load() if checkpoint is not None else None) or {}

    def __call__(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of this stage, from this or an earlier run."""
        found = make() if self._checkpoint is None else self._load_or_run(name, make)
        self.done(name)
        return found

    def _load_or_run(self, name: str, make: Callable[[], T]) -> T:
        """Load the result of a stage, or run and store it."""
        if name not in self._state:
            text = json.dumps(self._to_json(make(), name))
            self._state[name] = np.frombuffer(text.encode(), np.uint8)
            assert self._checkpoint is not None
            self._checkpoint.save(lambda: self._state, now=True)
        # always read back: another memory layout would change the order of summation
        return self._from_json(json.loads(self._state[name].tobytes()))

    def _to_json(self, value: Any, name: str) -> Any:
        """Convert to JSON and store arrays separately; floats keep all bits."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, np.ndarray):
            place = f"{name}/{len(self._state)}"
            self._state[place] = np.ascontiguousarray(value)
            return {"array": place}
        if isinstance(value, Kernel):
            return {"kernel": next(i for i, one in enumerate(self._kernels) if one is value)}
        if isinstance(value, list | tuple):
            known = type(value).__name__ if hasattr(value, "_fields") else "list" if isinstance(value, list) else ""
            return {"of": known, "parts": [self._to_json(part, name) for part in value]}
        raise TypeError(f"a stage cannot store a {type(value).__name__}")

    def _from_json(self, value: Any) -> Any:
        """Inverse of `_to_json`."""
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return self._state[value["array"]]
        if "kernel" in value:
            return self._kernels[value["kernel"]]
        parts = [self._from_json(part) for part in value["parts"]]
        if value["of"] in ("", "list"):
            return parts if value["of"] else tuple(parts)
        return _CLASSES[value["of"]](*parts)
