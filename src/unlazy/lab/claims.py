"""Claims: statements of theory compared with measurements, with a verdict by a rule fixed before the run."""

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["holds", "does not hold", "undecided"]
Basis = Literal["theory", "value", "chosen", "derived"]
BASES: dict[Basis, str] = {
    "theory": "predicted by theory",
    "value": "value predicted by theory, tolerance chosen",
    "chosen": "bound chosen before the run",
    "derived": "bound derived: rounding, chance or another measurement",
}
"""Origin of the predicted value or bound."""
BARELY = ", barely: its interval crosses the bound"
"""Suffix of the verdict of a claim whose interval crosses the bound."""


@dataclass(frozen=True)
class Claim:
    """One row of the table of claims.

    Parameters
    ----------
    statement : str
        The statement.
    tag : str
        Its tag in the theory, such as "K8".
    predicted : str
        The predicted value or bound, as text.
    measured : float
        The measured value.
    low, high : float
        Uncertainty interval of the measured value.
    verdict : {"holds", "does not hold", "undecided"}
        The verdict.
    interval : str, default ""
        Kind of the interval, such as "± 2 standard errors".
    least, most : float, default -inf and inf
        Bounds that the measured value must satisfy.
    basis : {"theory", "value", "chosen", "derived"}, default "chosen"
        Origin of the predicted value or bound.
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
        """Whether the verdict follows from the value, but the interval crosses the bound."""
        if self.verdict == "holds":
            return self.low < self.least or self.high > self.most
        return self.verdict == "does not hold" and self.low <= self.most and self.high >= self.least

    @property
    def verdict_text(self) -> str:
        """The verdict, with a remark if the interval crosses the bound."""
        return self.verdict + (BARELY if self.barely else "")

    @property
    def basis_text(self) -> str:
        """Origin of the predicted value or bound, as text."""
        return BASES[self.basis]

    @property
    def measured_text(self) -> str:
        """The measured value with its interval, to three significant digits."""
        if not math.isfinite(self.measured):
            return "not measured"
        if not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low == self.high:
            return f"{self.measured:.3g}"
        return f"{self.measured:.3g} [{self.low:.3g}, {self.high:.3g}]"


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean of independent values: s/√n; NaN for a single value.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.lab.claims import standard_error
    >>> standard_error(np.array([1.0, 3.0]))
    1.0
    """
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def within(
    statement: str, tag: str, measured: float, low: float, high: float, *,
    error: float = 0.0, predicted: str = "", interval: str = "± 2 standard errors", basis: Basis | None = None,
) -> Claim:  # fmt: skip
    """Claim that low ≤ measured ≤ high.

    It holds if the interval measured ± 2·error lies within the bounds, does not hold if it lies outside, and is
    undecided otherwise.

    Parameters
    ----------
    statement, tag : str
        The statement and its tag in the theory.
    measured : float
        The measured value.
    low, high : float
        The bounds.
    error : float, default 0.0
        Standard error of `measured`.
    predicted : str, default ""
        The prediction as text; by default, the bounds.
    interval : str, default "± 2 standard errors"
        Kind of the interval.
    basis : {"theory", "value", "chosen", "derived"}, optional
        Origin of the prediction; by default inferred from `predicted`.

    Returns
    -------
    Claim
        The claim with its verdict.
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
        basis or infer_basis(text),
    )  # fmt: skip


def at_most(statement: str, tag: str, measured: float, bound: float, **kwargs) -> Claim:
    """Claim that measured ≤ bound; keyword arguments as for `within`."""
    return within(statement, tag, measured, -math.inf, bound, **kwargs)


def at_least(statement: str, tag: str, measured: float, bound: float, **kwargs) -> Claim:
    """Claim that measured ≥ bound; keyword arguments as for `within`."""
    return within(statement, tag, measured, bound, math.inf, **kwargs)


def consistent(
    statement: str, tag: str, measured: float, expected: float, error: float, *, width: float = 4.0, floor: float = 0.0
) -> Claim:
    """Claim that the measurement is consistent with a theoretical value: |measured - expected| ≤ width·error + floor.

    Parameters
    ----------
    statement, tag : str
        The statement and its tag in the theory.
    measured, expected : float
        The measured value and the theoretical value.
    error : float
        Standard error of the measurement.
    width : float, default 4.0
        Allowed deviation in standard errors.
    floor : float, default 0.0
        Derived bound on the bias of the measurement (rounding, finite width).

    Returns
    -------
    Claim
        The claim with its verdict.
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
    statement: str, tag: str, measured: float, low: float, high: float, holds: bool | None, predicted: str,
    interval: str, basis: Basis | None = None,
) -> Claim:  # fmt: skip
    """A claim whose interval (such as a bootstrap interval) and verdict are computed by the experiment.

    The bounds are parsed from `predicted` (≤ 0.8, > 0, 0.05 to 0.13), to detect an interval that crosses them.

    Parameters
    ----------
    statement, tag : str
        The statement and its tag in the theory.
    measured, low, high : float
        The measured value and its interval.
    holds : bool or None
        Whether the claim holds; None if the measurement does not decide, such as an interval that contains the bound.
    predicted : str
        The prediction as text.
    interval : str
        Kind of the interval.
    basis : {"theory", "value", "chosen", "derived"}, optional
        Origin of the prediction; by default inferred from `predicted`.

    Returns
    -------
    Claim
        The claim with its verdict.
    """
    finite = all(map(math.isfinite, (measured, low, high)))
    verdict: Verdict = "undecided" if not finite or holds is None else "holds" if holds else "does not hold"
    return Claim(
        statement, tag, predicted, float(measured), float(low), float(high), verdict, interval,
        *parse_bounds(predicted), basis or infer_basis(predicted),
    )  # fmt: skip


_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def parse_bounds(predicted: str) -> tuple[float, float]:
    """Parse the bounds from a prediction such as '≤ 0.8', '> 0', 'in [0.9, 1.1]' or '0.05 to 0.13'.

    Other texts give (-inf, inf).

    Examples
    --------
    >>> from unlazy.lab.claims import parse_bounds
    >>> parse_bounds("≤ 0.8"), parse_bounds("0.05 to 0.13"), parse_bounds("2 = p/2")
    ((-inf, 0.8), (0.05, 0.13), (-inf, inf))
    """
    if found := re.match(rf"[≤<] ({_NUMBER})(?![\d.e]| ×)", predicted):
        return -math.inf, float(found[1])
    if found := re.match(rf"[≥>] ({_NUMBER})(?![\d.e]| ×)", predicted):
        return float(found[1]), math.inf
    if found := re.match(rf"(?:in \[)?({_NUMBER})(?:, | to )({_NUMBER})\]?$", predicted):
        return float(found[1]), float(found[2])
    return -math.inf, math.inf


def infer_basis(predicted: str) -> Basis:
    """Infer the origin of a prediction from its text.

    A sign and a single value come from theory; for a value with a tolerance (±, allowed), only the value does. Bounds
    are chosen.

    Examples
    --------
    >>> from unlazy.lab.claims import infer_basis
    >>> [infer_basis(text) for text in ("> 0", "2 = p/2", "-1/2 ± 0.1", "≤ 0.3", "all")]
    ['theory', 'theory', 'value', 'chosen', 'chosen']
    """
    if re.fullmatch(r"[<>≤≥] 0", predicted):
        return "theory"
    if "±" in predicted or "allowed" in predicted:
        return "value"
    value = re.match(_NUMBER, predicted) and parse_bounds(predicted) == (-math.inf, math.inf)
    return "theory" if value else "chosen"


def _range_text(low: float, high: float) -> str:
    """The bounds as text."""
    if low == -math.inf:
        return f"≤ {high:.4g}"
    if high == math.inf:
        return f"≥ {low:.4g}"
    return f"in [{low:.4g}, {high:.4g}]"
