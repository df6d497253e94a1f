"""Detection of suspicious inputs: likely target leakage, identifiers and row numbers.

A likely leak explains nearly all of the target alone: it determines the class, or the target is a monotone function of
it. Non-monotone dependence is not enough, because a strong input may have it. A column that is computed from the target
with loss, as bands are, is a leak too.

An identifier has distinct values. Text with distinct values is one. Integers are one if the name says so, or if they
are so dense that measured numbers would repeat (row numbers, also shuffled) and say nothing about the target. Names of
orderings, such as time and dose, are not row numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import kruskal, rankdata, spearmanr

from unlazy.comparison.data.table import EncodedTable

LEAK_SHARE = 0.98
"""An input that alone explains at least this share of the target (of its ranks) is a likely leak."""
LINEAR_SHARE, USUAL_SHARE, EXTREME_ROWS = 0.995, 0.95, 0.02
"""An input is a likely leak also if a line explains at least the first share of the variance of the target, and at
least the second without the third share of the rows, those with the most extreme targets: a copy with a little noise,
which mixes up the ranks of a target with heavy tails."""
MAX_ROWS, MAX_COLUMNS = 2000, 50
"""Rows that are checked for leaks, and the number of numeric columns, those with the largest rank association."""
MIN_KNOWN_ROWS = 20
"""Fewest rows with a value in which a column with missing values is checked."""
TIED_SHARE = 0.05
"""With more tied targets than this, rank correlation is too small for a monotone function, and a fit replaces it."""
FOLDS = 10
SAME_DISTINCT, MOSTLY_DISTINCT, HALF_DISTINCT = 0.9, 0.95, 0.5
"""Share of distinct values of an identifier: of text; of integers with a name that suggests one; of text or integers
with a name that says so."""
DENSE = 0.5
"""Distinct integers that fill at least this share of their range are labels: measured ones would repeat."""
FIRST_ROW = 5
"""Row numbers in order start at most here: at 0 or 1, or later if rows were dropped."""
ASSOCIATED = 1e-3
"""Significance level at which integers say something about the target, so that they may be more than labels."""
BINS, MIN_BIN_ROWS = 6, 5
MIN_BAND_ROWS = 5
"""Mean number of rows of the levels that may be intervals of the target."""

_TOKENS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|#")
_IDENTIFIER_WORDS = frozenset(
    ("id", "ids", "uid", "uuid", "guid", "identifier", "pk", "rowid", "unnamed", "hash", "isbn", "ssn", "sku",
     "barcode", "phone", "telephone", "email")
)  # fmt: skip
_IDENTIFIER_NAME = re.compile(
    r"(rows?|rec|records?|obs|observations?|case|sample|subject|patient|passenger|customer|client|user|person|member"
    r"|employee|student|account|order|invoice|transaction|ticket|item|product|device|session|visit|entry|line|serial"
    r"|seq|sequence|registration|policy|claim|loan|house|household|property|vehicle|specimen|animal|family|ref|reference"
    r"|contract|booking|reservation|parcel)(id|ids|no|nr|num|number|key|code|index|idx|ix|name|names)|level0"
)
_SUGGESTIVE_NAMES = frozenset(
    ("row", "rows", "index", "idx", "ix", "key", "no", "nr", "num", "number", "#", "record", "obs", "observation",
     "case", "sample", "serial", "seq", "sequence", "ref", "reference", "code", "account", "ticket", "entry", "label")
)  # fmt: skip
_ORDERINGS = re.compile(
    r"t|time\w*|date\w*|days?\w*|weeks?\w*|months?\w*|years?\w*|quarters?|hours?\w*|minutes?|seconds?|doses?\w*|dosage"
    r"|ages?|steps?|epochs?|cycles?|temp\w*|depth|distance|position|rank|ranking|levels?|round|generation|season|order"
    r"|concentration|mileage|duration|elapsed|height|length|weight"
)


class Suspect(NamedTuple):
    """An input that may not be available, or not meaningful, at prediction time."""

    name: str
    reason: Literal["leak", "identifier"]
    share: float
    """Share of the target that the input explains alone; NaN for an identifier."""


def find_suspects(table: EncodedTable) -> tuple[Suspect, ...]:
    """Find likely leaks, identifiers and row numbers among the inputs."""
    sample = _sample(table)
    leaks = dict(_find_leaks(sample))
    found = [Suspect(name, "leak", share) for name, share in leaks.items()]
    for name in map(str, table.frame.columns):
        if name not in leaks and _is_identifier(name, table.frame[name], sample):
            found.append(Suspect(name, "identifier", float("nan")))
    return tuple(found)


def leave_out(table: EncodedTable, names: Sequence[str]) -> EncodedTable:
    """Return the table without the inputs `names`; rows that differ only in these become copies of each other."""
    rest = table.without(names)
    if not np.array_equal(table.groups, _equal_rows(table.frame)):
        return rest  # groups that the user has named
    groups = _equal_rows(rest.frame)
    more = int(table.groups.max(initial=-1)) - int(groups.max(initial=-1))
    note = (
        f"{more:,} rows differ from another row only in columns that are left out; they are never split between "
        "training and test sets"
    )
    return replace(rest, groups=groups, notes=(*rest.notes, *([note] if more else [])))


def _equal_rows(frame: pd.DataFrame) -> Int[np.ndarray, " n"]:
    """A label per row that equal rows share, as `make_table` assigns them."""
    return np.unique(pd.util.hash_pandas_object(frame, index=False).to_numpy(), return_inverse=True)[1]


class _Sample(NamedTuple):
    """Some rows of a table: inputs, target (class codes for classes), its ranks, and class codes or None."""

    frame: pd.DataFrame
    y: Float[np.ndarray, " n"]
    ranks: Float[np.ndarray, " n"]
    codes: Int[np.ndarray, " n"] | None

    def part(self, kept: Bool[np.ndarray, " n"]) -> "_Sample":
        """Return the rows with a true entry in `kept`."""
        codes = None if self.codes is None else self.codes[kept]
        return _Sample(self.frame.iloc[kept], self.y[kept], self.ranks[kept], codes)


def _sample(table: EncodedTable) -> _Sample:
    """A random sample of at most MAX_ROWS rows, in their order."""
    rows = np.sort(np.random.default_rng(0).permutation(len(table))[:MAX_ROWS])
    frame, y = table.frame.iloc[rows], table.y[rows]
    if table.classes is None:
        return _Sample(frame, y, rankdata(y), None)
    codes = np.unique(y, return_inverse=True)[1]
    return _Sample(frame, codes.astype(np.float64), rankdata(codes), codes)


def _is_identifier(name: str, column: pd.Series, sample: _Sample) -> bool:
    """Whether the values are distinct, or nearly so, and stand for rows instead of measuring something."""
    known = column.dropna()
    distinct = known.nunique() / max(len(known), 1)
    named = _is_identifier_name(name)
    if column.dtype.kind == "O":
        return distinct >= (HALF_DISTINCT if named else SAME_DISTINCT)
    if column.dtype.kind not in "biuf":  # dates
        return False
    values = known.to_numpy(dtype=np.float64)
    if distinct < HALF_DISTINCT or np.any(values != np.round(values)):
        return False
    if named:
        return True
    if distinct >= MOSTLY_DISTINCT and " ".join(_tokens(name)) in _SUGGESTIVE_NAMES:
        return not _is_associated(name, sample)
    if distinct < 1 or len(values) < DENSE * (np.ptp(values) + 1) or _is_ordering_name(name):
        return False
    numbered = bool(np.all(np.diff(values) > 0)) and 0 <= values[0] <= FIRST_ROW
    return numbered or not _is_associated(name, sample)


def _tokens(name: str) -> list[str]:
    """Words and numbers of a name in lower case: 'PassengerId' has two."""
    return [word.lower() for word in _TOKENS.findall(name)]


def _is_identifier_name(name: str) -> bool:
    """Whether a name says that the values are identifiers, as 'customer_id' and 'Row Number' do."""
    words = _tokens(name)
    return bool(_IDENTIFIER_WORDS.intersection(words)) or bool(_IDENTIFIER_NAME.fullmatch("".join(words)))


def _is_ordering_name(name: str) -> bool:
    """Whether a name says that equally spaced integers may be measured: a time, a dose, a position."""
    return any(_ORDERINGS.fullmatch(word) for word in _tokens(name))


def _is_associated(name: str, sample: _Sample) -> bool:
    """Whether a numeric column is significantly associated with the target: a rank test of the column between classes,
    or of the target between quantile bins of the column (Kruskal and Wallis 1952)."""
    values = sample.frame[name].to_numpy(dtype=np.float64)
    known = ~np.isnan(values)
    part = sample.part(known)
    if part.codes is not None:
        groups = [values[known][part.codes == k] for k in np.unique(part.codes)]
    else:
        count = int(np.clip(known.sum() // MIN_BIN_ROWS, 2, BINS))
        groups = [part.ranks[rows] for rows in np.array_split(np.argsort(values[known], kind="stable"), count)]
    groups = [group for group in groups if len(group) > 1]
    if len(groups) < 2 or np.ptp(np.concatenate(groups)) == 0:
        return False
    return bool(kruskal(*groups).pvalue < ASSOCIATED)


def _find_leaks(sample: _Sample) -> list[tuple[str, float]]:
    """Inputs that alone explain nearly all of the target, with the share they explain."""
    found = []
    for name in _columns_to_check(sample):
        column = sample.frame[name]
        text = column.dtype.kind == "O"
        share = _share_of_text(column, sample) if text else _share_of_numbers(column, sample)
        in_order = not text and (column.is_monotonic_increasing or column.is_monotonic_decreasing)
        if in_order and _is_ordering_name(str(name)):
            continue
        if share >= LEAK_SHARE or (sample.codes is None and _is_made_from(column, sample)):
            found.append((str(name), min(share, 1.0)))
    return found


def _columns_to_check(sample: _Sample) -> list[str]:
    """All text columns, and the numeric columns with the largest rank association with the target."""
    text = [n for n in sample.frame.columns if sample.frame[n].dtype.kind == "O"]
    numbers = [n for n in sample.frame.columns if sample.frame[n].dtype.kind in "biuf"]  # not dates
    if len(numbers) <= MAX_COLUMNS:
        return [*text, *numbers]
    X = sample.frame[numbers].to_numpy(dtype=np.float64)
    known = ~np.isnan(X)
    middle = np.nanmedian(np.where(known.any(0), X, 0.0), 0)
    ranks = rankdata(np.where(known, X, middle), axis=0)
    ranks = np.where(known, ranks - ranks.mean(0), 0.0)
    ranks /= np.maximum(np.sqrt(np.sum(ranks**2, 0) / np.maximum(known.sum(0), 1)), 1e-12)
    if sample.codes is None:
        target = (sample.ranks - sample.ranks.mean()) / sample.ranks.std()
        scale = np.maximum(known.T @ target**2, 1e-12) * np.maximum(known.sum(0), 1)
        weight = np.abs(ranks.T @ target) / np.sqrt(scale)
    else:
        weight = np.max([np.abs(ranks[sample.codes == k].mean(0)) for k in np.unique(sample.codes)], 0)
    return [*text, *(numbers[j] for j in np.argsort(-weight, kind="stable")[:MAX_COLUMNS])]


def _share_of_text(column: pd.Series, sample: _Sample) -> float:
    """Share of the target explained by the levels of a text column, where missing is a level."""
    return _by_level(np.unique([str(v) for v in column], return_inverse=True)[1], sample)


def _share_of_numbers(column: pd.Series, sample: _Sample) -> float:
    """Share of the target explained by the numbers of a column, where they are known, or by which are missing."""
    values = column.to_numpy(dtype=np.float64)
    known = ~np.isnan(values)
    shares = [0.0]
    if not known.all() and sample.codes is not None:
        shares.append(_by_level(known.astype(int), sample))
    part, x = sample.part(known), values[known]
    if known.sum() < MIN_KNOWN_ROWS or np.ptp(x) == 0 or np.ptp(part.ranks) == 0:
        return max(shares)
    if part.codes is None:
        return max(*shares, _by_monotone_curve(x, part.ranks), _by_line(x, part.y))
    shares.append(_by_intervals(x, part))
    levels = np.unique(x, return_inverse=True)[1]
    if levels.max() < len(x) / 3:
        shares.append(_by_level(levels, part))
    return max(shares)


def _by_monotone_curve(x: Float[np.ndarray, " n"], ranks: Float[np.ndarray, " n"]) -> float:
    """Share of the ranks of the target that a monotone function of x explains: the squared rank correlation; if targets
    are tied, cross-validated with isotonic regression."""
    from sklearn.isotonic import IsotonicRegression

    rho = float(spearmanr(x, ranks).statistic)
    if 1 - len(np.unique(ranks)) / len(ranks) <= TIED_SHARE:
        return rho**2
    place, predicted = rankdata(x), np.empty(len(x))
    fold = np.random.default_rng(0).permutation(len(x)) % FOLDS
    for k in range(FOLDS):
        curve = IsotonicRegression(increasing=rho >= 0, out_of_bounds="clip").fit(place[fold != k], ranks[fold != k])
        predicted[fold == k] = curve.predict(place[fold == k])
    return max(rho**2, float(1 - np.mean((predicted - ranks) ** 2) / np.var(ranks)))


def _by_line(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Share of the variance that a line explains; zero if that depends on the most extreme targets, or is less than
    LINEAR_SHARE."""
    usual = np.argsort(np.abs(y - np.median(y)), kind="stable")[: len(y) - max(1, round(EXTREME_ROWS * len(y)))]
    if np.ptp(x[usual]) == 0 or np.ptp(y[usual]) == 0:
        return 0.0
    share, without = (float(np.corrcoef(x[rows], y[rows])[0, 1]) ** 2 for rows in (slice(None), usual))
    return share if share >= LINEAR_SHARE and without >= USUAL_SHARE else 0.0


def _by_intervals(x: Float[np.ndarray, " n"], sample: _Sample) -> float:
    """Share of the mistakes of a constant that one interval of x per class avoids. So few intervals do not overfit."""
    from sklearn.tree import DecisionTreeClassifier

    assert sample.codes is not None
    classes = len(np.unique(sample.codes))
    tree = DecisionTreeClassifier(max_leaf_nodes=classes + classes // 5, min_samples_leaf=2, random_state=0)
    return _avoided(tree.fit(x[:, None], sample.codes).predict(x[:, None]), sample.codes)


def _is_made_from(column: pd.Series, sample: _Sample) -> bool:
    """Whether a column is computed from the target of a regression with loss: each level is one interval of the target,
    or the numbers rise or fall with it without exception, as rounded and clipped ones do.

    Levels that gaps in the target separate may be real groups.
    """
    known = column.notna().to_numpy()
    y, values = sample.y[known], column.to_numpy()[known]
    if len(y) < MIN_KNOWN_ROWS:
        return False
    text = column.dtype.kind == "O"
    level = np.unique(values.astype(str) if text else values, return_inverse=True)[1]
    order = np.lexsort((level, y))
    y, level = y[order], level[order]
    count, change = int(level.max()) + 1, np.diff(level) != 0
    if count < 2 or np.any(change & (np.diff(y) == 0)):  # equal targets with different levels
        return False
    intervals = len(level) >= MIN_BAND_ROWS * count and change.sum() == count - 1
    rises = not text and (np.all(np.diff(level) >= 0) or np.all(np.diff(level) <= 0))
    gaps = np.diff(y)
    apart = gaps[change].max() > gaps[~change].max(initial=0.0)
    return bool((intervals or rises) and (not apart or (rises and count > len(level) / 3)))


def _by_level(level: Int[np.ndarray, " n"], sample: _Sample) -> float:
    """Share of the target explained by the mean rank, or the most frequent class, of the other rows of a level, over
    levels with several rows; zero if these have less than half of the rows."""
    several = np.bincount(level)[level] > 1
    if 2 * several.sum() < len(level):
        return 0.0
    level, sample = np.unique(level[several], return_inverse=True)[1], sample.part(several)
    if sample.codes is None:
        others = (np.bincount(level, sample.ranks)[level] - sample.ranks) / (np.bincount(level)[level] - 1)
        return float(1 - np.mean((others - sample.ranks) ** 2) / np.var(sample.ranks))
    table = np.zeros((int(level.max()) + 1, int(sample.codes.max()) + 1), dtype=int)
    np.add.at(table, (level, sample.codes), 1)
    others = table[level]
    others[np.arange(len(level)), sample.codes] -= 1
    return _avoided(np.argmax(others, 1), sample.codes)


def _avoided(predicted: Int[np.ndarray, " n"], codes: Int[np.ndarray, " n"]) -> float:
    """Share of the mistakes of the most frequent class that the predictions avoid."""
    mistakes = 1 - np.bincount(codes).max() / len(codes)
    return float(1 - np.mean(predicted != codes) / mistakes) if mistakes > 0 else 0.0
