"""Detection of suspicious inputs: likely target leakage, identifiers and row numbers."""

import re
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata, spearmanr

from unlazy.comparison.data.table import EncodedTable

LEAK_SHARE = 0.98
"""An input that alone explains at least this share of the target (of its ranks) is a likely leak."""
MIN_RANK_CORRELATION = 0.95
"""Inputs with a smaller rank correlation cannot reach LEAK_SHARE and are skipped."""
MAX_ROWS, MAX_COLUMNS = 2000, 50
"""Rows that are checked, and numeric columns that are checked, by rank correlation or class means."""
_IDENTIFIER = re.compile(r"(^|[^a-z])(id|ids|index|idx|row|uuid|key|number|nr|no)([^a-z]|$)", re.IGNORECASE)


class Suspect(NamedTuple):
    """An input that may not be available, or not meaningful, at prediction time."""

    name: str
    reason: Literal["leak", "identifier"]
    share: float
    """Share of the target that the input explains alone; NaN for an identifier."""


def find_suspects(table: "EncodedTable") -> tuple[Suspect, ...]:
    """Find likely leaks, identifiers and row numbers among the inputs; none if there is only one input."""
    if table.frame.shape[1] < 2:
        return ()
    found = [Suspect(name, "leak", share) for name, share in _find_leaks(table)]
    named = {s.name for s in found}
    for name in table.frame.columns:
        if name not in named and _is_identifier(str(name), table.frame[name].to_numpy()):
            found.append(Suspect(str(name), "identifier", float("nan")))
    return tuple(found) if len(found) < table.frame.shape[1] else ()


def _is_identifier(name: str, values: np.ndarray) -> bool:
    """Whether the values are distinct integers that are consecutive, or in a column named like an identifier."""
    if values.dtype.kind == "O" or np.isnan(values).any() or np.any(values != np.round(values)):
        return False
    if len(np.unique(values)) < len(values):
        return False
    steps = np.diff(values)
    return bool(np.all(steps == 1)) or bool(_IDENTIFIER.search(name))


def _find_leaks(table: "EncodedTable") -> list[tuple[str, float]]:
    """Inputs that alone explain nearly all of the target, with the share they explain."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(table))[:MAX_ROWS])
    frame, y, half = table.frame.iloc[rows], table.y[rows], rng.permutation(len(rows)) % 2
    codes = np.unique(y, return_inverse=True)[1] if table.classes is not None else None
    found = []
    for name in _columns_to_check(frame, y, codes):
        values = frame[name].to_numpy()
        if values.dtype.kind == "O":
            levels, values = np.unique([str(v) for v in values], return_inverse=True)
            share = _by_level(values, y, codes, half) if len(levels) <= len(y) / 10 else 0.0
        else:
            values = np.where(np.isnan(values), np.nanmedian(values), values)
            share = _by_curve(values, y, codes, half)
        if share >= LEAK_SHARE:
            found.append((str(name), min(share, 1.0)))
    return found


def _columns_to_check(frame: pd.DataFrame, y: np.ndarray, codes: np.ndarray | None) -> list[str]:
    """All text columns, and the numeric columns with the largest rank association with the target."""
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
        weight[weight < MIN_RANK_CORRELATION] = -1
    else:
        weight = np.max([np.abs(ranks[codes == k].mean(0)) for k in range(codes.max() + 1)], 0)
    order = np.argsort(-weight)[:MAX_COLUMNS]
    return [*text, *(numbers[j] for j in order if weight[j] >= 0)]


def _by_curve(x: np.ndarray, y: np.ndarray, codes: np.ndarray | None, half: np.ndarray) -> float:
    """Share of y explained by x: the squared rank correlation, which is 1 if y is a monotone function of x; for classes
    the share explained by a small decision tree on x, cross-validated on two halves of the rows."""
    from sklearn.tree import DecisionTreeClassifier

    if codes is None:
        return float(spearmanr(x, y).statistic) ** 2
    predicted = np.empty(len(y), dtype=int)
    for h in (0, 1):
        leaves = 4 * (int(codes.max()) + 1)
        tree = DecisionTreeClassifier(max_leaf_nodes=leaves, min_samples_leaf=2, random_state=0)
        tree.fit(x[half != h, None], codes[half != h])
        predicted[half == h] = tree.predict(x[half == h, None])
    return _explained(predicted, y, codes)


def _by_level(level: np.ndarray, y: np.ndarray, codes: np.ndarray | None, half: np.ndarray) -> float:
    """Share of y explained by the mean, or the most frequent class, of each category; cross-validated on two halves."""
    predicted = np.empty(len(y), dtype=np.float64 if codes is None else int)
    for h in (0, 1):
        for k in np.unique(level[half == h]):
            seen = (level == k) & (half != h)
            seen = seen if seen.any() else half != h
            value = y[seen].mean() if codes is None else np.bincount(codes[seen]).argmax()
            predicted[(level == k) & (half == h)] = value
    return _explained(predicted, y, codes)


def _explained(predicted: np.ndarray, y: np.ndarray, codes: np.ndarray | None) -> float:
    """Explained share of the variance, or of the misclassifications of a constant."""
    if codes is None:
        return float(1 - np.mean((predicted - y) ** 2) / np.var(y))
    return float(1 - np.mean(predicted != codes) / (1 - np.bincount(codes).max() / len(codes)))
