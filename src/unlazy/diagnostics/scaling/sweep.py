"""`unlazy.sweep_rates`: the best learning rate at several widths, and whether it transfers [T3]."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from unlazy.core.errors import check_positive_integer
from unlazy.diagnostics.scaling.networks.construction import batch_of, build
from unlazy.diagnostics.scaling.networks.frameworks import make_trainer
from unlazy.diagnostics.scaling.options import ScalingOptions

Number = TypeVar("Number", int, float)
RATES = tuple(2.0**-k for k in range(16, 0, -1))
EARLY, HOPELESS = 4, 3.0
"""Rates are first tried for this share of the steps; those with so many times the least loss go no further."""
BASIN = 1.25
"""Rates with up to so many times the least loss are as good as the best one."""
TRANSFER = 1.5
"""Largest drift of the best rate that still transfers."""


@dataclass(frozen=True)
class RateSweep:
    """Losses by width and learning rate, and the best rates.

    Attributes
    ----------
    widths : tuple of int
        Widths.
    rates : tuple of float
        Learning rates, in order.
    losses : dict of int to array of shape (seeds, rates)
        Loss after training at each width; NaN where training was stopped early or diverged.
    """

    widths: tuple[int, ...]
    rates: tuple[float, ...]
    losses: dict[int, np.ndarray]

    def best(self, width: int) -> tuple[float, float]:
        """The middle of the basin of good rates, and its standard error as a factor.

        The rate of least loss is noise within the basin; its geometric middle is not.

        Parameters
        ----------
        width : int
            Width.

        Returns
        -------
        rate, factor : float
            The factor is NaN for a single seed.
        """
        middles = np.array([_middle(self.rates, row) for row in self.losses[width]])
        error = float(np.std(middles, ddof=1)) / math.sqrt(len(middles)) if len(middles) > 1 else math.nan
        return math.exp(float(middles.mean())), math.exp(error)

    @property
    def drift(self) -> float:
        """Best rate of the largest width over that of the smallest."""
        return self.best(self.widths[-1])[0] / self.best(self.widths[0])[0]

    @property
    def cost(self) -> float:
        """Loss of the largest width at the best rate of the smallest, over its least loss."""
        losses = self.losses[self.widths[-1]].mean(0)  # NaN unless all seeds are finite
        chosen = int(np.argmin(np.abs(np.log(self.rates) - math.log(self.best(self.widths[0])[0]))))
        return float(losses[chosen] / np.nanmin(losses)) if math.isfinite(losses[chosen]) else math.inf

    @property
    def transfers(self) -> bool:
        """Whether the best rate drifts by at most a factor of 1.5."""
        return max(self.drift, 1 / self.drift) <= TRANSFER

    def __str__(self) -> str:
        small, large = self.widths[0], self.widths[-1]
        word = "transfers" if self.transfers else "does not transfer"
        lines = [f"The learning rate {word}: its best value changes by a factor of {self.drift:.2g} from width {small} "
                 f"to {large}."]  # fmt: skip
        for width in self.widths:
            rate, factor = self.best(width)
            spread = f" (times or over {factor:.2f})" if math.isfinite(factor) else ""
            lines.append(f"  width {width}: {rate:.3g}{spread}")
        known = f"{self.cost:.2g} times its least loss" if math.isfinite(self.cost) else "no finite loss"
        lines.append(f"At width {large} the best rate of width {small} reaches {known}.")
        return "\n".join(lines)


def sweep_rates(
    make: Callable[..., Any],
    data: tuple[Any, Any],
    *,
    optimizer: Callable[[Any, float], Any],
    widths: Sequence[int] = (64, 256),
    rates: Sequence[float] = RATES,
    steps: int = 100,
    options: ScalingOptions | None = None,
) -> RateSweep:
    """Find the best learning rate at every width by short training runs on one batch.

    All rates are tried for a quarter of the steps; only those that are not hopeless go on, with all seeds.

    Parameters
    ----------
    make : callable
        See `check_scaling`.
    data : tuple (inputs, targets)
        See `check_scaling`.
    optimizer : callable
        ``optimizer(network, rate)`` returns an optimizer; in JAX the rate may be traced, as in
        ``lambda network, rate: optax.adam(rate)``.
    widths : sequence of int, default (64, 256)
        Widths.
    rates : sequence of float
        Powers of 2 from 2^-16 to 1/2 by default.
    steps : int, default 100
        Steps of training.
    options : ScalingOptions, optional
        Seeds, loss and outputs; its number of steps is not used.

    Returns
    -------
    RateSweep
        Best rates with their errors, and whether they transfer.

    Raises
    ------
    ValueError
        If every rate diverges at some width, or the best one is at an end of the range.

    See Also
    --------
    unlazy.check_scaling : Which parameter prevents transfer, for less.

    Examples
    --------
    >>> import jax, numpy as np, optax
    >>> from unlazy import ScalingOptions, sweep_rates
    >>> def make(width, key):
    ...     w = jax.random.normal(key, (3, width)) / 2
    ...     return (lambda w, X: (X @ w).mean(1, keepdims=True)), w
    >>> X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    >>> found = sweep_rates(make, (X, X[:, :1]), optimizer=lambda network, rate: optax.adam(rate), widths=(8, 64),
    ...                     rates=[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64], steps=40, options=ScalingOptions(seeds=1))
    >>> found.transfers
    True
    """
    options = ScalingOptions() if options is None else options
    steps = check_positive_integer("steps", steps)
    rates = _ordered("rates", rates)
    widths = [check_positive_integer("every entry of widths", n) for n in _ordered("widths", widths)]
    inputs, targets = batch_of(data)
    trainer = make_trainer(make, optimizer, inputs, targets, options, build(make, {"width": widths[0]}))
    losses = {}
    for width in widths:
        early = np.array([trainer.final_loss(0, rate, max(1, steps // EARLY), width=width) for rate in rates])
        if not np.isfinite(early).any():
            raise ValueError(f"training diverges at width {width} with every rate: pass smaller rates")
        kept = np.isfinite(early) & (early <= HOPELESS * np.nanmin(np.where(np.isfinite(early), early, np.nan)))
        found = np.full((options.seeds, len(rates)), np.nan)
        for i in np.flatnonzero(kept):
            for seed in range(options.seeds):
                found[seed, i] = trainer.final_loss(seed, rates[i], steps, width=width)
        found[~np.isfinite(found)] = np.nan
        _check_inside(found, rates, width)
        losses[width] = found
    return RateSweep(tuple(widths), tuple(rates), losses)


def _ordered(name: str, values: Sequence[Number]) -> list[Number]:
    found = sorted(set(values))
    if len(found) < 2 or not all(0 < value < math.inf for value in found):
        raise ValueError(f"{name} must be at least two different positive numbers, got {list(values)!r}")
    return found


def _check_inside(found: np.ndarray, rates: Sequence[float], width: int) -> None:
    """The best rate must not be the smallest or the largest one."""
    means = np.array([np.nan if np.isnan(column).any() else column.mean() for column in found.T])
    if np.isnan(means).all():
        raise ValueError(f"training diverges at width {width} with every rate: pass smaller rates")
    best = int(np.nanargmin(means))
    if best in (0, len(rates) - 1):
        end = "smallest" if best == 0 else "largest"
        raise ValueError(f"the best rate at width {width} is the {end} one, {rates[best]:g}: extend the range of rates")


def _middle(rates: Sequence[float], losses: np.ndarray) -> float:
    """Logarithm of the geometric middle of the basin around the least loss."""
    best = int(np.nanargmin(losses))
    good = losses <= BASIN * losses[best]
    low = high = best
    while low > 0 and good[low - 1]:
        low -= 1
    while high < len(rates) - 1 and good[high + 1]:
        high += 1
    return (math.log(rates[low]) + math.log(rates[high])) / 2
