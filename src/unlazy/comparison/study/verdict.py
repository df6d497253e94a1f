"""The answer: does feature learning pay, by how much, from how many samples on; rules fixed before the data are seen.

At every size and split the best lazy and the best rich finalist are chosen by errors estimated on training rows (as the
finalists were, on fewer), and their test risks compared: the choice cannot profit from the test rows. The logarithm of
the ratio is averaged over splits; splits share rows, so its variance is that of Nadeau and Bengio (2003),
(1/J + r/(1 - r))·s² for J splits that test on a share r of the rows, with Student's t. Two splits that agree by chance
seem to have no spread: fewer than three take it from smaller sizes too, where it is no smaller, since fits to fewer
rows differ more; where these have no three splits either, nothing is sure. Where a class is rare, what is missed of its
average precision stands in for the risk.

    pays           the 95% interval of lazy/rich risk lies above 1.05
    does not pay   it lies below 1.25: at most a fifth of the risk is to be gained
    noise          the best model (chosen likewise) is not surely below 0.98 of the constant's risk, nor seems below
                   0.9, at half of the rows or more than a few; on fewer, or with no interval, it is undecided
    undecided      otherwise
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.plan import FEWEST
from unlazy.comparison.study.study import Study
from unlazy.measures.scaling_fit import Interval

Word = Literal["pays", "does not pay", "undecided", "noise"]
MARGIN = 1.05
ENOUGH = 1.25
LITTLE, SEEMS = 0.98, 0.9
"""A best model whose risk, in units of the constant's, is not surely below the first nor seems below the second has
found nothing."""
SLIVER = 2000
"""Training rows below which, where they are less than half of those there are, nothing is called noise."""
ODDS = 1.2
"""Odds that a row of a rare class is ranked before another row, surely above which its class is seen."""


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
    seen: bool = True
    """Whether some model is better than a constant."""


Logs = Float[np.ndarray, " _"]


def corrected(logs: Logs, overlap: float, smaller: Sequence[Logs] = ()) -> Interval:
    """exp of the mean of `logs` with its 95% interval; the variance is corrected for splits that share rows (Nadeau and
    Bengio 2003).

    Of two splits it is pooled with that of the same at `smaller` sizes, as far as they have FEWEST; these are the same
    splits again, so degrees of freedom do not add up, and the most that one size has are those of all. There is no
    interval where there is nothing to pool, nor of one split.
    """
    from scipy.stats import t

    J = len(logs)
    middle = float(np.mean(logs))
    pooled = [logs, *(other for other in smaller if len(other) >= FEWEST)] if J < FEWEST else [logs]
    freedom = max(len(one) for one in pooled) - 1
    if J < 2 or freedom < FEWEST - 1:
        return Interval(math.exp(middle), math.nan, math.nan)
    weights = [len(one) - 1 for one in pooled]
    variance = float(np.average([np.var(one, ddof=1) for one in pooled], weights=weights))
    reach = float(t.ppf(0.975, freedom)) * math.sqrt((1 / J + overlap / (1 - overlap)) * variance)
    return Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def judge(study: Study) -> Verdict:
    """Apply the rules."""
    family = families(study)
    ratios = {n: inner_ratio(study, n, family["lazy"], family["rich"]) for n in study.sizes}
    top = study.sizes[-1]
    picks = {word: _often(inner_choice(study, top, names)) for word, names in family.items()}
    best = inner_choice(study, top, study.finalists)
    signal = corrected(_best_logs(study, top), study.overlap, [_best_logs(study, n, True) for n in study.sizes[:-1]])
    seen = signal.high < LITTLE or signal.value < SEEMS or _ranked(study, best)
    enough = top >= min(0.5 * (1 - study.overlap) * len(study.table), SLIVER) and math.isfinite(signal.high)
    word = _word(ratios[top], seen, enough)
    return Verdict(word, ratios[top], signal, _onset(ratios), ratios, picks, seen)


def families(study: Study) -> dict[str, list[str]]:
    """The finalists that are compared, by kind."""
    return {word: [c for c in study.finalists if CONTESTANTS[c].family == word] for word in ("lazy", "rich")}


def _ranked(study: Study, best: dict[int, str]) -> bool:
    """Whether a rare class is surely ranked before the others: an area under the ROC curve above one half."""
    if not study.rare or len(best) < 2:
        return False
    area = _grid(study, study.sizes[-1], "auc")
    odds = np.log([area[name, s] / max(1 - area[name, s], 1e-3) + 1e-9 for s, name in best.items()])
    return corrected(odds, study.overlap).low > ODDS


def _best_logs(study: Study, n: int, every: bool = False) -> Logs:
    """The logarithm of the risk of the best finalist, in units of the constant's, split by split."""
    risk, best = _grid(study, n, study.judged_by), inner_choice(study, n, study.finalists, every)
    return np.array([_log(risk[name, s]) for s, name in best.items()])


def inner_choice(study: Study, n: int, names: Sequence[str], every: bool = False) -> dict[int, str]:
    """Split → who of these has the smallest error estimated on training rows; absent where nobody has one. Splits are
    those of the largest size, or `every` one that there is."""
    inner = _grid(study, n, "inner")
    found = {}
    for s in sorted({split for _, split in inner}) if every else range(study.splits):
        errors = {name: inner[name, s] for name in names if math.isfinite(inner.get((name, s), math.nan))}
        if errors:
            found[s] = min(errors, key=errors.__getitem__)
    return found


def inner_ratio(study: Study, n: int, first: Sequence[str], second: Sequence[str]) -> Interval:
    """Test risk of the best of `first` over that of the best of `second`, both chosen on training rows, over splits."""
    logs = inner_logs(study, n, first, second)
    smaller = [inner_logs(study, m, first, second, True) for m in study.sizes if m < n]
    return corrected(logs, study.overlap, smaller) if len(logs) else Interval(math.nan, math.nan, math.nan)


def inner_logs(study: Study, n: int, first: Sequence[str], second: Sequence[str], every: bool = False) -> Logs:
    """The logarithm of that ratio, split by split."""
    risk = _grid(study, n, study.judged_by)
    one, other = (inner_choice(study, n, names, every) for names in (first, second))
    return np.array([_log(risk[one[s], s]) - _log(risk[other[s], s]) for s in one if s in other])


def _word(ratio: Interval, seen: bool, enough: bool) -> Word:
    if not seen:
        return "noise" if enough else "undecided"
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


def _grid(study: Study, n: int, measure: str) -> dict[tuple[str, int], float]:
    """(contestant, split) → the measure at one size; what failed is absent."""
    return {(r.params["contestant"], r.params["split"]): r.measures[measure] for r in study.records.where(n=n)}


def _often(choice: dict[int, str]) -> str:
    names = list(choice.values())
    return max(names, key=names.count) if names else ""


def _log(risk: float) -> float:
    return math.log(max(float(risk), 1e-9))
