"""Bandwidth and ridge by leave-one-out: downhill together on a grid of logarithms [K2, K3].

A Cholesky factor and its inverse cost a tenth of an eigendecomposition, so a search that looks at few ridges uses them.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from unlazy.solvers.ridge.factorization import judging_precision
from unlazy.solvers.ridge.intercept import fit

SMALLEST, LARGEST = 1e-9, 1e3
"""Ridges stay between these, in units of the mean of k(x, x)."""
Place = tuple[float, float]
"""Bandwidth, and ridge relative to the mean of k(x, x)."""

LARGE, SMALL = (2.0, 10.0), (2.0**0.5, 10.0**0.5)
"""Factors of bandwidth and ridge by which a search moves."""


def descend(
    error: Callable[[float, float], float],
    start: Place,
    *,
    ridge: bool = True,
    bandwidth: bool = True,
    steps: tuple[Place, ...] = (LARGE, SMALL),
    reach: float = 128.0,
    worth: float = 1e-4,
    at_start: float | None = None,
) -> tuple[Place, float]:
    """Bandwidth and ridge of a small error: downhill from `start`, first by large factors, then by small ones.

    `ridge` and `bandwidth` say what may move; the bandwidth stays within a factor `reach` of its start. A move counts
    where it takes more than the share `worth` off the error (at the start that is `at_start`, where known); one that
    helped is tried again first. An infinite error (K + ρI not positive) at the start raises the ridge.
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
    while ridge and math.isinf(best) and rho < LARGEST:
        rho *= 10
        best = at(h, rho)
    for by_h, by_rho in steps:
        moves = [(1, by_rho), (1, 1 / by_rho)] * ridge + [(by_h, 1), (1 / by_h, 1)] * bandwidth
        moved = True
        while moved:
            moved = False
            for move in moves:
                new_h, new_rho = h * move[0], rho * move[1]
                inside = SMALLEST <= new_rho <= LARGEST and 1 / reach <= new_h / first <= reach
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
    """The leave-one-out error as a function of bandwidth and ridge; `gram` is K as a function of the bandwidth, keeping
    its last one (`View.gram`)."""

    def error(h: float, rho: float) -> float:
        found = fit(gram(h, dtype=judging_precision(len(Y), rho, weights)), Y, rho, weights)
        return math.inf if found is None else found.error

    return error
