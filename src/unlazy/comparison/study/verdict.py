"""The verdict: whether feature learning pays, by how much and from which size; the rules are fixed in advance.

At each size and split, the best lazy and the best rich finalist are selected by errors estimated on training rows, and
their test risks are compared, so that the selection cannot profit from the test rows. The logarithm of the ratio is
averaged over splits. Splits share rows, so its variance is that of Nadeau and Bengio (2003), (1/J + r/(1 - r))·s² for J
splits with a share r of test rows, with Student's t. Two splits may agree by chance: with fewer than three, the
variance is pooled with that of smaller sizes, where it is not smaller, because fits to fewer rows vary more; if these
have fewer than three splits too, there is no interval. Which error is the risk depends on the table (`metrics`).

    pays           the 95% interval of lazy/rich risk lies above 1.05
    does not pay   it lies below 1.25: at most a fifth of the risk can be gained
    noise          the risk of the best model (selected likewise) relative to a constant has an interval that reaches
                   0.98, and that excludes a useful gain: it lies above 0.8, with at least half of the rows or 2,000;
                   with fewer rows, or another interval, the verdict is undecided
    undecided      otherwise
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats
from jaxtyping import Float

from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.plan import MAX_SPLITS, MIN_SPLITS
from unlazy.comparison.study.study import Study
from unlazy.measures.scaling_fit import Interval

VerdictWord = Literal["pays", "does not pay", "undecided", "noise"]
PAYS_ABOVE = 1.05
NO_GAIN_BELOW = 1.25
SIGNAL_BOUND, SIGNAL_VALUE = 0.98, 0.9
"""There is a signal if the interval of the best model's risk, relative to a constant, lies below the first value or the
risk itself is below the second."""
NOISE_ABOVE = 0.8
"""The verdict is noise only if the interval of that risk lies above this value: less than a fifth can be gained."""
MIN_NOISE_ROWS = 2000
"""With fewer training rows than this, and less than half of those available, the verdict is never noise."""
MIN_ODDS = 1.2
"""There is a signal for a rare class if the interval of the odds that one of its rows is ranked above another row lies
above this value."""


@dataclass(frozen=True)
class Verdict:
    """The verdict and the numbers behind it."""

    word: VerdictWord
    ratio: Interval
    """Lazy over rich risk at the largest size; above one, feature learning helps."""
    signal: Interval
    """Risk of the best model over that of a constant."""
    onset: int | None
    """Smallest training size from which feature learning pays; None if it does not."""
    ratios: dict[int, Interval]
    """Lazy over rich risk by training size."""
    picks: dict[str, str]
    """The lazy and the rich model that were selected most often at the largest size."""
    has_signal: bool = True
    """Whether a model is better than a constant."""


Logs = Float[np.ndarray, " _"]


def corrected_interval(logs: Logs, overlap: float, smaller: Sequence[Logs] = ()) -> Interval:
    """exp of the mean of `logs` with its 95% interval; the variance is corrected for splits that share rows (Nadeau and
    Bengio 2003).

    For two splits the variance is pooled with that of `smaller` sizes that have at least MIN_SPLITS. These are the same
    splits again, so the degrees of freedom are those of one size, not their sum. Without sizes to pool, or with one
    split, the interval is NaN; without any, the mean too.
    """
    J = len(logs)
    if not J:
        return Interval(math.nan, math.nan, math.nan)
    middle = float(np.mean(logs))
    pooled = [logs, *(other for other in smaller if len(other) >= MIN_SPLITS)] if J < MIN_SPLITS else [logs]
    freedom = max(len(one) for one in pooled) - 1
    if J < 2 or freedom < MIN_SPLITS - 1:
        return Interval(math.exp(middle), math.nan, math.nan)
    weights = [len(one) - 1 for one in pooled]
    variance = float(np.average([np.var(one, ddof=1) for one in pooled], weights=weights))
    reach = float(scipy.stats.t.ppf(0.975, freedom)) * math.sqrt((1 / J + overlap / (1 - overlap)) * variance)
    return Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def decide_verdict(study: Study) -> Verdict:
    """Apply the rules of the verdict."""
    family = finalists_by_family(study)
    ratios = {n: inner_ratio(study, n, family["lazy"], family["rich"]) for n in study.sizes}
    top = study.sizes[-1]
    picks = {word: _often(inner_choice(study, top, names)) for word, names in family.items()}
    best = inner_choice(study, top, study.finalists)
    smaller = [_best_logs(study, n, True) for n in study.sizes[:-1]]
    signal = corrected_interval(_best_logs(study, top), study.overlap, smaller)
    seen = _is_signal(signal) or _ranked(study, best) or _improves_probabilities(study)
    word = _word(ratios[top], seen, _enough_rows(study) and signal.low >= NOISE_ABOVE)
    return Verdict(word, ratios[top], signal, _onset(ratios), ratios, picks, seen)


def _enough_rows(study: Study) -> bool:
    """Whether a signal would have been seen with so many training rows."""
    return study.sizes[-1] >= min(0.5 * (1 - study.overlap) * len(study.table), MIN_NOISE_ROWS)


def splits_may_decide(study: Study, verdict: Verdict) -> bool:
    """Whether MAX_SPLITS splits may decide an undecided verdict at the same size: the intervals that they would have
    decide it, with the same means and the lower end of the 90% interval of the variance, which few splits hardly
    determine."""
    J = study.measured
    if J < MIN_SPLITS:
        return study.splits < MAX_SPLITS
    if J >= MAX_SPLITS:
        return False

    def narrowed(found: Interval) -> Interval:
        middle, share = math.log(found.value), study.overlap / (1 - study.overlap)
        before, after = (scipy.stats.t.ppf(0.975, k - 1) * math.sqrt(1 / k + share) for k in (J, MAX_SPLITS))
        spread = math.sqrt((J - 1) / scipy.stats.chi2.ppf(0.95, J - 1))
        reach = (math.log(found.high) - middle) * spread * float(after / before)
        return Interval(found.value, math.exp(middle - reach), math.exp(middle + reach))

    if verdict.has_signal:
        return _word(narrowed(verdict.ratio), True, False) != "undecided"
    signal, odds = narrowed(verdict.signal), _odds(study, inner_choice(study, study.sizes[-1], study.finalists))
    ranked = odds is not None and math.isfinite(odds.high) and narrowed(odds).low > MIN_ODDS
    return _is_signal(signal) or ranked or (_enough_rows(study) and signal.low >= NOISE_ABOVE)


def finalists_by_family(study: Study) -> dict[str, list[str]]:
    """The lazy and the rich finalists."""
    return {word: [c for c in study.finalists if CANDIDATES[c].family == word] for word in ("lazy", "rich")}


def _is_signal(relative: Interval) -> bool:
    """Whether an error relative to that of a constant shows a signal."""
    return relative.high < SIGNAL_BOUND or relative.value < SIGNAL_VALUE


def _improves_probabilities(study: Study) -> bool:
    """Whether probabilities show a signal where mistakes are counted, which may not change."""
    if study.metric.name != "accuracy":
        return False
    top, smaller = study.sizes[-1], [_best_logs(study, n, True, "risk") for n in study.sizes[:-1]]
    return _is_signal(corrected_interval(_best_logs(study, top, measure="risk"), study.overlap, smaller))


def _ranked(study: Study, best: dict[int, str]) -> bool:
    """Whether a rare class is ranked significantly above the others: an area under the ROC curve above 1/2."""
    odds = _odds(study, best)
    return odds is not None and odds.low > MIN_ODDS


def _odds(study: Study, best: dict[int, str]) -> Interval | None:
    """Odds that a row of a rare class is ranked above another row; None if no class is rare."""
    if not study.rare or len(best) < 2:
        return None
    area = _grid(study, study.sizes[-1], "auc")
    areas = [area[name, s] for s, name in best.items() if (name, s) in area]
    odds = np.log([a / max(1 - a, 1e-3) + 1e-9 for a in areas])
    return corrected_interval(odds, study.overlap)


def _best_logs(study: Study, n: int, every: bool = False, measure: str = "") -> Logs:
    """Logarithm of the relative error of the best finalist of each split."""
    risk, best = _grid(study, n, measure or study.risk_measure), inner_choice(study, n, study.finalists, every)
    return np.array([_log(risk[name, s]) for s, name in best.items() if (name, s) in risk])


def inner_choice(study: Study, n: int, names: Sequence[str], every: bool = False) -> dict[int, str]:
    """Map each split to the model with the smallest error estimated on training rows; splits without an error are
    absent. Splits are those of the largest size, or all with `every`."""
    inner = _grid(study, n, "inner")
    found = {}
    for s in sorted({split for _, split in inner}) if every else range(study.splits):
        errors = {name: inner[name, s] for name in names if math.isfinite(inner.get((name, s), math.nan))}
        if errors:
            found[s] = min(errors, key=errors.__getitem__)
    return found


def inner_ratio(study: Study, n: int, first: Sequence[str], second: Sequence[str]) -> Interval:
    """Test risk of the best of `first` over that of the best of `second`, both selected on training rows."""
    logs = inner_logs(study, n, first, second)
    smaller = [inner_logs(study, m, first, second, True) for m in study.sizes if m < n]
    return corrected_interval(logs, study.overlap, smaller) if len(logs) else Interval(math.nan, math.nan, math.nan)


def inner_logs(study: Study, n: int, first: Sequence[str], second: Sequence[str], every: bool = False) -> Logs:
    """Logarithm of that ratio for each split."""
    risk = _grid(study, n, study.risk_measure)
    one, other = (inner_choice(study, n, names, every) for names in (first, second))
    both = [((one[s], s), (other[s], s)) for s in one if s in other]
    return np.array([_log(risk[a]) - _log(risk[b]) for a, b in both if a in risk and b in risk])


def _word(ratio: Interval, has_signal: bool, is_noise: bool) -> VerdictWord:
    if not has_signal:
        return "noise" if is_noise else "undecided"
    if ratio.low > PAYS_ABOVE:
        return "pays"
    return "does not pay" if ratio.high < NO_GAIN_BELOW else "undecided"


def _onset(ratios: dict[int, Interval]) -> int | None:
    """The smallest size from which feature learning pays at all larger sizes."""
    found = None
    for n in sorted(ratios, reverse=True):
        if not ratios[n].low > PAYS_ABOVE:
            break
        found = n
    return found


def _grid(study: Study, n: int, measure: str) -> dict[tuple[str, int], float]:
    """Map (model, split) to the measure at one size; failed trials and splits that do not have it are absent."""
    found = {(r.params["candidate"], r.params["split"]): r.measures[measure] for r in study.records.where(n=n)}
    return {key: value for key, value in found.items() if not math.isnan(value)}


def _often(choice: dict[int, str]) -> str:
    names = list(choice.values())
    return max(names, key=names.count) if names else ""


def _log(risk: float) -> float:
    return math.log(max(float(risk), 1e-9))
