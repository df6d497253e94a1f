"""`unlazy.watch` in the `Trainer` of Hugging Face transformers."""

from typing import Any

from transformers import TrainerCallback

from unlazy.diagnostics.callbacks.base import WatchCallback


class TransformersWatch(WatchCallback, TrainerCallback):
    """Watch the training of a Hugging Face `Trainer`; its attribute `monitor` has the verdict.

    It counts steps of the optimizer and knows their planned number and the learning rate. In distributed training the
    first process watches. Changes count from the parameters at the beginning of the training: pretrained ones in
    fine-tuning.

    Parameters
    ----------
    probe_inputs : dict of arrays, or array
        Some 64 to 1,000 typical inputs, as the network takes them, such as what a tokenizer returns for a batch.
    probe_targets : array, optional
        Their targets: class labels or numbers. They are not passed to the network.
    network : str, default ""
        Name of the submodule to watch; the whole model by default.
    every : int or {"auto"}, default "auto"
        Steps of the optimizer between checks; "auto" keeps their measured time within 3% of the training time.
    step_size : float, optional
        Learning rate; that of the optimizer by default.
    log : callable, optional
        Called after every check with a dictionary of numbers, such as `wandb.log`.
    reference : module or state_dict, optional
        Parameters that changes are counted from.
    options : WatchOptions, optional
        Measures, accuracy, precision and loss.
    path : str or Path, optional
        JSON file that the record is saved to at the end, for ``unlazy watch``.

    See Also
    --------
    unlazy.watch : what is measured.

    Examples
    --------
    >>> import torch
    >>> from unlazy.diagnostics.callbacks import TransformersWatch
    >>> probes = {"input_ids": torch.randint(0, 100, (64, 16))}
    >>> watching = TransformersWatch(probes, path="run.json")
    >>> watching.monitor is None  # until Trainer(..., callbacks=[watching]).train()
    True
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        if state.is_world_process_zero:
            self._begin(kwargs["model"], lambda: state.max_steps - state.global_step, kwargs.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step of the optimizer."""
        self._step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the record."""
        self._end()
