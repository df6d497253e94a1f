"""Exponents of a scaling check: the verdict in words, a table, what to change."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unlazy.diagnostics.scaling.rules import LIMITS, Finding
from unlazy.diagnostics.scaling.texts import describe, label, remedy

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "unlazy scaling check"


@dataclass(frozen=True)
class Coordinates:
    """Sizes of one run, the entries of a coordinate check.

    Attributes
    ----------
    sizes : dict
        Width, and depth if there is one.
    before : dict of str to float
        RMS of the outputs h of every layer at initialization.
    changes : dict of str to float
        RMS of the change of h.
    output, output_change : float
        RMS of f at initialization, and of its change.
    gap : float
        Linearization gap [W1] of the change.
    losses : tuple of float
        Before each step.
    """

    sizes: dict[str, int]
    before: dict[str, float]
    changes: dict[str, float]
    output: float
    output_change: float
    gap: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Exponents:
    """Exponents of the width for all parameters, and the verdict.

    Attributes
    ----------
    widths : tuple of int
        Widths that were trained.
    findings : tuple of Finding
        All exponents, errors first.
    coordinates : tuple of Coordinates
        Sizes of layers in every run.
    linear : bool
        Whether the optimizer's changes are proportional to the gradient.
    depths : tuple of int
        Depths that were trained.

    """

    widths: tuple[int, ...]
    findings: tuple[Finding, ...]
    coordinates: tuple[Coordinates, ...]
    linear: bool
    depths: tuple[int, ...] = ()

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The exponents beyond their limits, the largest errors first."""
        return tuple(finding for finding in self.findings if finding.wrong)

    @property
    def ok(self) -> bool:
        """Whether no exponent is beyond its limit."""
        return not self.wrong

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parameters whose update is 0 or not finite at some size, so that it has no exponent."""
        return tuple(f.name for f in self.findings if f.quantity == "rate" and not f.excess.known)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.ok:
            if unknown := self.unknown:
                names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
                return f"No exponent is wrong, but the updates of {names} could not be measured."
            deep = f" and every depth from {self.depths[0]} to {self.depths[-1]}" if self.depths else ""
            return f"Feature learning at every width from {self.widths[0]} to {self.widths[-1]}{deep}."
        return f"{describe(self.wrong[0])}."

    def advice(self) -> list[str]:
        """What to change, one sentence for each exponent that is wrong."""
        bases = {"width": self.widths[:1], "depth": self.depths[:1]}
        return [f"{remedy(finding, bases[finding.axis][0])}." for finding in self.wrong]

    def frame(self) -> "pd.DataFrame":
        """One row per exponent.

        Returns
        -------
        pandas.DataFrame
            Columns name, quantity, role, axis, excess, error, wrong.
        """
        import pandas as pd

        rows = [{**asdict(f), "excess": f.excess.value, "error": f.excess.error} for f in self.findings]
        return pd.DataFrame(rows, columns=["name", "quantity", "role", "axis", "excess", "error", "wrong"])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types; NaN is None."""
        found = {"format": FORMAT, "version": 1, "verdict": self.verdict, "ok": self.ok, "advice": self.advice()}
        rows = [
            {**asdict(f), "excess": f.excess.value, "error": f.excess.error, "means": describe(f) if f.wrong else ""}
            for f in self.findings
        ]
        return _finite(
            {**found, "widths": list(self.widths), "depths": list(self.depths), "linear": self.linear, "findings": rows,
             "coordinates": [asdict(c) for c in self.coordinates]}
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [self.verdict, *(f"  {describe(f)}." for f in self.wrong[1:])]
        if not self.ok:
            lines += ["What to change:", *(f"  {sentence}" for sentence in self.advice())]
        shown = [f for f in self.findings if f.excess.known]
        wide = max(len(f.name) for f in shown) if shown else 4
        lines += ["", f"{'parameter':<{wide}}  {'measured':<21} {'role':<9} exponent (right: 0)"]
        for f in shown:
            error = f" ± {f.excess.error:.2f}" if math.isfinite(f.excess.error) else ""
            smaller = abs(f.excess.value) > LIMITS[f.quantity] and not f.wrong
            mark = "  wrong" if f.wrong else "  (may be smaller)" if smaller else ""
            lines.append(f"{f.name:<{wide}}  {label(f):<21} {f.role:<9} {f.excess.value:+.2f}{error}{mark}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def _finite(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
