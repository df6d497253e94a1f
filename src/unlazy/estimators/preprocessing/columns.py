"""Columns of a table of numbers: scaling, standardization, and encoding of integer codes.

A code (a month, a grade, a square of a chess board) is a column with few values on an even grid, in any unit. Such a
column may be a number or a category; the feature search tries both. As a category each value seen in training gets an
indicator, in place of the number or in addition to it; unseen values have all indicators zero.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MAX_LEVELS = 32
"""Largest number of values of a code."""
ROWS_PER_LEVEL = 10
"""Average number of rows that each value needs; rarer values cannot be evaluated by leave-one-out."""
MAX_GRID_STEPS = 100
"""Largest number of grid steps between the smallest and the largest value."""
MAX_INDICATORS = 256
"""Largest number of indicators of all codes together; codes with fewer values come first."""


class ColumnScale(NamedTuple):
    """x → (x - offset)/scale for each column."""

    offset: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    @classmethod
    def from_data(
        cls, X: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"] | None, standardize: bool
    ) -> "ColumnScale":
        """Compute weighted mean and standard deviation of each column.

        Columns with two values are scaled so that they differ by one, since dividing a rare indicator by its standard
        deviation would make it the largest column. Constant columns become zero, whatever value they take later, since
        nothing is known about other values. Without `standardize` only the offset
        is subtracted, which improves the accuracy of distances, and the units are kept.
        """
        w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
        low, high = X.min(0), X.max(0)
        unit = np.maximum(np.abs(low), np.abs(high))
        unit = np.where(unit > 0, unit, 1)
        offset = (w @ (X / unit)) * unit
        rounding = 8 * np.finfo(X.dtype).eps * unit
        constant = high - low <= rounding
        offset = np.where(constant, low, offset)
        if not standardize:
            return cls(offset, np.ones_like(offset))
        span = np.where(constant, 1, high - low)
        scale = span * np.sqrt(w @ ((X - offset) / span) ** 2)
        two = np.all((low == X) | (high == X), axis=0)
        return cls(offset, np.where(constant, np.inf, np.where(two, span, scale)))

    def __call__(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return (X - self.offset) / self.scale


def weighted_median(
    values: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None
) -> Float[np.ndarray, " c"]:
    """Median of each column, where weights count rows; the midpoint of two values if half the weight is below."""
    if weights is None:
        return np.median(values, 0)
    order = np.argsort(values, 0)
    below = np.cumsum(weights[order], 0)
    half = 0.5 * below[-1]
    middle = [np.take_along_axis(order, np.argmax(at, 0)[None], 0) for at in (below >= half, below > half)]
    return 0.5 * sum(np.take_along_axis(values, row, 0)[0] for row in middle)


class Standardizer(NamedTuple):
    """x → (x - center)/scale for each column: mean zero and variance one; constant columns become zero.

    Unlike scikit-learn's StandardScaler it neither overflows for columns of size 1e200 nor treats columns of size
    1e-200 as constant.
    """

    center: np.ndarray
    scale: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (X - self.center) / self.scale

    def inverse(self, X: np.ndarray) -> np.ndarray:
        """Map standardized columns back to their units."""
        return X * self.scale + self.center


def fit_standardizer(X: np.ndarray, weights: np.ndarray | None = None) -> Standardizer:
    """Compute mean and standard deviation of each column; columns constant up to rounding get scale one."""
    center = np.average(X, axis=0, weights=weights)
    largest = np.abs(X).max(0)
    unit = np.where(largest > 0, largest, 1)  # so that squares neither overflow nor underflow
    deviation = unit * np.sqrt(np.average(((X - center) / unit) ** 2, axis=0, weights=weights))
    varies = deviation > 10 * np.finfo(X.dtype).eps * largest
    return Standardizer(center.astype(X.dtype), np.where(varies, deviation, 1).astype(X.dtype))


class IntegerCodes(NamedTuple):
    """Columns encoded as categories, the values of each, and whether the numbers are kept next to the indicators."""

    columns: tuple[int, ...] = ()
    levels: tuple[Float[np.ndarray, " l"], ...] = ()
    numbers: bool = True

    @classmethod
    def from_columns(cls, X: Float[np.ndarray, "n d"], columns: Iterable[int]) -> "IntegerCodes":
        """Encode these columns with all values that occur."""
        columns = tuple(sorted(set(columns)))
        return cls(columns, tuple(np.unique(X[:, j]) for j in columns))

    def __call__(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n e"]:
        """Encode X: numbers first, in their order, then the indicators of each column."""
        if not self.columns:
            return X
        kept = X if self.numbers else np.delete(X, self.columns, 1)
        indicators = [X[:, [j]] == values for j, values in zip(self.columns, self.levels)]
        return np.hstack([kept, *indicators], dtype=X.dtype)

    def source(self, d: int) -> np.ndarray:
        """Return the original column, of d, of each encoded column."""
        kept = [j for j in range(d) if self.numbers or j not in self.columns]
        return np.array(kept + [j for j, values in zip(self.columns, self.levels) for _ in values])

    @property
    def coding(self) -> str:
        """ "numbers", "categories" or "numbers and categories"."""
        return "numbers" if not self.columns else "numbers and categories" if self.numbers else "categories"


def encoding_options(
    X: Float[np.ndarray, "n d"], asked: Iterable[object] | None, names: Iterable[object] | None
) -> list[IntegerCodes]:
    """List the encodings to choose from, the simplest first; only one if the categorical columns are given."""
    if asked is not None:
        return [
            IntegerCodes.from_columns(X, (column_position(column, X.shape[1], names) for column in asked))._replace(
                numbers=False
            )
        ]
    codes = find_integer_codes(X)
    return [IntegerCodes(), codes, codes._replace(numbers=False)] if codes.columns else [IntegerCodes()]


def column_position(column: object, d: int, names: Iterable[object] | None) -> int:
    """Return the index of a column given by name or index; raise ValueError if there is none."""
    known = [] if names is None else [str(name) for name in names]
    if isinstance(column, str) and column in known:
        return known.index(column)
    if isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < d:
        return int(column)
    has = f"0 to {d - 1}" + (f" and {', '.join(known[:8])}" if known else "")
    raise ValueError(f"categorical contains {column!r}, which is not a column; the columns are {has}")


def find_integer_codes(X: Float[np.ndarray, "n d"]) -> IntegerCodes:
    """Find columns with 3 to MAX_LEVELS values on a grid; prefer fewer values if there are too many."""
    most = min(MAX_LEVELS, len(X) // ROWS_PER_LEVEL)
    sample = X[: 4 * MAX_LEVELS]
    found = []
    for j in range(X.shape[1]):
        if len(np.unique(sample[:, j])) > most:  # cheap test that excludes most columns
            continue
        values = np.unique(X[:, j])
        if 3 <= len(values) <= most and _on_a_grid(values):
            found.append((len(values), j))
    total, chosen = 0, []
    for count, j in sorted(found):
        total += count
        if total <= MAX_INDICATORS:
            chosen.append(j)
    return IntegerCodes.from_columns(X, chosen)


def _on_a_grid(values: Float[np.ndarray, " l"]) -> bool:
    """Return whether sorted values are integer multiples of their smallest gap, up to a relative error of 1e-3."""
    steps = (values - values[0]) / np.min(np.diff(values))
    return bool(steps[-1] <= MAX_GRID_STEPS and np.all(np.abs(steps - np.round(steps)) <= 1e-3))
