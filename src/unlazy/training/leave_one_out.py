"""Kernel ridge regression with a free intercept, and its leave-one-out error in closed form [K2, K3].

min Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖² is solved by α = P y, P = A⁻¹ - A⁻¹11ᵀA⁻¹/(1ᵀA⁻¹1), A = K + ρW⁻¹, and the fit
that never saw point i misses y_i by α_i/P_ii. A Cholesky factor and its inverse cost a tenth of an eigendecomposition,
so a search that looks at few ridges uses them; bandwidth and ridge go downhill together on a grid of logarithms.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.theory.leave_one_out import bordered_diagonal, left_out, with_intercept

Square = Float[np.ndarray, "n n"]
SMALLEST, LARGEST = 1e-9, 1e3
"""Ridges stay between these, in units of the mean of k(x, x)."""


class Fit(NamedTuple):
    """Coefficients, intercept, and at every judged point the prediction of the fit without it."""

    alpha: Float[np.ndarray, "n c"]
    intercept: Float[np.ndarray, " c"]
    held_out: Float[np.ndarray, "m c"]
    error: float
    """Mean squared leave-one-out error over the variance of the outputs: 1 knows nothing but the mean."""


def fit(
    K: Square, Y: Float[np.ndarray, "n c"], relative_ridge: float, weights: Float[np.ndarray, " n"] | None = None,
    last: int | None = None,
) -> Fit | None:  # fmt: skip
    """The fit at one ridge, relative to the mean of k(x, x), judged at its `last` points (all, where None).

    None where A = K + ρW⁻¹ is not positive to rounding. With A = LLᵀ the last m diagonal entries of A⁻¹ are the squared
    column norms of the inverse of L's last m × m block, so few points are judged for little more than the factor.
    """
    from scipy.linalg.lapack import dtrtri, strtri

    L = _factor(K, relative_ridge, weights)
    if L is None:
        return None
    centre = mean(Y, weights)
    alpha, shift, ones = _centred(L, Y - centre)
    judged = slice(len(K) - (len(K) if last is None else last), None)
    inverse, _ = (dtrtri if K.dtype == np.float64 else strtri)(L[judged, judged], lower=1)
    diagonal = np.einsum("ij,ij->j", inverse, inverse)
    missed = left_out(alpha[judged], bordered_diagonal(diagonal, ones[judged], ones.sum())[:, None])
    error = error_of(missed, Y[judged], None if weights is None else weights[judged])
    return Fit(alpha, centre + shift, Y[judged] - missed, error)


def coefficients(
    K: Square, Y: Float[np.ndarray, "n c"], relative_ridge: float, weights: Float[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"]]:
    """α and the intercept alone, for half of the work; a ValueError where K + ρW⁻¹ is not positive to rounding."""
    L = _factor(K, relative_ridge, weights)
    if L is None:
        raise ValueError(
            f"K + {relative_ridge:.2g}·mean k(x, x)·I is not positive to rounding: take a larger ridge, or float64"
        )
    centre = mean(Y, weights)
    alpha, shift, _ = _centred(L, Y - centre)
    return alpha, centre + shift


def _factor(K: Square, relative_ridge: float, weights: Float[np.ndarray, " n"] | None) -> Square | None:
    """L of K + ρW⁻¹ = LLᵀ, zeros above it; None where that is not positive to rounding."""
    from scipy.linalg.lapack import dpotrf, spotrf

    A = np.array(K.T, order="F")  # K is symmetric: its transpose is what LAPACK wants, and no copy is turned around
    extra = relative_ridge * float(np.mean(np.diagonal(K)))
    A.reshape(-1, order="F")[:: len(K) + 1] += extra if weights is None else extra / weights
    A, failed = (dpotrf if K.dtype == np.float64 else spotrf)(A, lower=1, overwrite_a=1, clean=1)
    return None if failed else A


def _centred(L: Square, Y: Float[np.ndarray, "n c"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """α, the intercept's shift and A⁻¹1 from the factor."""
    from scipy.linalg import cho_solve

    S = cho_solve((L, True), np.concatenate([Y, np.ones((len(Y), 1), Y.dtype)], 1), check_finite=False)
    return *with_intercept(S[:, :-1], S[:, -1]), S[:, -1]


def mean(Y: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None) -> Float[np.ndarray, " c"]:
    """Mean label, rows by weight."""
    return Y.mean(0) if weights is None else weights @ Y / weights.sum()


def error_of(
    missed: Float[np.ndarray, "n c"], Y: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None = None
) -> float:
    """Squared error over the variance of the outputs, all outputs together; rows by weight."""
    w = np.full(len(Y), 1 / len(Y)) if weights is None else weights / weights.sum()
    spread = float(np.sum(w @ (Y - w @ Y) ** 2))
    found = float(np.sum(w @ missed**2))
    return found / spread if spread > 0 else 0.0


Place = tuple[float, float]
"""Bandwidth, and ridge relative to the mean of k(x, x)."""


def descend(
    error: Callable[[float, float], float],
    start: Place,
    *,
    ridge: bool = True,
    bandwidth: bool = True,
    steps: tuple[Place, ...] = ((2.0, 10.0), (2.0**0.5, 10.0**0.5)),
    reach: float = 128.0,
) -> tuple[Place, float]:
    """Bandwidth and ridge of a small error: downhill from `start`, first by large factors, then by small ones.

    `ridge` and `bandwidth` say what may move; the bandwidth stays within a factor `reach` of its start. A move that
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
    best = at(h, rho)
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
                if inside and at(new_h, new_rho) < best * (1 - 1e-4):
                    h, rho, best, moved = new_h, new_rho, at(new_h, new_rho), True
                    moves = [move, *(m for m in moves if m != move)]
                    break
    return (h, rho), best


def leave_one_out(
    gram: Callable[[float], Float[np.ndarray, "n n"]],
    Y: Float[np.ndarray, "n c"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Callable[[float, float], float]:
    """The leave-one-out error as a function of bandwidth and ridge; `gram` is K as a function of the bandwidth, keeping
    its last one (`Geometry.gram`)."""

    def error(h: float, rho: float) -> float:
        found = fit(gram(h), Y, rho, weights)
        return math.inf if found is None else found.error

    return error
