"""Robust center of points, subtracted before squares are expanded.

A mean would be moved by outlying rows (1e5, or 9999 for "missing"), so the center is the coordinate-wise median of a
few evenly spaced rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.theory.numerics.bandwidth import evenly_spaced_rows

MEDIAN_ROWS = 31
"""Rows used: their median is within a quarter of the spread of the points from the median of all."""


def robust_center(points: np.ndarray | Array) -> np.ndarray | Array:
    """Coordinate-wise lower median of up to 31 evenly spaced rows.

    Kernels of differences subtract it before they expand squares, so that rounding errors scale with the spread of the
    points instead of their offset. A median, because a few outlying rows (1e5, or 9999 for "missing") must not cost the
    others digits. Gradients are stopped: such kernels do not depend on the center.

    Parameters
    ----------
    points : array of shape (n, d)
        NumPy or JAX.

    Returns
    -------
    array of shape (d,)
    """
    rows = points[evenly_spaced_rows(len(points), MEDIAN_ROWS)]
    place = (len(rows) - 1) // 2
    if isinstance(points, np.ndarray):
        return np.sort(rows, axis=0)[place] if len(rows) else np.zeros(points.shape[1:], points.dtype)
    rows = jax.lax.stop_gradient(rows)
    first = np.arange(len(rows))[:, None] < np.arange(len(rows))  # ties
    below = (rows[:, None] < rows) | ((rows[:, None] == rows) & first[:, :, None])
    return jnp.sum(jnp.where(jnp.sum(below, 0) == place, rows, 0), 0)  # without sorting: a small program
