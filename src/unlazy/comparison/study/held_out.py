"""Predictions of rows that a model was not trained on, as the trials kept them: residuals, and how often classes that
were said to be so likely come."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.comparison.study.study import Study

BINS, LEAST = 8, 15
"""Groups of rows by their probability, and how many rows each has at least."""


class HeldOut(NamedTuple):
    """Test rows of every split at the largest size: predictions (a column a class for classes), the truth, the row."""

    predicted: list[np.ndarray]
    truth: list[np.ndarray]
    rows: list[np.ndarray]


class Bins(NamedTuple):
    """Rows by how likely a class was said to be: mean probability, share that had it with its 95% interval, count."""

    said: np.ndarray
    came: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray


def held_out(study: Study, name: str) -> HeldOut | None:
    """What trials kept of this model; None where they did not."""
    records = [r for r in study.records.where(contestant=name, n=study.sizes[-1]) if "predicted" in r.measures]
    if not records:
        return None
    rows = [np.asarray(r.measures["held_out"], int) for r in records]
    return HeldOut([np.asarray(r.measures["predicted"]) for r in records], [study.table.y[i] for i in rows], rows)


def residuals(study: Study, name: str) -> list[np.ndarray]:
    """What its predictions of test rows were off by, split by split; none for classes."""
    found = held_out(study, name)
    if found is None or study.table.task == "classification":
        return []
    return [truth - predicted[:, 0] for predicted, truth in zip(found.predicted, found.truth)]


def calibration(found: HeldOut, classes: np.ndarray) -> Bins:
    """Of two classes how likely the second was said to be, of more how likely the likeliest: against how often it came.

    Splits test rows again, which says little new: a row counts once, with its mean over splits."""
    P, truth = _once(found)
    if len(classes) == 2:
        said, came = P[:, 1], truth == classes[1]
    else:
        best = np.argmax(P, 1)
        said, came = P[np.arange(len(P)), best], truth == classes[best]
    return bins(said, came)


def _once(found: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    """Mean predictions of every row that was tested on, and its truth."""
    rows, index = np.unique(np.concatenate(found.rows), return_inverse=True)
    P, truth = np.concatenate(found.predicted), np.concatenate(found.truth)
    total = np.stack([np.bincount(index, column, len(rows)) for column in P.T], 1)
    first = np.unique(index, return_index=True)[1]
    return total / np.bincount(index)[:, None], truth[first]


def bins(said: Float[np.ndarray, " m"], came: np.ndarray) -> Bins:
    """As many rows in each; shares with the exact interval of Clopper and Pearson (1934)."""
    from scipy.stats import binomtest

    parts = np.array_split(np.argsort(said, kind="stable"), max(1, min(BINS, len(said) // LEAST)))
    told = [binomtest(int(came[part].sum()), len(part)) for part in parts]
    ends = [test.proportion_ci(0.95, "exact") for test in told]
    shares = [test.statistic for test in told]
    means = [float(said[part].mean()) for part in parts]
    columns = (means, shares, [e.low for e in ends], [e.high for e in ends], [len(part) for part in parts])
    return Bins(*map(np.array, columns))
