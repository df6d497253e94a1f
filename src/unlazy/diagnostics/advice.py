"""What would make a run lazier or richer: the law of the output scale [W6], its equivalents [T1], and their cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unlazy.diagnostics.measures.kernel_result import KernelMachine
from unlazy.diagnostics.verdict import LAZY_GAP, RICH_GAP, Verdict, log_odds

EXPONENT, EXPONENT_SPREAD = 1.0, 0.35
"""Prior mean and standard deviation of p in odds(g) ∝ α^-p, over architectures, activations and optimizers."""
SCALE_NOISE = 0.25
"""Standard deviation of the log-odds of one run about that law."""
SMALL_GAP = 0.1
"""Below this gap one run does not tell the exponent: smooth activations fall faster than 1/α, ReLU slower."""
MAX_WIDTH_FACTOR = 100.0
"""A width is not advised to grow or shrink by more than this."""
LEAST_SLOPE = 0.15
"""Below this growth s of odds(g) ∝ t^s the length of the run, and so the learning rate, hardly moves the gap."""


class ScaledRun(NamedTuple):
    """The gap at the end of a run at output scale α."""

    scale: float
    gap: float


class ScaleAdvice(NamedTuple):
    """An output scale for a requested gap.

    Attributes
    ----------
    scale : float
        α of α (f - f_0).
    low, high : float
        Its 95% interval.
    exponent : float
        p in odds(g) ∝ α^-p.
    """

    scale: float
    low: float
    high: float
    exponent: float


def advise_scale(runs: Sequence[ScaledRun], target_gap: float) -> ScaleAdvice:
    """Output scale α at which a run would end with the target gap, by odds(g) ∝ α^-p [W6].

    One run fixes the level, with p near 1; two runs fix the exponent too. Runs must train equally fast in function
    space: steps η/α² (gradient descent), or η/α with eps × α (Adam).

    Parameters
    ----------
    runs : sequence of ScaledRun
        Gaps at the end of runs at known α.
    target_gap : float
        Requested gap, between 0 and 1.

    Returns
    -------
    ScaleAdvice

    Raises
    ------
    ValueError
        If `target_gap` is not between 0 and 1, or there is no run with a finite gap.
    """
    if not 0 < target_gap < 1:
        raise ValueError(f"target_gap must be between 0 and 1, got {target_gap!r}: below 0.2 is lazy, above 0.6 rich")
    known = [run for run in runs if math.isfinite(run.gap) and run.scale > 0]
    if not known:
        raise ValueError(f"advice needs a run with a finite gap, got {list(runs)!r}: call check() at its end")
    y = np.array([log_odds(run.gap) for run in known])
    x = np.array([math.log(run.scale) for run in known])
    goal, origin = log_odds(target_gap), x[np.argmin(abs(y - log_odds(target_gap)))]
    # y = level - p (x - origin): flat prior on the level, normal on p
    design = np.stack([np.ones(len(x)), origin - x], 1)
    precision = design.T @ design / SCALE_NOISE**2 + np.diag([0, EXPONENT_SPREAD**-2])
    level, p = np.linalg.solve(precision, design.T @ y / SCALE_NOISE**2 + [0, EXPONENT / EXPONENT_SPREAD**2])
    p = max(p, 0.2)
    shift = (level - goal) / p
    slope = np.array([1 / p, -shift / p])
    spread = math.sqrt(slope @ np.linalg.inv(precision) @ slope + (SCALE_NOISE / p) ** 2)
    low, middle, high = (math.exp(origin + shift + z * spread) for z in (-1.96, 0, 1.96))
    return ScaleAdvice(middle, low, high, float(p))


class Lever(NamedTuple):
    """One change that would move a run to the requested gap.

    Attributes
    ----------
    name : str
        What to change.
    factor, low, high : float
        By what factor, with its 95% interval.
    change : str
        The change in words, with the rates it needs.
    law : str
        The law it rests on, and where it holds.
    cost : str
        What it costs.
    """

    name: str
    factor: float
    low: float
    high: float
    change: str
    law: str
    cost: str


@dataclass(frozen=True)
class Advice:
    """How to move a run to a requested gap, and whether it would pay; `print` shows it.

    Attributes
    ----------
    target_gap : float
        The requested linearization gap.
    gap : float
        That of the run, at its end.
    scale : ScaleAdvice or None
        Output scale α; None without a run to judge by.
    levers : tuple of Lever
        Equivalent changes.
    notes : tuple of str
        Limits of the advice, and whether richer would pay.
    """

    target_gap: float
    gap: float
    scale: ScaleAdvice | None = None
    levers: tuple[Lever, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.scale is None:
            return "\n".join(self.notes)
        way = "lazier" if self.target_gap < self.gap else "richer"
        lines = [f"For a linearization gap of {self.target_gap:.2g} in place of {self.gap:.2g} ({way}), any one of:"]
        lines += [f"- {lever.change} ({lever.law}; {lever.cost})." for lever in self.levers]
        return "\n".join([*lines, *self.notes])


def advise(
    verdict: Verdict,
    target_gap: float,
    *,
    scale: float = 1.0,
    earlier: Sequence[ScaledRun] = (),
    degree: float = math.nan,
    machine: KernelMachine | None = None,
) -> Advice:
    """Changes that would move a run to the target gap.

    Parameters
    ----------
    verdict : Verdict
        Of the run.
    target_gap : float
        Requested gap, between 0 and 1.
    scale : float, default 1.0
        Output scale α of the run.
    earlier : sequence of ScaledRun, default ()
        Other runs of the same network.
    degree : float, default NaN
        k with f(σθ_0) = σ^k f(θ_0), for the scale of the initialization; NaN if there is none.
    machine : KernelMachine, optional
        The tangent-kernel machine beside the network.

    Returns
    -------
    Advice
    """
    if verdict.word in ("broken", "too early") or verdict.forecast is None:
        reason = "is broken: lower the learning rate first" if verdict.word == "broken" else "is too young for advice"
        return Advice(target_gap, verdict.gap, notes=(f"This run {reason}.",))
    gap = verdict.forecast.gap
    found = advise_scale([*earlier, ScaledRun(scale, gap)], target_gap)
    factor = found.scale / scale
    bounds = found.low / scale, found.high / scale
    levers = [_output_scale(found, scale)]
    if degree > 1:
        levers.append(_initialization(factor, bounds, degree))
    levers += [*_width(factor, bounds), *_learning_rate(gap, target_gap, verdict.forecast.slope)]
    return Advice(target_gap, gap, found, tuple(levers), tuple(_notes(verdict, target_gap, earlier, machine)))


def _output_scale(found: ScaleAdvice, scale: float) -> Lever:
    factor, low, high = found.scale / scale, found.low / scale, found.high / scale
    change = (
        f"scale the output: train f_0 + α (f - f_0) with α = {_times(found.scale)} (95% interval {_times(found.low)} "
        f"to {_times(found.high)}), the learning rate of SGD times {_times(factor**-2)}, or that of Adam times "
        f"{_times(1 / factor)} and its eps times {_times(factor)}"
    )
    cost = "the same number of steps; f_0 is evaluated beside f, a third more time, with its parameters in memory"
    if factor < 1:
        cost += "; rich runs may need more steps, and a smaller rate where sharpness limits it"
    return Lever("output scale", factor, low, high, change, "odds(g) ∝ 1/α [W6]", cost)


def _initialization(factor: float, bounds: tuple[float, float], degree: float) -> Lever:
    sigma, low, high = (f ** (1 / degree) for f in (factor, *bounds))
    change = (
        f"multiply all initial parameters by σ = {_times(sigma)}, the learning rate of SGD by "
        f"{_times(sigma ** (2 - 2 * degree))}, or that of Adam by {_times(sigma ** (1 - degree))} and its eps by "
        f"{_times(sigma ** (degree - 1))}"
    )
    law = f"α = σ^{degree:.2g}, since f(σθ) = σ^{degree:.2g} f(θ) for this network; f_0 is scaled, too"
    return Lever("initialization scale", sigma, low, high, change, law, "the same number of steps")


def _width(factor: float, bounds: tuple[float, float]) -> list[Lever]:
    width, low, high = (f**2 for f in (factor, *bounds))
    if not 1 / MAX_WIDTH_FACTOR <= width <= MAX_WIDTH_FACTOR:
        return []
    change = f"multiply the width by {_times(width)}"
    law = (
        "g ∝ 1/√width in NTK parametrization, and in the standard one with SGD rates ∝ 1/width; no effect in maximal "
        "update parametrization [T1]"
    )
    cost = f"{_times(width**2)} times the computation of hidden layers"
    return [Lever("width", width, low, high, change, law, cost)]


def _learning_rate(gap: float, target: float, slope: float) -> list[Lever]:
    """The rate acts as the length of the run does, as long as the gap still grows with it."""
    if slope < LEAST_SLOPE:
        return []
    factor = math.exp((log_odds(target) - log_odds(gap)) / slope)
    if not 1e-2 < factor < 10:
        return []
    change = f"multiply the learning rate by {_times(factor)}, with the same number of steps"
    law = f"odds(g) ∝ (rate × steps)^{slope:.2g} in this run; stable rates only, and not once the loss has converged"
    cost = "less is learned" if factor < 1 else "nothing, if it remains stable"
    return [Lever("learning rate", factor, factor, factor, change, law, cost)]


def _notes(verdict: Verdict, target: float, earlier: Sequence[ScaledRun], machine: KernelMachine | None) -> list[str]:
    notes = []
    if not earlier:
        notes.append("From one run α is right within a factor of 2 in most cases; after a second run pass both.")
        if target < SMALL_GAP:
            notes.append(f"A gap below {SMALL_GAP} needs the second run: its exponent depends on the activation.")
    if machine is not None:
        notes.append(str(machine))
        if target > verdict.gap and machine.suffices:
            notes.append("Richer would hardly pay here: a fixed kernel does as well on the same data.")
    return notes


def default_target(verdict: Verdict) -> float:
    """The nearest other regime: rich for lazy and intermediate runs, lazy for rich ones."""
    return LAZY_GAP if verdict.word == "rich" else RICH_GAP


def _times(value: float) -> str:
    """Two digits, with thousands separated: 0.0016, 2.5, 1,800."""
    return f"{float(f'{value:.2g}'):,.10g}"
