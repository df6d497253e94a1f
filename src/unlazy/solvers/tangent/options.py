"""Options of uncertainty and attribution that most calls leave at their defaults."""

from collections.abc import Sequence
from dataclasses import dataclass

from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.core.progress import ProgressOption
from unlazy.models.protocol import OutputFunction

METHODS = ("auto", "primal", "dual", "iterative")


@dataclass(frozen=True)
class TangentOptions:
    """How the tangent model of a trained network is computed.

    Parameters
    ----------
    layers : sequence of str, optional
        Layers whose parameters count, by name or beginning of a name: the last layer, or the adapters of a fine-tuned
        network. All by default.
    method : {"auto", "primal", "dual", "iterative"}, default "auto"
        Factorize a matrix of the size of the parameters or of rows times outputs, or use conjugate gradients without
        a matrix. By default the smaller matrix, up to 8,192.
    tolerance : float, default 1e-4
        Relative residual of conjugate gradients.
    memory : int, default 2**31
        Bytes for derivatives that are kept; beyond, they are computed again when they are needed.
    output : callable, optional
        From what the network returns to its outputs, an array with one row per point.
    dtype : {"float32", "float64"}, optional
        Precision of derivatives; by default that of the parameters.
    progress : bool or callable, default False
        Whether to show progress.
    seed : int, default 0
        Of random vectors.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> from unlazy import TangentOptions
    >>> TangentOptions(layers=("head",)).method
    'auto'
    """

    layers: Sequence[str] | None = None
    method: str = "auto"
    tolerance: float = 1e-4
    memory: int = 2**31
    output: OutputFunction | None = None
    dtype: str | None = None
    progress: ProgressOption = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"unknown method {self.method!r}{did_you_mean(self.method, METHODS)}: choose from {', '.join(METHODS)}"
            )
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance!r}")
        check_positive_integer("memory", self.memory)
        if self.layers is not None and not len(self.layers):
            raise ValueError("layers is empty: pass None for all layers")
