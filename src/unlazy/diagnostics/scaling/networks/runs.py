"""Short training runs at several sizes, for either framework."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from unlazy.diagnostics.scaling.rules import Measured
from unlazy.models.protocol import Inputs, Model, Params

LESS, LINEAR = 0.25, 0.6
"""An optimizer is linear in the gradient if updates at this share of the loss are below this share."""


class Run(NamedTuple):
    """A network before and after a few steps of training.

    Attributes
    ----------
    measured : Measured
        Its uses.
    losses : list of float
        Before each step.
    model : Model
        The network.
    start, trained : pytree
        Its parameters.
    inputs : array
        The batch.
    """

    measured: Measured
    losses: list[float]
    model: Model
    start: Params
    trained: Params
    inputs: Inputs


def check_losses(losses: Sequence[float], sizes: Mapping[str, int]) -> None:
    """Raise ValueError if training diverged."""
    if not all(math.isfinite(loss) for loss in losses):
        where = ", ".join(f"{name} {size}" for name, size in sizes.items())
        shown = ", ".join(f"{loss:.3g}" for loss in losses)
        raise ValueError(f"training diverges at {where} (losses {shown}): use a smaller learning rate")


def check_targets(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    """Raise ValueError if outputs and targets of the mean squared error do not match."""
    if math.prod(outputs) != math.prod(targets):
        raise ValueError(
            f"the network returns {tuple(outputs)} and the targets are {tuple(targets)}: pass integers for classes, or "
            "a loss in options"
        )


@runtime_checkable
class Runs(Protocol):
    """How networks of one framework are built and trained."""

    def shapes(self, **sizes: int) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the trainable parameters at one size."""
        ...

    def run(self, seed: int, **sizes: int) -> Run:
        """Train, and find all uses."""
        ...

    def linear(self, seed: int, **sizes: int) -> dict[str, bool]:
        """Whether the change of each parameter is proportional to the loss, as with SGD."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Training at a given learning rate."""

    def final_loss(self, seed: int, rate: float, steps: int, **sizes: int) -> float:
        """Loss after some steps; not finite if training diverged."""
        ...
