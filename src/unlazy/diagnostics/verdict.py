"""Lazy, intermediate or rich, from the linearization gap of a run and its extrapolation to the planned length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

LAZY_GAP, RICH_GAP = 0.2, 0.6
"""A run is lazy if its gap at the end is below the first, rich above the second."""
BROKEN_GAP, STUCK_LOSS = 1.2, 0.9
"""A gap above the first while the loss is above this share of that at initialization is a broken run."""
EARLY = 0.2
"""Share of the planned steps before which no verdict is given."""
MIN_STEPS = 10
"""The same, in steps, where the length is not known."""
SURE = 0.95
"""Below this probability the verdict states it."""
STILL, MOVED = 0.1, 0.4
"""A layer has not moved if its outputs changed by less than the first, relative to initialization; it has moved
above the second."""
SLOPE, SLOPE_SPREAD = 0.6, 0.4
"""Prior mean and standard deviation of s in odds(g) ∝ t^s."""
CHECK_NOISE = 0.15
"""Standard deviation of the log-odds of one check about that law, besides the error of the gap."""
DRIFT = 1.0
"""Standard deviation of the change of the log-odds per unit of log time that the law does not foresee. So wide that the
intervals at 30% of the steps held the gap at the end in 99 of 104 runs of benchmarks/watch_truth.py (0.5: 84), on which
it was chosen."""
WINDOW = 8.0
"""Checks of the last steps enter the extrapolation, from step/WINDOW on."""
LEAST, MOST = 1e-6, 0.99
"""Gaps are clipped to this range before log-odds are taken: those of rich runs may exceed 1."""


class GapPoint(NamedTuple):
    """The gap at one step, with its standard error."""

    step: int
    gap: float
    standard_error: float = 0.0


class Forecast(NamedTuple):
    """The gap at a later step.

    Attributes
    ----------
    gap, low, high : float
        Median and 95% interval.
    slope : float
        s in odds(g) ∝ t^s over the last checks.
    probabilities : mapping from str to float
        Of lazy, intermediate and rich.
    """

    gap: float
    low: float
    high: float
    slope: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """The regime of a run, with its evidence; `print` shows the sentences.

    Attributes
    ----------
    word : str
        "lazy", "intermediate", "rich", "broken" or "too early".
    step : int
        Step of the last check.
    gap, standard_error : float
        Linearization gap [W1] at this step.
    forecast : Forecast or None
        At the end of the run; None without a check.
    layers : mapping from str to str
        "still", "moving" or "moved" per layer.
    text : str
        The verdict in words.
    """

    word: str
    step: int = 0
    gap: float = math.nan
    standard_error: float = math.nan
    forecast: Forecast | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def __str__(self) -> str:
        return self.text


def regime(gap: float) -> str:
    """ "lazy", "intermediate" or "rich", by the gap at the end of a run."""
    return "lazy" if gap < LAZY_GAP else "rich" if gap > RICH_GAP else "intermediate"


def layer_state(movement: float) -> str:
    """ "still", "moving" or "moved", by the relative movement of a layer's outputs."""
    return "still" if movement < STILL else "moved" if movement > MOVED else "moving"


def log_odds(gap: float) -> float:
    """log g/(1 - g), finite for every g."""
    g = min(max(gap, LEAST), MOST)
    return math.log(g / (1 - g))


def from_log_odds(value: float) -> float:
    """Inverse of `log_odds`."""
    return 1 / (1 + math.exp(-value))


def forecast(points: Sequence[GapPoint], planned_steps: int | None) -> Forecast:
    """Extrapolate odds(g) ∝ t^s from the last checks to the planned length of the run.

    A linear model of the log-odds in log t, with a normal prior on s (one check alone gives no slope), anchored at the
    last check. Without a planned length, or at its end, the forecast is the last check with its standard error.

    Parameters
    ----------
    points : sequence of GapPoint
        Checks with a finite gap, in order of steps; at least one.
    planned_steps : int, optional
        Length of the run.

    Returns
    -------
    Forecast
    """
    last = points[-1]
    used = [p for p in points if p.step >= last.step / WINDOW]
    x = np.array([math.log(p.step / last.step) for p in used])
    y = np.array([log_odds(p.gap) for p in used])
    noise = CHECK_NOISE**2 + np.array([_error_of_log_odds(p) ** 2 for p in used])
    weight = 1 / noise
    # posterior of (level at the last step, s) under a flat prior on the level and a normal one on s
    precision = np.array([[weight.sum(), weight @ x], [weight @ x, weight @ x**2 + SLOPE_SPREAD**-2]])
    level, slope = np.linalg.solve(precision, [weight @ y, weight @ (x * y) + SLOPE / SLOPE_SPREAD**2])
    covariance = np.linalg.inv(precision)
    ahead = math.log(planned_steps / last.step) if planned_steps and planned_steps > last.step else 0.0
    if ahead == 0:
        center, variance = y[-1], _error_of_log_odds(last) ** 2
    else:
        at = np.array([1.0, ahead])
        center, variance = float(at @ (level, slope)), float(at @ covariance @ at) + (DRIFT * ahead) ** 2
    spread = math.sqrt(variance)
    low, high = (from_log_odds(center + z * spread) for z in (-1.96, 1.96))
    edges = [_below(log_odds(edge), center, spread) for edge in (LAZY_GAP, RICH_GAP)]
    chances = {"lazy": edges[0], "intermediate": edges[1] - edges[0], "rich": 1 - edges[1]}
    gap = last.gap if ahead == 0 else from_log_odds(center)
    return Forecast(gap, low, high, float(slope), chances)


def _error_of_log_odds(point: GapPoint) -> float:
    g = min(max(point.gap, LEAST), MOST)
    return point.standard_error / (g * (1 - g)) if math.isfinite(point.standard_error) else 0.0


def _below(edge: float, center: float, spread: float) -> float:
    return math.erfc((center - edge) / (spread * math.sqrt(2))) / 2 if spread > 0 else float(center < edge)


def decide(
    points: Sequence[GapPoint],
    planned_steps: int | None = None,
    *,
    losses: tuple[float, float] | None = None,
    layers: Mapping[str, float] | None = None,
    finite: bool = True,
) -> Verdict:
    """The verdict of a run from its checks.

    Parameters
    ----------
    points : sequence of GapPoint
        The checks, in order of steps.
    planned_steps : int, optional
        Length of the run.
    losses : tuple of float, optional
        Loss on the probe points at initialization and now.
    layers : mapping from str to float, optional
        Relative movement of every hidden layer's outputs.
    finite : bool, default True
        Whether the parameters and outputs are finite.

    Returns
    -------
    Verdict
    """
    states = {name: layer_state(value) for name, value in (layers or {}).items()}
    last = points[-1] if points else None
    if not finite:
        step = last.step if last else 0
        return Verdict(
            "broken", step, layers=states, text="Broken: the network's outputs or parameters are not finite."
        )
    points = [p for p in points if math.isfinite(p.gap) and p.step > 0]
    if last is None or not points:
        unchanged = " the function has not changed on the probe points." if last else " no check was taken yet."
        return Verdict("too early", last.step if last else 0, layers=states, text="Too early to say:" + unchanged)
    last = points[-1]
    ahead = forecast(points, planned_steps)
    found = {"step": last.step, "gap": last.gap, "standard_error": last.standard_error, "layers": states}
    at = f"step {last.step}" + (f" of {planned_steps}" if planned_steps else "")
    measured = f"the linearization gap is {_with_error(last.gap, last.standard_error)} at {at}"
    stuck = losses is not None and losses[1] > STUCK_LOSS * losses[0]
    if last.gap > BROKEN_GAP and stuck:
        text = (
            f"Broken rather than rich: {measured} while the loss on the probe points went from {losses[0]:.3g} to "  # type: ignore[index]
            f"{losses[1]:.3g}. Lower the learning rate."  # type: ignore[index]
        )
        return Verdict("broken", forecast=ahead, text=text, **found)  # type: ignore[arg-type]
    early = last.step < EARLY * planned_steps if planned_steps else last.step < MIN_STEPS
    if early:
        wait = f"{math.ceil(EARLY * planned_steps)}" if planned_steps else f"{MIN_STEPS}"
        text = f"Too early to say: {measured}; every run looks lazy at first. A verdict comes from step {wait} on."
        return Verdict("too early", forecast=ahead, text=text, **found)  # type: ignore[arg-type]
    word = regime(ahead.gap)
    text = f"{word.capitalize()}{'' if planned_steps else ' so far'}: {measured}"
    if planned_steps and planned_steps > last.step:
        text += f" and heads for {ahead.gap:.2g} (95% interval {ahead.low:.2g} to {ahead.high:.2g})"
    if ahead.probabilities[word] < SURE:
        text += f", {word} with probability {ahead.probabilities[word]:.0%}"
    text += f". {MEANING[word]}"
    if sentence := describe_layers(states):
        text += f" {sentence}"
    return Verdict(word, forecast=ahead, text=text, **found)  # type: ignore[arg-type]


MEANING = {
    "lazy": "The network acts as a kernel machine with the tangent kernel of its starting weights.",
    "intermediate": "Part of the change is that of a fixed tangent kernel, part of it is feature learning.",
    "rich": "The network learns features: no fixed tangent kernel describes this run.",
}


def describe_layers(states: Mapping[str, str]) -> str:
    """One sentence on hidden layers that have not moved and those that have; empty if there are none."""
    names = list(states)
    still = [name for name in names if states[name] == "still"]
    moved = [name for name in names if states[name] == "moved"]
    if not names:
        return ""
    if len(still) == len(names):
        return "No hidden layer has moved; the readout fits a fixed kernel."
    parts = []
    for chosen, verb in ((still, "not moved"), (moved, "learned features")):
        if chosen:
            has = "has" if len(chosen) == 1 and len(names) > 1 else "have"
            parts.append(f"{_layer_list(chosen, names)} {has} {verb}")
    if not parts:
        return "All hidden layers have moved a little."
    sentence = "; ".join(parts)
    return sentence[0].upper() + sentence[1:] + "."


def _layer_list(chosen: Sequence[str], names: Sequence[str]) -> str:
    """ "layers 1–3 (a … c)": runs of neighboring layers by number, the names of the first and last."""
    if len(chosen) == len(names):
        return "all hidden layers"
    at = [names.index(name) for name in chosen]
    runs: list[list[int]] = []
    for i in at:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    texts = [f"{r[0] + 1}" if len(r) == 1 else f"{r[0] + 1}–{r[-1] + 1}" for r in runs]
    shown = [f"{names[r[0]]}" if len(r) == 1 else f"{names[r[0]]} … {names[r[-1]]}" for r in runs]
    if len(shown) > 3:
        shown = [*shown[:3], "…"]
    return f"layer{'s' if len(at) > 1 else ''} {', '.join(texts)} ({', '.join(shown)})"


def _with_error(value: float, error: float) -> str:
    """A value to two digits of its standard error, with the error where it is known."""
    return f"{value:.2g} ± {error:.1g}" if math.isfinite(error) and error > 0 else f"{value:.2g}"
