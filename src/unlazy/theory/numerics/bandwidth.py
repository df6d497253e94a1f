"""The usual bandwidth: distances between points, or norms, are then of size one in a kernel's eyes.

The median of the distances between some rows for kernels of a distance (Gretton et al. 2012), the root mean square of
the norms for the others.
"""

import functools
import math

import numpy as np
from jaxtyping import Float, Int


def some_rows(n: int, most: int) -> Int[np.ndarray, " m"]:
    """At most so many of n rows, evenly spread over them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


@functools.lru_cache(maxsize=2)
def pairs(m: int) -> tuple[Int[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """Every pair of m different rows, once."""
    return np.triu_indices(m, 1)


def median_distance(distances: Float[np.ndarray, " p"], otherwise: float) -> float:
    """The median over pairs, of distances or of their squares; `otherwise` where half of the pairs coincide."""
    found = float(np.median(distances)) if len(distances) else 0.0
    return found if found > 0 else otherwise


def typical_norm(squares: Float[np.ndarray, " n"], otherwise: float = 1.0) -> float:
    """The root mean square of the norms, from their squares; `otherwise` where all are 0."""
    found = float(np.mean(squares))
    return math.sqrt(found) if found > 0 else otherwise
