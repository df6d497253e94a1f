"""A point amid the others: where only differences count, points are measured from it, so that rounding is relative to
their spread and not to their offset.

A mean would do, but for rows that are no points like the others: one of 10^5, or many where 9999 stands for nothing,
move it out of the rest. So it is the median, coordinate by coordinate, of some rows evenly spread over all.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.numerics.bandwidth import some_rows

ROWS = 31
"""Rows that are looked at: their median is within a quarter of the points' own spread of that of all."""


def middle(points: Any) -> Any:
    """The lower median of up to `ROWS` rows, of NumPy's or JAX's points; what depends on differences of points alone
    has no derivative by it."""
    rows = points[some_rows(len(points), ROWS)]
    place = (len(rows) - 1) // 2
    if isinstance(points, np.ndarray):
        return np.sort(rows, axis=0)[place] if len(rows) else np.zeros(points.shape[1:], points.dtype)
    rows = jax.lax.stop_gradient(rows)
    first = np.arange(len(rows))[:, None] < np.arange(len(rows))  # of equal ones
    below = (rows[:, None] < rows) | ((rows[:, None] == rows) & first[:, :, None])
    return jnp.sum(jnp.where(jnp.sum(below, 0) == place, rows, 0), 0)  # no sorting: a small program
