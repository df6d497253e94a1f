"""What the callbacks share: a monitor that begins with the training and never stops it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from unlazy.core.errors import UnlazyWarning
from unlazy.diagnostics.monitor import Log, Monitor, watch
from unlazy.diagnostics.options import WatchOptions
from unlazy.models.protocol import Inputs, Params, Targets

if TYPE_CHECKING:
    import torch


class WatchCallback:
    """Base of the callbacks; it keeps the arguments of `unlazy.watch` until the training begins.

    Attributes
    ----------
    monitor : Monitor or None
        That of the last training run; None before, and where it could not begin.
    """

    def __init__(
        self,
        probe_inputs: Inputs,
        probe_targets: Targets | None = None,
        *,
        network: str = "",
        every: int | str = "auto",
        step_size: float | None = None,
        log: Log | None = None,
        reference: Params | None = None,
        options: WatchOptions | None = None,
        path: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.monitor: Monitor | None = None
        self._probes = probe_inputs, probe_targets
        self._network, self._path = network, path
        self._step_size, self._log = step_size, log
        self._every, self._reference, self._options = every, reference, options

    def _begin(
        self,
        module: "torch.nn.Module",
        planned_steps: Callable[[], float],
        optimizer: "torch.optim.Optimizer | None",
        log: Log | None = None,
    ) -> None:
        """Watch the network, as the trainer has it now."""
        self.monitor = None

        def start() -> None:
            self.monitor = watch(
                module.get_submodule(self._network), *self._probes, every=self._every,
                planned_steps=_known(planned_steps),
                step_size=_learning_rate(optimizer) if self._step_size is None else self._step_size,
                log=self._log or log, reference=self._reference, options=self._options,
            )  # fmt: skip

        _guarded("watch could not start", start)

    def _step(self) -> None:
        """Count one step of the optimizer."""
        if self.monitor is not None:
            self.monitor.step()

    def _end(self) -> None:
        """Save the record, if that was asked for."""
        monitor, path = self.monitor, self._path
        if monitor is not None and path is not None:
            _guarded("the record could not be saved", lambda: monitor.save(path))


def _guarded(what: str, action: Callable[[], object]) -> None:
    """Warn in place of raising: a training run does not end because it cannot be watched."""
    try:
        action()
    except Exception as error:  # whatever the user's network raises
        text = f"unlazy: {what}: {type(error).__name__}: {error}. Training continues."
        warnings.warn(text, UnlazyWarning, stacklevel=3)


def _known(planned_steps: Callable[[], float]) -> int | None:
    """The number of steps, if there is one: trainers use -1 and infinity where there is no end, or raise."""
    try:
        steps = planned_steps()
    except Exception:
        return None
    return int(steps) if 0 < steps < float("inf") else None


def _learning_rate(optimizer: "torch.optim.Optimizer | None") -> float | None:
    """The optimizer's first rate, before any warmup, if there is one."""
    if optimizer is None or not optimizer.param_groups:
        return None
    group = optimizer.param_groups[0]
    rate = float(group.get("initial_lr", group["lr"]))
    return rate if rate > 0 else None
