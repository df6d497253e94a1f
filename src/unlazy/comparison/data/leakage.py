"""Columns to ask about: likely leaks of the target, identifiers and row numbers."""

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from unlazy.comparison.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.98
"""Share of the target (of the order of its values) that one input alone explains, from which on it is a likely leak."""
RANKS = 0.95
"""Rank correlation below which no rising or falling curve can."""
ROWS, COLUMNS = 2000, 50
"""Rows that are looked at, and columns whose curves are fitted, by rank correlation or class means."""
_IDENTIFIER = re.compile(r"(^|[^a-z])(id|ids|index|idx|row|uuid|key|number|nr|no)([^a-z]|$)", re.IGNORECASE)


class Suspect(NamedTuple):
    """A column that may tell what no one would know."""

    name: str
    why: Literal["leak", "identifier"]
    share: float
    """Of the target that it alone explains; NaN for an identifier."""


def suspects(table: "Table") -> tuple[Suspect, ...]:
    """Likely leaks, identifiers and row numbers among the inputs; none where there is but one input."""
    if table.frame.shape[1] < 2:
        return ()
    found = [Suspect(name, "leak", share) for name, share in _leaks(table)]
    named = {s.name for s in found}
    for name in table.frame.columns:
        if name not in named and _numbers_rows(str(name), table.frame[name].to_numpy()):
            found.append(Suspect(str(name), "identifier", float("nan")))
    return tuple(found) if len(found) < table.frame.shape[1] else ()


def _numbers_rows(name: str, values: np.ndarray) -> bool:
    """Whole numbers, each once: the rows in order, or so named."""
    if values.dtype.kind == "O" or np.isnan(values).any() or np.any(values != np.round(values)):
        return False
    if len(np.unique(values)) < len(values):
        return False
    steps = np.diff(values)
    return bool(np.all(steps == 1)) or bool(_IDENTIFIER.search(name))


def _leaks(table: "Table") -> list[tuple[str, float]]:
    """Inputs that alone explain nearly everything, with the share they explain."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(table))[:ROWS])
    frame, y, half = table.frame.iloc[rows], table.y[rows], rng.permutation(len(rows)) % 2
    codes = np.unique(y, return_inverse=True)[1] if table.classes is not None else None
    found = []
    for name in _candidates(frame, y, codes):
        values = frame[name].to_numpy()
        if values.dtype.kind == "O":
            levels, values = np.unique([str(v) for v in values], return_inverse=True)
            share = _by_level(values, y, codes, half) if len(levels) <= len(y) / 10 else 0.0
        else:
            values = np.where(np.isnan(values), np.nanmedian(values), values)
            share = _by_curve(values, y, codes, half)
        if share >= SURE:
            found.append((str(name), min(share, 1.0)))
    return found


def _candidates(frame: "pd.DataFrame", y: np.ndarray, codes: np.ndarray | None) -> list[str]:
    """All columns of text, and the columns of numbers whose order goes with the target's most."""
    from scipy.stats import rankdata

    text = [n for n in frame.columns if frame[n].dtype.kind == "O"]
    numbers = [n for n in frame.columns if n not in set(text)]
    if not numbers:
        return text
    X = frame[numbers].to_numpy(dtype=np.float64)
    ranks = rankdata(np.where(np.isnan(X), np.nanmedian(X, 0), X), axis=0)
    ranks = (ranks - ranks.mean(0)) / np.maximum(ranks.std(0), 1e-12)
    if codes is None:
        target = rankdata(y)
        weight = np.abs(ranks.T @ ((target - target.mean()) / target.std())) / len(y)
        weight[weight < RANKS] = -1
    else:
        weight = np.max([np.abs(ranks[codes == k].mean(0)) for k in range(codes.max() + 1)], 0)
    order = np.argsort(-weight)[:COLUMNS]
    return [*text, *(numbers[j] for j in order if weight[j] >= 0)]


def _by_curve(x: np.ndarray, y: np.ndarray, codes: np.ndarray | None, half: np.ndarray) -> float:
    """What x says of the order of y, its squared rank correlation: all of it if y is a rising or falling curve of x; of
    classes what few steps of x say, each half of the rows by the other."""
    from scipy.stats import spearmanr
    from sklearn.tree import DecisionTreeClassifier

    if codes is None:
        return float(spearmanr(x, y).statistic) ** 2
    told = np.empty(len(y), dtype=int)
    for h in (0, 1):
        leaves = 4 * (int(codes.max()) + 1)
        tree = DecisionTreeClassifier(max_leaf_nodes=leaves, min_samples_leaf=2, random_state=0)
        tree.fit(x[half != h, None], codes[half != h])
        told[half == h] = tree.predict(x[half == h, None])
    return _explained(told, y, codes)


def _by_level(level: np.ndarray, y: np.ndarray, codes: np.ndarray | None, half: np.ndarray) -> float:
    """The same by the mean, or the commonest class, of every category."""
    told = np.empty(len(y), dtype=np.float64 if codes is None else int)
    for h in (0, 1):
        for k in np.unique(level[half == h]):
            seen = (level == k) & (half != h)
            seen = seen if seen.any() else half != h
            value = y[seen].mean() if codes is None else np.bincount(codes[seen]).argmax()
            told[(level == k) & (half == h)] = value
    return _explained(told, y, codes)


def _explained(told: np.ndarray, y: np.ndarray, codes: np.ndarray | None) -> float:
    """Share of the variance, or of a constant's mistakes."""
    if codes is None:
        return float(1 - np.mean((told - y) ** 2) / np.var(y))
    return float(1 - np.mean(told != codes) / (1 - np.bincount(codes).max() / len(codes)))
