"""Selection of bandwidth and ridge by leave-one-out error: coordinate search on a logarithmic grid [K2, K3].

A Cholesky factor and its inverse cost a tenth of an eigendecomposition, so a search over few ridges uses them.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from unlazy.solvers.ridge.factorization import evaluation_dtype
from unlazy.solvers.ridge.intercept import fit_ridge

SMALLEST_RIDGE, LARGEST_RIDGE = 1e-9, 1e3
"""Range of the ridges, relative to the mean of k(x, x)."""
BandwidthAndRidge = tuple[float, float]
"""Bandwidth, and ridge relative to the mean of k(x, x)."""

COARSE_STEP, FINE_STEP = (2.0, 10.0), (2.0**0.5, 10.0**0.5)
"""Factors of bandwidth and ridge in the coarse and in the fine search."""


def coordinate_search(
    error: Callable[[float, float], float],
    start: BandwidthAndRidge,
    *,
    ridge: bool = True,
    bandwidth: bool = True,
    steps: tuple[BandwidthAndRidge, ...] = (COARSE_STEP, FINE_STEP),
    reach: float = 128.0,
    worth: float = 1e-4,
    at_start: float | None = None,
) -> tuple[BandwidthAndRidge, float]:
    """Search a bandwidth and a ridge of small error, downhill from `start`, first by large and then by small factors.

    `ridge` and `bandwidth` say which of them may change; the bandwidth stays within a factor `reach` of its start. A
    move is accepted if it reduces the error by more than the share `worth`; a successful move is tried again first.
    `at_start` is the error at the start, if known. If it is infinite (K + ρI not positive definite), the ridge is
    increased first.
    """
    known: dict[tuple[int, int], float] = {}

    def at(h: float, rho: float) -> float:
        place = (round(1000 * math.log2(h)), round(1000 * math.log2(rho)))
        if place not in known:
            found = error(h, rho)
            known[place] = found if math.isfinite(found) else math.inf
        return known[place]

    (h, rho), (first, _) = start, start
    best = at(h, rho) if at_start is None else at_start
    while ridge and math.isinf(best) and rho < LARGEST_RIDGE:
        rho *= 10
        best = at(h, rho)
    for by_h, by_rho in steps:
        moves = [(1, by_rho), (1, 1 / by_rho)] * ridge + [(by_h, 1), (1 / by_h, 1)] * bandwidth
        moved = True
        while moved:
            moved = False
            for move in moves:
                new_h, new_rho = h * move[0], rho * move[1]
                inside = SMALLEST_RIDGE <= new_rho <= LARGEST_RIDGE and 1 / reach <= new_h / first <= reach
                if inside and at(new_h, new_rho) < best * (1 - worth):
                    h, rho, best, moved = new_h, new_rho, at(new_h, new_rho), True
                    moves = [move, *(m for m in moves if m != move)]
                    break
    return (h, rho), best


def leave_one_out(
    gram: Callable[..., Float[np.ndarray, "n n"]],
    Y: Float[np.ndarray, "n c"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Callable[[float, float], float]:
    """Return the leave-one-out error as a function of bandwidth and ridge.

    `gram` returns K for a bandwidth and caches the last one.
    """

    def error(h: float, rho: float) -> float:
        found = fit_ridge(gram(h, dtype=evaluation_dtype(len(Y), rho, weights)), Y, rho, weights)
        return math.inf if found is None else found.error

    return error
