"""Statistics that an encoder of tables learns from training rows: medians, and means of the target by category."""

from typing import NamedTuple

import numpy as np

from unlazy.core.arrays import Labels
from unlazy.estimators.preprocessing.columns import weighted_median

SHARE_OF_COPIES = 0.9
"""Equal rows are copies if the number of distinct rows of numbers and dates is at least this share of that of rows."""
MAX_CLASSES = 100
"""Integer targets with more distinct values are numbers; others are classes."""


class TrainingRows(NamedTuple):
    """Targets, weights and folds of the training rows."""

    Y: np.ndarray
    """Shape (n, c): zeros if there are no targets."""
    weights: np.ndarray | None
    """The number of rows that each row counts for: its weight, but one on average if weights are smaller."""
    fold: np.ndarray
    supervised: bool

    @property
    def counts(self) -> np.ndarray:
        return np.ones(len(self.Y)) if self.weights is None else self.weights

    def cross_fitted_means(self, codes: np.ndarray, k: int, smoothing: float) -> np.ndarray:
        """Mean target of the category of each row over the rows of other folds."""
        found, w = np.empty_like(self.Y), self.weights
        for f in range(int(self.fold.max()) + 1):
            others = self.fold != f
            if not (others.any() if w is None else w[others].any()):
                found[~others] = mean_target(self.Y, w)
                continue
            part = None if w is None else w[others]
            found[~others] = shrunk_means(codes[others], self.Y[others], k, smoothing, part)[codes[~others]]
        return found


def group_copies(columns: list[np.ndarray]) -> np.ndarray:
    """Group of each row: copies share one, so that the mean target of a row does not contain its own label.

    Equal rows of a table of categories are different cases that look alike. They are copies if equal numbers and dates
    nearly always come with equal categories.
    """
    numbers = [values for values in columns if values.dtype.kind != "O"]
    if not 0 < len(numbers) < len(columns):
        return np.arange(len(columns[0]))
    group, coarse = _equal_rows(columns), _equal_rows(numbers)
    distinct = group.max() + 1
    return group if coarse.max() + 1 >= SHARE_OF_COPIES * distinct else np.arange(len(group))


def _equal_rows(columns: list[np.ndarray]) -> np.ndarray:
    """Index of the group of equal rows of each row, in an order that does not depend on that of the rows."""
    import pandas as pd

    hashed = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False)
    return np.unique(hashed.to_numpy(), return_inverse=True)[1]


def targets_to_average(y: Labels | None, n: int) -> np.ndarray:
    """Targets that are averaged over categories: y, or the indicators of all classes but the first."""
    if y is None:
        return np.zeros((n, 1))
    y = np.asarray(y)
    if len(y) != n:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: X has {n}, y has {len(y)}")
    if y.dtype.kind == "f" or y.ndim > 1:
        return y.reshape(n, -1).astype(np.float64)
    classes = np.unique(y)
    if y.dtype.kind in "iu" and len(classes) > MAX_CLASSES:
        return y.reshape(n, 1).astype(np.float64)
    return (y[:, None] == classes[None, 1:]).astype(np.float64) if len(classes) > 1 else np.zeros((n, 1))


def median_of_known(values: np.ndarray, w: np.ndarray | None) -> float:
    """Median of the known values; zero if there are none."""
    known = ~np.isnan(values)
    if not known.any():
        return 0.0
    return float(weighted_median(values[known][:, None], None if w is None else w[known])[0])


def shrunk_means(codes: np.ndarray, Y: np.ndarray, k: int, smoothing: float, w: np.ndarray | None) -> np.ndarray:
    """(Σ_{i in c} w_i y_i + m·ȳ)/(n_c + m) for each category c of weight n_c."""
    count = np.bincount(codes, w, minlength=k)[:, None]
    total = np.stack([np.bincount(codes, column if w is None else w * column, minlength=k) for column in Y.T], 1)
    return (total + smoothing * mean_target(Y, w)) / (count + smoothing)


def mean_target(Y: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    """Weighted mean of each target."""
    return Y.mean(0) if w is None else w @ Y / w.sum()
