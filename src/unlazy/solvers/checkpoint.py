"""A run that survives a kill: its state in one safetensors file, written aside and moved into place."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unlazy.core.files import written_whole

State = dict[str, np.ndarray]


@dataclass
class Checkpoint:
    """Where to keep the state, and how many seconds apart at least; 0 keeps every step."""

    path: str | Path
    every: float = 10.0
    problem: dict[str, str] = field(default_factory=dict)
    """What identifies the problem; a file of another problem is refused."""
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> State | None:
        """The state kept earlier, or None where there is none."""
        from safetensors import SafetensorError, safe_open

        path = Path(self.path)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                kept = json.loads((file.metadata() or {}).get("problem", "{}"))
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a checkpoint of a solver ({error}): remove it or name another") from error
        other = [k for k in self.problem if kept.get(k) != self.problem[k]]
        if other:
            raise ValueError(
                f"{path} belongs to another problem (different {', '.join(other)}): remove it or name another"
            )
        return state

    def keep(self, state: Callable[[], State], now: bool = False) -> None:
        """Write the state if it is time."""
        from safetensors.numpy import save_file

        if not now and time.monotonic() - self._last < self.every:
            return
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {k: np.ascontiguousarray(v) for k, v in state().items()}
        with written_whole(path) as aside:
            save_file(tensors, aside, metadata={"problem": json.dumps(self.problem)})
        self._last = time.monotonic()
