"""The answer: does feature learning pay, by how much, from how many samples on; rules fixed before the data are seen.

At every size and split the best lazy and the best rich model are chosen by errors estimated on training rows, and their
test risks compared: the choice cannot profit from the test rows. The logarithm of the ratio is averaged over splits;
splits share rows, so its variance is that of Nadeau and Bengio (2003), (1/J + r/(1 - r))·s² for J splits that test on a
share r of the rows, with Student's t.

    pays           the 95% interval of lazy/rich risk lies above 1.05
    does not pay   it lies below 1.25: at most a fifth of the risk is to be gained
    noise          the best model (chosen likewise) is not surely better than the constant
    undecided      otherwise
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from unlazy.compare.contestants import CONTESTANTS
from unlazy.compare.study import Study
from unlazy.measures.scaling_fit import Interval

Word = Literal["pays", "does not pay", "undecided", "noise"]
MARGIN = 1.05
ENOUGH = 1.25
LITTLE = 0.98
"""A best model whose risk, in units of the constant's, is not surely below this has found nothing."""


@dataclass(frozen=True)
class Verdict:
    """The word and the numbers behind it."""

    word: Word
    ratio: Interval
    """Lazy over rich risk at the largest size: above one, feature learning helps."""
    signal: Interval
    """Risk of the best model over that of the constant."""
    onset: int | None
    """The size from which on the ratio stays above the margin; None where it does not pay."""
    ratios: dict[int, Interval]
    picks: dict[str, str]
    """The lazy and the rich model that was chosen most often at the largest size."""


def corrected(logs: Float[np.ndarray, " splits"], overlap: float) -> Interval:
    """exp of the mean of `logs` with its 95% interval; the variance is corrected for splits that share rows."""
    from scipy.stats import t

    J = len(logs)
    middle = float(np.mean(logs))
    if J < 2:
        return Interval(math.exp(middle), math.nan, math.nan)
    error = math.sqrt((1 / J + overlap / (1 - overlap)) * float(np.var(logs, ddof=1)))
    reach = float(t.ppf(0.975, J - 1)) * error
    return Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def judge(study: Study) -> Verdict:
    """Apply the rules."""
    risk, inner, constant = (_grid(study, name) for name in ("risk", "inner", "constant"))
    ratios, chosen = {}, {}
    for n in study.sizes:
        lazy, rich = (_picks(study, inner, n, family) for family in ("lazy", "rich"))
        logs = [_log(risk[n][l, s]) - _log(risk[n][r, s]) for s, (l, r) in enumerate(zip(lazy, rich)) if min(l, r) >= 0]
        ratios[n] = corrected(np.array(logs), study.overlap) if logs else Interval(math.nan, math.nan, math.nan)
        chosen = {"lazy": _often(study, lazy), "rich": _often(study, rich)}
    top = study.sizes[-1]
    best = _picks(study, inner, top, None)
    gains = [_log(risk[top][b, s]) - _log(constant[top][b, s]) for s, b in enumerate(best) if b >= 0]
    signal = corrected(np.array(gains), study.overlap)
    return Verdict(_word(ratios[top], signal), ratios[top], signal, _onset(ratios), ratios, chosen)


def _word(ratio: Interval, signal: Interval) -> Word:
    if not signal.high < LITTLE:
        return "noise"
    if ratio.low > MARGIN:
        return "pays"
    return "does not pay" if ratio.high < ENOUGH else "undecided"


def _onset(ratios: dict[int, Interval]) -> int | None:
    """The smallest size from which on every size pays."""
    found = None
    for n in sorted(ratios, reverse=True):
        if not ratios[n].low > MARGIN:
            break
        found = n
    return found


def _grid(study: Study, measure: str) -> dict[int, np.ndarray]:
    """size → (contestants, splits), NaN where a trial failed."""
    found = {n: np.full((len(study.contestants), study.splits), np.nan) for n in study.sizes}
    for r in study.records:
        found[r.params["n"]][study.contestants.index(r.params["contestant"]), r.params["split"]] = r.measures[measure]
    return found


def _picks(study: Study, inner: dict[int, np.ndarray], n: int, family: str | None) -> list[int]:
    """Who has the smallest training-side error, split by split; -1 where nobody has one."""
    mine = [i for i, name in enumerate(study.contestants) if family in (None, CONTESTANTS[name].family)]
    found = []
    for s in range(study.splits):
        errors = np.where(np.isfinite(inner[n][mine, s]), inner[n][mine, s], np.inf) if mine else np.array([np.inf])
        found.append(mine[int(np.argmin(errors))] if np.isfinite(errors).any() else -1)
    return found


def _often(study: Study, picks: list[int]) -> str:
    known = [p for p in picks if p >= 0]
    return study.contestants[max(set(known), key=known.count)] if known else ""


def _log(risk: float) -> float:
    return math.log(max(float(risk), 1e-9))
