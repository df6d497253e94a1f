"""Default bandwidths, which scale distances or norms to order one.

The median distance between sampled rows for kernels of a distance (Gretton et al. 2012), the root mean square norm for
the others.
"""

import functools
import math

import numpy as np
from jaxtyping import Float, Int


def evenly_spaced_rows(n: int, most: int) -> Int[np.ndarray, " m"]:
    """Indices of at most `most` of n rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


@functools.lru_cache(maxsize=2)
def row_pairs(m: int) -> tuple[Int[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """Indices (i, j) of all pairs of m different rows, each once."""
    return np.triu_indices(m, 1)


def median_distance(distances: Float[np.ndarray, " p"], otherwise: float) -> float:
    """Median of pairwise distances (or of their squares); `otherwise` if at least half of them are zero."""
    found = float(np.median(distances)) if len(distances) else 0.0
    return found if found > 0 else otherwise


def root_mean_square_norm(squares: Float[np.ndarray, " n"], otherwise: float = 1.0) -> float:
    """Root mean square of norms, given their squares; `otherwise` if all are zero."""
    found = float(np.mean(squares))
    return math.sqrt(found) if found > 0 else otherwise
