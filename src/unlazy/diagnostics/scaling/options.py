"""Options of `unlazy.check_scaling` that most calls leave at their defaults."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unlazy.core.errors import check_positive_integer
from unlazy.models.protocol import OutputFunction


@dataclass(frozen=True)
class ScalingOptions:
    """How networks are trained to see how they scale.

    Parameters
    ----------
    steps : int, default 3
        Steps of training. One step says nothing about layers below a readout that starts at zero.
    seeds : int, default 2
        Networks of each size.
    loss : callable, optional
        Mean loss of outputs and targets, in the framework's own functions. By default cross-entropy for integer
        targets, otherwise the mean squared error.
    output : callable, optional
        From what the network returns to its outputs, an array with one row per point.
    centered : bool, default True
        Train f - f_0 instead of f. Initial outputs of a finite network shrink with the width and would bias slopes.
    coordinates : bool, default True
        Measure outputs of layers and the linearization gap too, which the verdict does not need.

    Raises
    ------
    ValueError
        If a number is not a positive integer.

    Examples
    --------
    >>> from unlazy import ScalingOptions
    >>> ScalingOptions(steps=5).seeds
    2
    """

    steps: int = 3
    seeds: int = 2
    loss: Callable[[Any, Any], Any] | None = None
    output: OutputFunction | None = None
    centered: bool = True
    coordinates: bool = True

    def __post_init__(self) -> None:
        check_positive_integer("steps", self.steps)
        check_positive_integer("seeds", self.seeds)
        if self.loss is not None and not callable(self.loss):
            raise ValueError(f"loss must be a function of outputs and targets, got {self.loss!r}")
