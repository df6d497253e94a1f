"""Columns that look like codes: months, grades, squares of a chess board. Numbers, or names of things? Both are tried.

A code takes few values on an even grid, whatever its unit: units and offsets do not matter here either. As categories
every value met in training gets an indicator, in place of the number or beside it; one never met has none.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

LEVELS = 32
"""Most values of a code."""
ROWS_A_LEVEL = 10
"""Rows that every value needs on average: of rarer ones leave-one-out knows nothing."""
GRID = 100
"""Most steps of the grid between the smallest and the largest value."""
INDICATORS = 256
"""Most indicators of all codes together; codes of fewer values come first."""


class Codes(NamedTuple):
    """Columns read as categories, the values of each, and whether their numbers stay beside the indicators."""

    columns: tuple[int, ...] = ()
    levels: tuple[Float[np.ndarray, " l"], ...] = ()
    numbers: bool = True

    @classmethod
    def of(cls, X: Float[np.ndarray, "n d"], columns: Iterable[int]) -> "Codes":
        """These columns with all values they have."""
        columns = tuple(sorted(set(columns)))
        return cls(columns, tuple(np.unique(X[:, j]) for j in columns))

    def __call__(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n e"]:
        """Numbers first, in their order, then the indicators of one column after the other."""
        if not self.columns:
            return X
        kept = X if self.numbers else np.delete(X, self.columns, 1)
        indicators = [X[:, [j]] == values for j, values in zip(self.columns, self.levels)]
        return np.hstack([kept, *indicators], dtype=X.dtype)

    def source(self, d: int) -> np.ndarray:
        """The column of d that every encoded one comes from."""
        kept = [j for j in range(d) if self.numbers or j not in self.columns]
        return np.array(kept + [j for j, values in zip(self.columns, self.levels) for _ in values])

    @property
    def coding(self) -> str:
        """One word for what was done."""
        return "numbers" if not self.columns else "numbers and categories" if self.numbers else "categories"


def readings(X: Float[np.ndarray, "n d"], asked: Any, names: Any) -> list[Codes]:
    """What there is to choose from, the plainest first; one, where the columns of categories are `asked` for."""
    if asked is not None:
        return [Codes.of(X, (_position(column, X.shape[1], names) for column in asked))._replace(numbers=False)]
    codes = look_like_codes(X)
    return [Codes(), codes, codes._replace(numbers=False)] if codes.columns else [Codes()]


def _position(column: Any, d: int, names: Any) -> int:
    known = [] if names is None else [str(name) for name in names]
    if isinstance(column, str) and column in known:
        return known.index(column)
    if isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < d:
        return int(column)
    has = f"0 to {d - 1}" + (f" and {', '.join(known[:8])}" if known else "")
    raise ValueError(f"categories names the column {column!r}; the columns are {has}")


def look_like_codes(X: Float[np.ndarray, "n d"]) -> Codes:
    """The columns of 3 to LEVELS values on a grid, those with the fewest values first where they are too many."""
    most = min(LEVELS, len(X) // ROWS_A_LEVEL)
    sample = X[: 4 * LEVELS]
    found = []
    for j in range(X.shape[1]):
        if len(np.unique(sample[:, j])) > most:  # most columns end here, unsorted
            continue
        values = np.unique(X[:, j])
        if 3 <= len(values) <= most and _on_a_grid(values):
            found.append((len(values), j))
    total, chosen = 0, []
    for count, j in sorted(found):
        total += count
        if total <= INDICATORS:
            chosen.append(j)
    return Codes.of(X, chosen)


def _on_a_grid(values: Float[np.ndarray, " l"]) -> bool:
    """Whether sorted values are whole multiples of their smallest gap, to a thousandth: they may be rounded."""
    steps = (values - values[0]) / np.min(np.diff(values))
    return bool(steps[-1] <= GRID and np.all(np.abs(steps - np.round(steps)) <= 1e-3))
