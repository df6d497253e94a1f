"""Stages of a long fit, which outlast a kill: what a stage found stands in one file and is read back bit for bit.

Values are nestings of arrays, numbers, texts, lists, tuples and the named tuples of one table; kernels stand for their
place among the candidates'. A file therefore runs nothing.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from unlazy.kernels.base import Kernel
from unlazy.solvers.checkpoint import Checkpoint, State
from unlazy.training.rfm.iteration import Step
from unlazy.training.rfm.partition import Tree

T = TypeVar("T")
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (Step, Tree)}


def kept(kind: type[T]) -> type[T]:
    """A named tuple that a stage may find."""
    _KINDS[kind.__name__] = kind
    return kind


class Stages:
    """Stages one after another, by name; without a checkpoint each is simply done. `done` hears of each."""

    def __init__(
        self, kernels: Sequence[Kernel] = (), checkpoint: Checkpoint | None = None,
        done: Callable[[str], None] = lambda name: None,
    ):  # fmt: skip
        self._kernels, self._checkpoint, self.done = list(kernels), checkpoint, done
        self._state: State = (checkpoint.load() if checkpoint is not None else None) or {}

    def __call__(self, name: str, make: Callable[[], T]) -> T:
        """What this stage finds, or found in an earlier run."""
        found = make() if self._checkpoint is None else self._kept(name, make)
        self.done(name)
        return found

    def _kept(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._state:
            text = json.dumps(self._written(make(), name))
            self._state[name] = np.frombuffer(text.encode(), np.uint8)
            assert self._checkpoint is not None
            self._checkpoint.keep(lambda: self._state, now=True)
        # read back in either case: arrays laid out otherwise would be summed in another order
        return self._read(json.loads(self._state[name].tobytes()))

    def _written(self, value: Any, name: str) -> Any:
        """JSON, with arrays put aside; floats keep every bit there."""
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
            return {"of": known, "parts": [self._written(part, name) for part in value]}
        raise TypeError(f"a stage cannot keep a {type(value).__name__}")

    def _read(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return self._state[value["array"]]
        if "kernel" in value:
            return self._kernels[value["kernel"]]
        parts = [self._read(part) for part in value["parts"]]
        if value["of"] in ("", "list"):
            return parts if value["of"] else tuple(parts)
        return _KINDS[value["of"]](*parts)
