"""A claim: a statement of theory held against a measurement, with a verdict by a rule fixed before the run."""

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True)
class Claim:
    """One row of the table: statement, its tag in the theory, what is predicted, what was measured, the verdict.

    `low` and `high` bound the measured value (an interval or ± standard errors; `interval` says which).
    """

    statement: str
    tag: str
    predicted: str
    measured: float
    low: float
    high: float
    verdict: Verdict
    interval: str = ""

    @property
    def measured_text(self) -> str:
        """The measurement with its uncertainty, to the digits that mean something."""
        if not math.isfinite(self.measured):
            return "not measured"
        if not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low == self.high:
            return f"{self.measured:.3g}"
        return f"{self.measured:.3g} [{self.low:.3g}, {self.high:.3g}]"


def within(
    statement: str, tag: str, measured: float, low: float, high: float, *,
    error: float = 0.0, predicted: str = "", interval: str = "± 2 standard errors",
) -> Claim:  # fmt: skip
    """Holds when low ≤ measured ≤ high; undecided when only the uncertainty ±2·error could bring it inside or out.

    `error` is one standard error of `measured`.
    """
    bottom, top = measured - 2 * error, measured + 2 * error
    if not math.isfinite(measured):
        verdict: Verdict = "undecided"
    elif low <= bottom and top <= high:
        verdict = "holds"
    elif top < low or bottom > high:
        verdict = "does not hold"
    else:
        verdict = "undecided"
    text = predicted or _range_text(low, high)
    return Claim(statement, tag, text, float(measured), bottom, top, verdict, interval if error else "")


def at_most(statement: str, tag: str, measured: float, bound: float, **kwargs) -> Claim:
    """Holds when measured ≤ bound; `error` as in `within`."""
    return within(statement, tag, measured, -math.inf, bound, **kwargs)


def at_least(statement: str, tag: str, measured: float, bound: float, **kwargs) -> Claim:
    """Holds when measured ≥ bound; `error` as in `within`."""
    return within(statement, tag, measured, bound, math.inf, **kwargs)


def consistent(
    statement: str, tag: str, measured: float, expected: float, error: float, *, width: float = 4.0, floor: float = 0.0
) -> Claim:
    """Holds when |measured - expected| ≤ width·error + floor: a theory value that the measurement may not contradict.

    `error` is the standard error of the measurement; `floor` a derived bound on its bias (rounding, finite width).
    """
    allowed = width * error + floor
    if not math.isfinite(measured) or not math.isfinite(error):
        verdict: Verdict = "undecided"
    else:
        verdict = "holds" if abs(measured - expected) <= allowed else "does not hold"
    return Claim(
        statement, tag, f"{expected:.4g}", float(measured), measured - 2 * error, measured + 2 * error, verdict,
        "± 2 standard errors",
    )  # fmt: skip


def interval_claim(
    statement: str, tag: str, measured: float, low: float, high: float, holds: bool, predicted: str, interval: str
) -> Claim:
    """A claim whose interval (a bootstrap, say) and verdict the experiment computed by its own stated rule."""
    finite = all(map(math.isfinite, (measured, low, high)))
    verdict: Verdict = "undecided" if not finite else "holds" if holds else "does not hold"
    return Claim(statement, tag, predicted, float(measured), float(low), float(high), verdict, interval)


def _range_text(low: float, high: float) -> str:
    if low == -math.inf:
        return f"≤ {high:.4g}"
    if high == math.inf:
        return f"≥ {low:.4g}"
    return f"in [{low:.4g}, {high:.4g}]"
