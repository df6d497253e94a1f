"""Predictions of held-out rows, as stored by the trials: residuals of a regression, calibration of probabilities."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest

from unlazy.comparison.study.study import Study

MAX_BINS, MIN_BIN_ROWS = 8, 15
"""Maximum number of calibration bins, and minimum number of rows in each."""


class HeldOutPredictions(NamedTuple):
    """Test rows of each split at the largest size: predictions (one column per class), true targets, row indices."""

    predicted: list[np.ndarray]
    truth: list[np.ndarray]
    rows: list[np.ndarray]


class CalibrationBins(NamedTuple):
    """Rows binned by predicted probability: its mean, the observed frequency with its 95% interval, the row count."""

    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray


def held_out_predictions(study: Study, name: str) -> HeldOutPredictions | None:
    """Held-out predictions of a model; None if the trials stored none."""
    records = [r for r in study.records.where(candidate=name, n=study.sizes[-1]) if "predicted" in r.measures]
    if not records:
        return None
    rows = [np.asarray(r.measures["held_out"], int) for r in records]
    return HeldOutPredictions(
        [np.asarray(r.measures["predicted"]) for r in records], [study.table.y[i] for i in rows], rows
    )


def held_out_residuals(study: Study, name: str) -> list[np.ndarray]:
    """Residuals of the test rows of each split; an empty list for classes."""
    found = held_out_predictions(study, name)
    if found is None or study.table.task == "classification":
        return []
    return [truth - predicted[:, 0] for predicted, truth in zip(found.predicted, found.truth)]


def calibration(found: HeldOutPredictions, classes: np.ndarray) -> CalibrationBins:
    """Calibration of the second of two classes, or of the most probable of several classes.

    Test sets of different splits share rows, so each row counts once, with its mean prediction over splits.
    """
    P, truth = _average_per_row(found)
    if len(classes) == 2:
        predicted, observed = P[:, 1], truth == classes[1]
    else:
        best = np.argmax(P, 1)
        predicted, observed = P[np.arange(len(P)), best], truth == classes[best]
    return bin_probabilities(predicted, observed)


def _average_per_row(found: HeldOutPredictions) -> tuple[np.ndarray, np.ndarray]:
    """Mean prediction over splits and true target of each test row."""
    rows, index = np.unique(np.concatenate(found.rows), return_inverse=True)
    P, truth = np.concatenate(found.predicted), np.concatenate(found.truth)
    total = np.stack([np.bincount(index, column, len(rows)) for column in P.T], 1)
    first = np.unique(index, return_index=True)[1]
    return total / np.bincount(index)[:, None], truth[first]


def bin_probabilities(predicted: Float[np.ndarray, " m"], observed: np.ndarray) -> CalibrationBins:
    """Bins of equal row counts; frequencies have the exact interval of Clopper and Pearson (1934)."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), max(1, min(MAX_BINS, len(predicted) // MIN_BIN_ROWS)))
    tests = [binomtest(int(observed[part].sum()), len(part)) for part in parts]
    ends = [test.proportion_ci(0.95, "exact") for test in tests]
    shares = [test.statistic for test in tests]
    means = [float(predicted[part].mean()) for part in parts]
    columns = (means, shares, [e.low for e in ends], [e.high for e in ends], [len(part) for part in parts])
    return CalibrationBins(*map(np.array, columns))
