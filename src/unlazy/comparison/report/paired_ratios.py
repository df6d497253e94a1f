"""Risk ratios to one model, paired over the splits that both have, so that the difficulty of test rows cancels."""

import math

import numpy as np
import pandas as pd

from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.verdict import corrected_interval
from unlazy.measures.scaling_fit import Interval

MAX_FACTOR = 10.0
"""An interval whose ends differ by more than this factor is not informative."""


def format_number(value: float, digits: int = 3) -> str:
    """Format to `digits` significant digits in positional notation, with commas between thousands; NaN is "unknown"."""
    if math.isnan(value):
        return "unknown"
    if not math.isfinite(value) or 0 < abs(value) < 1e-6:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    text = f"{round(value, places):,.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def is_informative(value: Interval) -> bool:
    """Whether an interval is finite and its ends are within MAX_FACTOR of each other."""
    return bool(math.isfinite(value.high) and value.low > 0 and value.high / value.low <= MAX_FACTOR)


def ratio_text(value: Interval) -> str:
    """Format as 1.23 [1.10, 1.38], or as 1.23 if the interval is not informative."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]" if is_informative(value) else f"{value.value:.2f}"


def paired_ratios(study: Study, chosen: str) -> dict[str, Interval]:
    """Risk of each finalist over that of the chosen model, at the largest size."""
    return {name: _paired_ratio(study, name, chosen, study.sizes[-1])[0] for name in study.finalists}


def ratio_table(study: Study, chosen: str) -> pd.DataFrame:
    """Risk ratios of all models, each at the largest size that it shares with the chosen model; finalists first, then
    by ratio. Models that were only screened are compared on the few rows of the screening."""
    rows = []
    for name in study.candidates:
        sizes = [n for n in study.sizes if _splits(study, name, n) & _splits(study, chosen, n)]
        if sizes:
            found, splits = _paired_ratio(study, name, chosen, sizes[-1])
            who = CANDIDATES[name]
            rows.append({
                "model": who.title, "name": name, "family": who.family, "n": sizes[-1], "splits": splits,
                "finalist": name in study.finalists, "ratio": found.value, "low": found.low, "high": found.high,
            })  # fmt: skip
    table = pd.DataFrame(rows)
    return table.sort_values(["finalist", "n", "ratio"], ascending=[False, False, True], ignore_index=True)


def _splits(study: Study, name: str, n: int) -> set[int]:
    """Splits for which the risk of a model is known."""
    mine = study.records.where(candidate=name, n=n)
    return {r.params["split"] for r in mine if not math.isnan(r.measures[study.risk_measure])}


def _paired_ratio(study: Study, name: str, chosen: str, n: int) -> tuple[Interval, int]:
    """Risk ratio with its interval, and the number of splits."""
    compared = n == study.sizes[-1] and name in study.finalists
    found = _logs(study, name, chosen, n, study.splits if compared else None)
    smaller = [_logs(study, name, chosen, m) for m in study.sizes if m < n]
    return corrected_interval(found, study.overlap, smaller), len(found)


def _logs(study: Study, name: str, chosen: str, n: int, most: int | None = None) -> np.ndarray:
    """Logarithm of the risk ratio on the splits that both models have, of the first `most` splits."""
    last = study.records.where(n=n)
    risks = {(r.params["candidate"], r.params["split"]): max(r.measures[study.risk_measure], 1e-9) for r in last}
    both = sorted(s for s in _splits(study, name, n) & _splits(study, chosen, n) if most is None or s < most)
    return np.log([risks[name, s] / risks[chosen, s] for s in both])
