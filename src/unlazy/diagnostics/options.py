"""Options of `unlazy.watch` that most calls leave at their defaults."""

from collections.abc import Sequence
from dataclasses import dataclass

from unlazy.core.errors import check_positive_integer
from unlazy.models.protocol import Loss, OutputFunction

MEASURES = ("gap", "features", "kernel", "sharpness")


@dataclass(frozen=True)
class WatchOptions:
    """What a monitor measures, how accurately and where.

    Parameters
    ----------
    measures : sequence of {"gap", "features", "kernel", "sharpness"}
        All by default. The gap is always measured; sharpness needs `loss` and targets.
    points : int, optional
        Number of probe points of the gap. By default 64, and more as the stated error needs them, as far as there are.
    error : float, default 0.05
        Standard error that the number of probe points and of random vectors is chosen for: of the gap and of the
        kernel's movement, relative where they are above 1, absolute below.
    reference_on_host : bool, default False
        Keep the initial parameters in the memory of the CPU.
    loss : callable, optional
        Mean loss of the network's outputs and the targets, for the sharpness.
    output : callable, optional
        From what the network returns to its outputs, an array with one row per point.
    dtype : {"float32", "float64"}, optional
        Precision of all measures; by default that of the parameters.
    seed : int, default 0
        Of probe points and random vectors. The random state of the training is never touched.

    Raises
    ------
    ValueError
        If a measure is unknown, `points` is not a positive integer or `error` is not between 0 and 1.

    Examples
    --------
    >>> from unlazy import WatchOptions
    >>> WatchOptions(measures=("gap",)).error
    0.05
    """

    measures: Sequence[str] = MEASURES
    points: int | None = None
    error: float = 0.05
    reference_on_host: bool = False
    loss: Loss | None = None
    output: OutputFunction | None = None
    dtype: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.measures, str):
            raise ValueError(f"measures must be a sequence, got {self.measures!r}; pass ({self.measures!r},)")
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown:
            raise ValueError(f"unknown measure {unknown[0]!r}: choose from {', '.join(MEASURES)}")
        if self.points is not None:
            check_positive_integer("points", self.points, "or None, to choose it for the stated error")
        if self.loss is not None and not callable(self.loss):
            raise ValueError(f"loss must be a function of outputs and targets, got {self.loss!r}")
        if not 0 < self.error < 1:
            raise ValueError(f"error must be between 0 and 1, got {self.error!r}")
        object.__setattr__(self, "measures", tuple(name for name in MEASURES if name in ("gap", *self.measures)))
