"""Options of training functions that most calls leave at their defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from unlazy.core.arrays import Points, Values
from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.core.progress import ProgressOption
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.methods.base import Method

if TYPE_CHECKING:
    from optax import GradientTransformation as GradientTransformation
else:
    GradientTransformation = Any  # Optax is imported by those who use one of its optimizers

SYMMETRIC = 4
"""Number of neurons that share one draw: (w, z), (w, -z), (-w, z), (-w, -z). f starts at zero exactly."""
Measure = Callable[[PyTree], PyTree[jax.Array]]
"""A function of the parameters."""
METRICS = ("full", "diagonal", "low_rank")


@dataclass(frozen=True, eq=False)
class DescentOptions:
    """Optimizer, batches, regularization and early stopping of `descend`.

    Parameters
    ----------
    optimizer : optax.GradientTransformation, optional
        Optimizer whose updates are multiplied by `rates`; plain gradient descent with `step_size` by default.
    batch_size : int, optional
        Points per step; all by default. Batches are reshuffled every epoch and need a `key`.
    decay : float or pytree, default 0.0
        Weight decay λ: a number, one per layer, or shaped like the parameters.
    rates : float or pytree, default 1.0
        Layer-wise learning rates r, in the same three shapes; 0 freezes a layer (see `only_layers`).
    label_noise : float, default 0.0
        Every label is shifted by ± this amount, drawn anew at every step [L11]; needs a `key`.
    stop_below : float, optional
        Stop once the mean training loss is at most this.
    patience : (str, int), optional
        `(name, k)` stops when the recorded measure has not improved k times in a row, and returns the parameters of its
        best value.

    Raises
    ------
    ValueError
        If `batch_size` or the count of `patience` is not a positive integer.

    Examples
    --------
    >>> import optax
    >>> from unlazy.training import DescentOptions
    >>> DescentOptions(optimizer=optax.adam(1e-3), batch_size=32, stop_below=1e-4).batch_size
    32
    """

    optimizer: GradientTransformation | None = None
    batch_size: int | None = None
    decay: PyTree = 0.0
    rates: PyTree = 1.0
    label_noise: ArrayLike = 0.0
    stop_below: ArrayLike | None = None
    patience: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        _check_batch_size(self.batch_size)
        if self.patience is not None:
            if not isinstance(self.patience, tuple) or len(self.patience) != 2:
                raise ValueError(f"patience must be (name of a recorded measure, count), got {self.patience!r}")
            check_positive_integer("patience (count)", self.patience[1])


@dataclass(frozen=True, eq=False)
class Recording:
    """Measures that are recorded during training.

    Parameters
    ----------
    measures : mapping of str to callable
        Functions of the parameters.
    every : int, optional
        Steps between records, a divisor of the number of steps; only the start and the end by default.

    Raises
    ------
    ValueError
        If `every` is not a positive integer.

    Examples
    --------
    >>> from unlazy.training import Recording
    >>> Recording({"size": lambda params: abs(params).max()}, every=10).every
    10
    """

    measures: Mapping[str, Measure] = field(default_factory=dict)
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            check_positive_integer("every (steps between records)", self.every)

    def steps_between(self, steps: int) -> int:
        """Return the number of steps between records.

        Parameters
        ----------
        steps : int
            Number of steps of the training.

        Returns
        -------
        int
            `every`, or all steps.

        Raises
        ------
        ValueError
            If `steps` is not a positive multiple of `every`.
        """
        check_positive_integer("steps", steps)
        every = self.every or steps
        if steps % every:
            raise ValueError(f"steps must be a multiple of every, got steps={steps} and every={every}")
        return every


@dataclass(frozen=True)
class RichOptions:
    """Sampling, integration and records of `rich_limit` and `rich_network`.

    Parameters
    ----------
    draws : int, default 4096
        Number of neurons that `rich_limit` draws, a multiple of 4 (symmetric sets).
    runs : int, default 4
        Number of independent runs or networks, from which the standard errors are computed.
    quasi : bool, default True
        Whether the draws of `rich_limit` are quasi-random.
    batch_size : int, optional
        Points per gradient step; all by default. Needs a `step_size`.
    tolerance : float, default 1e-3
        Error of f in one step of gradient flow, relative to the labels.
    stop_below : float, optional
        Stop at the first recorded time with a mean loss of at most this.
    keep_states : bool, default True
        Whether to store the neurons or weights at every time, which predictions at new points need.
    precision : {"float32", "float64"}, default "float64"
        Precision of the computation.
    progress : bool or callable, default False
        Whether to show a progress line for runs of more than three seconds. A callable is called with a
        `core.progress.Progress` at every recorded time.
    checkpoint : str, Path or Checkpoint, optional
        File from which an interrupted training resumes.

    Raises
    ------
    ValueError
        If a value is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP
    >>> from unlazy.training import RichOptions, rich_limit
    >>> X, y = np.array([[-1.0], [0.0], [1.0]]), np.array([-1.0, 0.0, 1.0])
    >>> options = RichOptions(draws=64, runs=2)
    >>> rich_limit(MLP(1), X, y, richness=1.0, times=[2], step_size=0.1, options=options).fitted.value.shape
    (1, 3)
    """

    draws: int = 4096
    runs: int = 4
    quasi: bool = True
    batch_size: int | None = None
    tolerance: float = 1e-3
    stop_below: float | None = None
    keep_states: bool = True
    precision: str = "float64"
    progress: ProgressOption = False
    checkpoint: str | Path | Checkpoint | None = None

    def __post_init__(self) -> None:
        check_draws(self.draws)
        check_positive_integer("runs", self.runs)
        _check_batch_size(self.batch_size)
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1, got {self.tolerance!r}")
        if self.precision not in ("float32", "float64"):
            raise ValueError(f"precision must be 'float32' or 'float64', got {self.precision!r}")


@dataclass(frozen=True)
class LangevinChains:
    """Discretization and number of the chains of `langevin`.

    Parameters
    ----------
    steps : int
        Number of steps; the first half is discarded.
    step_size : float
        ε, small compared with 1/(1 + λ_max(Θ)/λ); the bias is of that relative order.
    runs : int, default 4
        Number of independent networks.

    Raises
    ------
    ValueError
        If a value is not positive.

    Examples
    --------
    >>> from unlazy.training import LangevinChains
    >>> LangevinChains(steps=200, step_size=1e-3).runs
    4
    """

    steps: int
    step_size: float
    runs: int = 4

    def __post_init__(self) -> None:
        check_positive_integer("steps", self.steps)
        check_positive_integer("runs", self.runs)
        if not self.step_size > 0:
            raise ValueError(f"step_size must be positive, got {self.step_size!r}")


@dataclass(frozen=True, eq=False)
class RFMOptions:
    """Metric, bandwidth and solver of a recursive feature machine [D11].

    Parameters
    ----------
    metric : {"full", "diagonal", "low_rank"}, default "full"
        Kind of the metric M.
    rank : int, optional
        Number of directions of a low-rank metric; turns "full" into "low_rank".
    power : float or sequence of float, default 1.0
        M is AGOP to this power, one number or one per update. Below 1 the metric sharpens slowly, and directions can
        rotate before others are lost.
    start : array of shape (d, d) or (d,), optional
        Initial metric, such as W¹ᵀW¹ of Algorithm 1; isotropic by default.
    relative_bandwidth : float, optional
        Multiple of the default bandwidth (median distance, or root mean square norm) under the current metric; chosen
        by leave-one-out before the first update by default.
    gradients : int, default 5000
        Largest number of rows over which gradients are averaged.
    method : str or Method, optional
        Method of `solve`; by default one exact factorization if it fits in memory.
    tolerance : float, default 1e-3
        Tolerance of `solve`.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB". By default, a share of the available memory.

    Raises
    ------
    ValueError
        If a value is invalid.

    Examples
    --------
    >>> from unlazy.training import RFMOptions
    >>> RFMOptions(rank=2).metric
    'low_rank'
    """

    metric: str = "full"
    rank: int | None = None
    power: float | Sequence[float] = 1.0
    start: Points | None = None
    relative_bandwidth: float | None = None
    gradients: int = 5000
    method: str | Method | None = None
    tolerance: float = 1e-3
    memory: int | str | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}{did_you_mean(str(self.metric), METRICS)}")
        if self.metric == "full" and self.rank is not None:
            object.__setattr__(self, "metric", "low_rank")
        if self.metric == "low_rank":
            check_positive_integer("rank", self.rank, "metric='low_rank' keeps this many directions")
        elif self.rank is not None:
            raise ValueError(f"rank={self.rank!r} belongs to metric='low_rank', not to {self.metric!r}")
        check_positive_or_none("relative_bandwidth", self.relative_bandwidth)
        check_positive_integer("gradients", self.gradients)

    def powers(self, updates: int) -> list[float]:
        """Return one power for each update.

        Parameters
        ----------
        updates : int
            Number of updates.

        Returns
        -------
        list of float
            The powers.

        Raises
        ------
        ValueError
            If the number of powers differs.
        """
        one = isinstance(self.power, int | float)
        powers = [float(self.power)] * updates if one else [float(p) for p in self.power]  # type: ignore[arg-type,union-attr]
        if len(powers) != updates:
            raise ValueError(f"{updates} updates need {updates} powers, got {len(powers)}")
        return powers


@dataclass(frozen=True, eq=False)
class OneStepOptions:
    """The gradient step of `one_step` and its path of ridges.

    Parameters
    ----------
    scale : {"rms", "sqrt_d"}, default "rms"
        "rms": `step_size` is the root mean square norm of the rows of W¹. "sqrt_d": η1 = step_size·√d, as in the paper.
    biased_step : bool, default False
        Whether the biases are drawn before the gradient step and kept, as in the authors' script; Algorithm 1 of the
        paper steps at b = 0 and draws them afterward.
    relative_ridges : array of shape (l,), optional
        Ridges relative to the mean of ‖φ(x)‖²; 31 values from 1e-12 to 1e3 by default.

    Raises
    ------
    ValueError
        If `scale` is unknown.

    Examples
    --------
    >>> from unlazy.training import OneStepOptions
    >>> OneStepOptions(scale="sqrt_d").biased_step
    False
    """

    scale: str = "rms"
    biased_step: bool = False
    relative_ridges: Values | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)


def check_scale(scale: str) -> None:
    """Raise ValueError if the units of the first step are unknown."""
    if scale not in ("rms", "sqrt_d"):
        raise ValueError(f"scale must be 'rms' or 'sqrt_d', got {scale!r}")


def check_draws(draws: int) -> None:
    """Raise ValueError if `draws` is not a positive multiple of 4."""
    if check_positive_integer("draws", draws) % SYMMETRIC:
        raise ValueError(f"neurons are drawn in symmetric sets of {SYMMETRIC}, got draws={draws}: use a multiple")


def check_positive_or_none(what: str, value: float | None) -> None:
    """Raise ValueError unless the value is None or positive and finite."""
    if value is not None and not 0 < value < np.inf:
        raise ValueError(f"{what} must be positive or None (leave-one-out), got {value!r}")


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None:
        check_positive_integer("batch_size", batch_size)
