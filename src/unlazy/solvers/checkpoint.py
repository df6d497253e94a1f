"""Checkpoints that survive being killed: the state in one safetensors file, written to a temporary file and renamed."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from unlazy.core.files import atomic_write

State = dict[str, np.ndarray]
"""Arrays by name, as stored in a checkpoint."""


@dataclass
class Checkpoint:
    """File to which the state of a run is written.

    Parameters
    ----------
    path : str or Path
        The file (safetensors).
    every : float, default 10.0
        Minimum number of seconds between two writes; 0 writes after every step.
    problem : dict, optional
        Fingerprints that identify the problem; loading a checkpoint of another problem raises ValueError.
    """

    path: str | Path
    every: float = 10.0
    problem: dict[str, str] = field(default_factory=dict)
    """Identifies the problem; a checkpoint of another problem is rejected."""
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> State | None:
        """Return the saved state, or None if the file does not exist."""
        path = Path(self.path)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                saved = json.loads((file.metadata() or {}).get("problem", "{}"))
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a solver checkpoint ({error}): remove it or use another path") from error
        other = [k for k in self.problem if saved.get(k) != self.problem[k]]
        if other:
            raise ValueError(
                f"{path} belongs to another problem (different {', '.join(other)}): remove it or use another path"
            )
        return state

    def save(self, state: Callable[[], State], now: bool = False) -> None:
        """Write the state if `every` seconds have passed since the last write, or if `now` is true."""
        if not now and time.monotonic() - self._last < self.every:
            return
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {k: np.ascontiguousarray(v) for k, v in state().items()}
        with atomic_write(path) as aside:
            save_file(tensors, aside, metadata={"problem": json.dumps(self.problem)})
        self._last = time.monotonic()


def as_checkpoint(given: str | Path | Checkpoint) -> Checkpoint:
    """The checkpoint for a path, or the given one."""
    return given if isinstance(given, Checkpoint) else Checkpoint(given)
