"""Local rules of width scaling [T1, T2]: whether a use has the right exponents, whatever happens elsewhere.

Feature learning at every width needs ‖W‖_2 and ‖ΔW‖_2 of order √(n_out/n_in), so that each use, given inputs of order
1, makes outputs and changes of outputs of order 1. Every rule looks at one use alone, relative to its own input; an
error upstream or downstream is not attributed to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from unlazy.diagnostics.scaling.networks.uses import Trace, Use
from unlazy.diagnostics.scaling.slopes import Slope, fit_slope, smaller

Quantity: TypeAlias = Literal["initialization", "rate", "attention"]
LIMITS: dict[Quantity, float] = {"initialization": 0.15, "rate": 0.3, "attention": 0.2}
"""Exponents beyond these are errors. Finite widths and few seeds bias correct ones by less."""
CONSTANT = 0.1
"""Sizes with a smaller exponent do not grow."""
READOUT = -0.5
"""Largest right exponent of a readout's initial output."""


class Measured(NamedTuple):
    """One training run: its size, its uses, and the rates of optimizers that are linear in the gradient.

    Attributes
    ----------
    sizes : mapping of str to int
        Its width, and its depth if there are several.
    trace : Trace
        Its uses.
    rates : mapping of str to float
        ‖Δp‖/‖gradient‖ of each parameter in its first step.
    """

    sizes: Mapping[str, int]
    trace: Trace
    rates: Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """One exponent of one use.

    Attributes
    ----------
    name : str
        Parameter, or module of the attention.
    quantity : {"initialization", "rate", "attention"}
        What was measured.
    role : str
        "hidden", "input", "readout", "lookup", "vector" or "attention".
    excess : Slope
        Exponent minus the right one.
    wrong : bool
        Whether it is beyond its limit.
    axis : {"width", "depth"}
        What the exponent belongs to.
    """

    name: str
    quantity: Quantity
    role: str
    excess: Slope
    wrong: bool
    axis: str = "width"

    @property
    def severity(self) -> float:
        """Excess in units of its limit."""
        return abs(self.excess.value) / LIMITS[self.quantity] if self.excess.known else 0.0


def find(runs: Sequence[Measured], linear: Mapping[str, bool]) -> list[Finding]:
    """All exponents of all uses with a growing axis, the largest errors first.

    Parameters
    ----------
    runs : sequence of Measured
        Runs at two or more widths; all traces have the same uses.
    linear : mapping of str to bool
        Whether the optimizer's change of a parameter is proportional to the gradient (SGD), not normalized (Adam).
    """
    found: list[Finding] = []
    for i, first in enumerate(runs[0].trace.uses):
        uses = [run.trace.uses[i] for run in runs]
        growth = growth_of([run.sizes["width"] for run in runs], uses)
        if growth.role == "fixed":
            continue
        found.append(_initialization(first, uses, runs, growth))
        found.append(_rate(first, uses, runs, growth, linear))
    for i, attention in enumerate(runs[0].trace.attention):
        excess = _slope(runs, [run.trace.attention[i].scale for run in runs])
        wrong = excess.known and abs(excess.value) > LIMITS["attention"]
        found.append(Finding(attention.name, "attention", "attention", excess, wrong))
    return sorted(found, key=lambda finding: (not finding.wrong, -finding.severity))


class Growth(NamedTuple):
    """Exponents of the sizes of a use, and its role."""

    fan_in: float
    fan_out: float
    features: float
    role: str
    multiplier: float
    gain: float


def growth_of(widths: Sequence[int], uses: Sequence[Use]) -> Growth:
    """How one use grows from width to width."""

    def exponent(name: str) -> float:
        return fit_slope(widths, [getattr(use, name) for use in uses]).value

    # a constant size has an exponent of 0 up to rounding
    sizes = (exponent(name) for name in ("fan_in", "fan_out", "features"))
    fan_in, fan_out, features = (0.0 if abs(size) < CONSTANT else size for size in sizes)
    kind = uses[0].kind
    if kind == "matrix":
        roles = {(True, True): "hidden", (False, True): "input", (True, False): "readout", (False, False): "fixed"}
        role = roles[fan_in > 0, fan_out > 0 or features > 0]
    else:
        role = kind if features > 0 else "fixed"
    gain = exponent("frobenius_gain" if kind == "matrix" else "gain")
    return Growth(fan_in, fan_out, features, role, exponent("multiplier"), gain)


def _initialization(first: Use, uses: Sequence[Use], runs: Sequence[Measured], growth: Growth) -> Finding:
    right = READOUT if growth.role == "readout" else 0.0
    excess = _slope(runs, [use.gain for use in uses]) + -right
    if first.kind == "matrix":
        excess = smaller(excess, _slope(runs, [use.frobenius_gain for use in uses]) + -right)
    # a readout may start smaller, a bias or gain too
    size = excess.value if growth.role in ("readout", "vector") else abs(excess.value)
    wrong = excess.known and first.kind != "other" and size > LIMITS["initialization"]
    return Finding(first.name, "initialization", growth.role, excess, bool(wrong))


def _rate(
    first: Use, uses: Sequence[Use], runs: Sequence[Measured], growth: Growth, linear: Mapping[str, bool]
) -> Finding:
    name = first.parameters[0]
    if len(first.parameters) == 1 and linear.get(name) and first.kind != "other":
        # ΔW = ηm²δxᵀ with δ ∝ 1/features, so that ΔWx is of order ηm²·fan_in/features
        effective = [run.rates.get(name, 0.0) * use.multiplier**2 for run, use in zip(runs, uses)]
        right = growth.features - (growth.fan_in if first.kind == "matrix" else 0.0)
        excess = _slope(runs, effective) + -right
    else:
        excess = _slope(runs, [use.contribution for use in uses])
        if first.kind == "matrix":
            excess = smaller(excess, _slope(runs, [use.spectral for use in uses]))
    wrong = excess.known and abs(excess.value) > LIMITS["rate"]
    return Finding(first.name, "rate", growth.role, excess, wrong)


def _slope(runs: Sequence[Measured], values: Sequence[float]) -> Slope:
    return fit_slope([run.sizes["width"] for run in runs], values)
