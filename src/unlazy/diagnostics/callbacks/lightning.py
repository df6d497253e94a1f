"""`unlazy.watch` in a Lightning trainer, of the package `lightning` or `pytorch_lightning`."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from unlazy.diagnostics.callbacks.base import WatchCallback

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """Callback of the package that the user has imported (of both, if both are), or else of one that is installed."""
    found = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if not found:
        installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
        if not installed:
            raise ImportError("LightningWatch needs Lightning: pip install lightning")
        found = [import_module(installed[0])]
    return type("Callback", tuple(module.Callback for module in found), {})


_Callback = _callback_class()


class LightningWatch(WatchCallback, _Callback):  # type: ignore[misc]
    """Watch the training of a Lightning trainer; its attribute `monitor` has the verdict.

    It counts steps of the optimizer, knows their planned number and the learning rate, and logs the numbers of every
    check to the trainer's loggers. In distributed training the first process watches. Changes count from the parameters
    at the beginning of the training, those of a checkpoint if it resumes from one.

    Parameters
    ----------
    probe_inputs : array, or tuple or dict of arrays
        Some 64 to 1,000 typical inputs, as the network takes them.
    probe_targets : array, optional
        Their targets: class labels or numbers.
    network : str, default ""
        Name of the submodule to watch, such as "model", where the Lightning module itself is no network.
    every : int or {"auto"}, default "auto"
        Steps of the optimizer between checks; "auto" keeps their measured time within 3% of the training time.
    step_size : float, optional
        Learning rate; that of the first optimizer by default.
    log : callable, optional
        Called after every check with a dictionary of numbers, in place of the trainer's loggers.
    reference : module or state_dict, optional
        Parameters that changes are counted from, such as pretrained ones.
    options : WatchOptions, optional
        Measures, accuracy, precision and loss.
    path : str or Path, optional
        JSON file that the record is saved to at the end, for ``unlazy watch``.

    Raises
    ------
    ImportError
        If neither `lightning` nor `pytorch_lightning` is installed.

    See Also
    --------
    unlazy.watch : what is measured.

    Examples
    --------
    >>> import torch
    >>> from unlazy.diagnostics.callbacks import LightningWatch
    >>> watching = LightningWatch(torch.randn(64, 3), network="model", path="run.json")
    >>> watching.monitor is None  # until Trainer(callbacks=[watching]).fit(...)
    True
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._counted = trainer.global_step
        if not trainer.is_global_zero:
            return

        def log(numbers: dict) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        remaining = lambda: trainer.estimated_stepping_batches - self._counted  # noqa: E731
        self._begin(pl_module, remaining, optimizer, log)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Count a step, unless the batch only added to the gradient."""
        if trainer.global_step > self._counted:
            self._counted = trainer.global_step
            self._step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the record."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the record of a run that was interrupted."""
        self._end()
