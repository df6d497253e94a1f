"""Detection and one-hot encoding of integer codes: months, grades, squares of a chess board.

A code is a column with few values on an even grid, in any unit. Such a column may be a number or a category; the
feature search tries both. As a category each value seen in training gets an indicator, in place of the number or in
addition to it; unseen values have all indicators zero.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

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


def encoding_options(X: Float[np.ndarray, "n d"], asked: Any, names: Any) -> list[IntegerCodes]:
    """List the encodings to choose from, the simplest first; only one if the categorical columns are given."""
    if asked is not None:
        return [
            IntegerCodes.from_columns(X, (_position(column, X.shape[1], names) for column in asked))._replace(
                numbers=False
            )
        ]
    codes = find_integer_codes(X)
    return [IntegerCodes(), codes, codes._replace(numbers=False)] if codes.columns else [IntegerCodes()]


def _position(column: Any, d: int, names: Any) -> int:
    """Return the index of a column given by name or index; raise ValueError if there is none."""
    known = [] if names is None else [str(name) for name in names]
    if isinstance(column, str) and column in known:
        return known.index(column)
    if isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < d:
        return int(column)
    has = f"0 to {d - 1}" + (f" and {', '.join(known[:8])}" if known else "")
    raise ValueError(f"categories contains {column!r}, which is not a column; the columns are {has}")


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
