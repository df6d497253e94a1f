"""Gaps to one model: risks over its own, paired over the splits that both have, so that hard rows cancel."""

import math
from typing import TYPE_CHECKING

import numpy as np

from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.verdict import corrected
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    import pandas as pd

SAYS = 10.0
"""An interval whose ends are further apart than this factor says nothing."""


def interval_says(value: Interval) -> bool:
    """Whether an interval says anything."""
    return bool(math.isfinite(value.high) and value.low > 0 and value.high / value.low <= SAYS)


def gap_text(value: Interval) -> str:
    """1.23 [1.10, 1.38], or the first alone where the splits say no more."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]" if interval_says(value) else f"{value.value:.2f}"


def gaps(study: Study, chosen: str) -> dict[str, Interval]:
    """Risk of every finalist over this one's at the largest size."""
    return {name: _gap(study, name, chosen, study.sizes[-1])[0] for name in study.finalists}


def gap_table(study: Study, chosen: str) -> "pd.DataFrame":
    """The same for everyone, at the largest size each was tried at together with this one; finalists first, then best
    first. Those that only the look has seen are judged on its few rows."""
    import pandas as pd

    rows = []
    for name in study.contestants:
        sizes = [n for n in study.sizes if _splits(study, name, n) & _splits(study, chosen, n)]
        if sizes:
            found, splits = _gap(study, name, chosen, sizes[-1])
            who = CONTESTANTS[name]
            rows.append({
                "model": who.title, "name": name, "family": who.family, "n": sizes[-1], "splits": splits,
                "finalist": name in study.finalists, "gap": found.value, "low": found.low, "high": found.high,
            })  # fmt: skip
    table = pd.DataFrame(rows)
    return table.sort_values(["finalist", "n", "gap"], ascending=[False, False, True], ignore_index=True)


def _splits(study: Study, name: str, n: int) -> set[int]:
    return {r.params["split"] for r in study.records.where(contestant=name, n=n)}


def _gap(study: Study, name: str, chosen: str, n: int) -> tuple[Interval, int]:
    """The ratio of risks with its interval, and how many splits it is of."""
    found = _logs(study, name, chosen, n)
    if n == study.sizes[-1] and name in study.finalists:
        found = found[: study.splits]
    smaller = [_logs(study, name, chosen, m) for m in study.sizes if m < n]
    return corrected(found, study.overlap, smaller), len(found)


def _logs(study: Study, name: str, chosen: str, n: int) -> np.ndarray:
    """The logarithm of the ratio of risks at the splits that both have."""
    last = study.records.where(n=n)
    risks = {(r.params["contestant"], r.params["split"]): max(r.measures[study.judged_by], 1e-9) for r in last}
    both = sorted(_splits(study, name, n) & _splits(study, chosen, n))
    return np.log([risks[name, s] / risks[chosen, s] for s in both])
