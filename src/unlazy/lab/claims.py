"""A claim: a statement of theory held against a measurement, with a verdict by a rule fixed before the run."""

import math
import re
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "undecided"]
Basis = Literal["theory", "value", "chosen", "derived"]
BASES: dict[Basis, str] = {
    "theory": "predicted by theory",
    "value": "value predicted by theory, tolerance chosen",
    "chosen": "bound chosen before the run",
    "derived": "bound derived: rounding, chance or another measurement",
}
"""Where the number under "theory" comes from."""
BARELY = ", barely: its interval crosses the bound"


@dataclass(frozen=True)
class Claim:
    """One row of the table: statement, its tag in the theory, what is predicted, what was measured, the verdict.

    `low` and `high` bound the measured value (an interval or ± standard errors; `interval` says which); `least` and
    `most` bound what is asked of it. `basis` says where the asked number comes from.
    """

    statement: str
    tag: str
    predicted: str
    measured: float
    low: float
    high: float
    verdict: Verdict
    interval: str = ""
    least: float = -math.inf
    most: float = math.inf
    basis: Basis = "chosen"

    @property
    def barely(self) -> bool:
        """The value decides, but its interval reaches to the other side of the bound."""
        if self.verdict == "holds":
            return self.low < self.least or self.high > self.most
        return self.verdict == "does not hold" and self.low <= self.most and self.high >= self.least

    @property
    def verdict_text(self) -> str:
        """The verdict, with a word where the interval crosses the bound."""
        return self.verdict + (BARELY if self.barely else "")

    @property
    def basis_text(self) -> str:
        """Where the number under "theory" comes from, in words."""
        return BASES[self.basis]

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
    error: float = 0.0, predicted: str = "", interval: str = "± 2 standard errors", basis: Basis | None = None,
) -> Claim:  # fmt: skip
    """Holds when low ≤ measured ≤ high; undecided when only the uncertainty ±2·error could bring it inside or out.

    `error` is one standard error of `measured`; `basis` is read off the text of `predicted` where it is not given.
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
    return Claim(
        statement, tag, text, float(measured), bottom, top, verdict, interval if error else "", float(low), float(high),
        basis or basis_of(text),
    )  # fmt: skip


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
        "± 2 standard errors", expected - allowed, expected + allowed, "theory",
    )  # fmt: skip


def interval_claim(
    statement: str, tag: str, measured: float, low: float, high: float, holds: bool, predicted: str, interval: str,
    basis: Basis | None = None, fails: bool | None = None,
) -> Claim:  # fmt: skip
    """A claim whose interval (a bootstrap, say) and verdict the experiment computed by its own stated rule.

    Where `fails` is given, what neither holds nor fails (an interval that straddles its bound) is undecided. A bound is
    read off `predicted` (≤ 0.8, > 0, 0.05 to 0.13), so that an interval which crosses it is said to.
    """
    finite = all(map(math.isfinite, (measured, low, high)))
    straddles = fails is False and not holds
    verdict: Verdict = "undecided" if not finite or straddles else "holds" if holds else "does not hold"
    return Claim(
        statement, tag, predicted, float(measured), float(low), float(high), verdict, interval, *asked(predicted),
        basis or basis_of(predicted),
    )  # fmt: skip


_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def asked(predicted: str) -> tuple[float, float]:
    """The bounds that a text such as '≤ 0.8', '> 0', 'in [0.9, 1.1]' or '0.05 to 0.13' asks for; else none.

    >>> asked("≤ 0.8"), asked("0.05 to 0.13"), asked("2 = p/2")
    ((-inf, 0.8), (0.05, 0.13), (-inf, inf))
    """
    if found := re.match(rf"[≤<] ({_NUMBER})(?![\d.e]| ×)", predicted):
        return -math.inf, float(found[1])
    if found := re.match(rf"[≥>] ({_NUMBER})(?![\d.e]| ×)", predicted):
        return float(found[1]), math.inf
    if found := re.match(rf"(?:in \[)?({_NUMBER})(?:, | to )({_NUMBER})\]?$", predicted):
        return float(found[1]), float(found[2])
    return -math.inf, math.inf


def basis_of(predicted: str) -> Basis:
    """Where the number of such a text comes from, unless the claim says otherwise.

    A sign is theory's. So is a value that stands alone; with a tolerance (±, allowed) only the value is. Bounds are
    chosen.

    >>> [basis_of(text) for text in ("> 0", "2 = p/2", "-1/2 ± 0.1", "≤ 0.3", "all")]
    ['theory', 'theory', 'value', 'chosen', 'chosen']
    """
    if re.fullmatch(r"[<>≤≥] 0", predicted):
        return "theory"
    if "±" in predicted or "allowed" in predicted:
        return "value"
    value = re.match(_NUMBER, predicted) and asked(predicted) == (-math.inf, math.inf)
    return "theory" if value else "chosen"


def _range_text(low: float, high: float) -> str:
    if low == -math.inf:
        return f"≤ {high:.4g}"
    if high == math.inf:
        return f"≥ {low:.4g}"
    return f"in [{low:.4g}, {high:.4g}]"
