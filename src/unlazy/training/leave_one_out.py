"""Kernel ridge regression with a free intercept, and its leave-one-out error in closed form [K2, K3].

min Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖² is solved by α = P y, P = A⁻¹ - A⁻¹11ᵀA⁻¹/(1ᵀA⁻¹1), A = K + ρW⁻¹, and the fit
that never saw point i misses y_i by α_i/P_ii. A Cholesky factor and its inverse cost a sixth of an eigendecomposition,
so a search that looks at few ridges uses them; bandwidth and ridge go downhill together on a grid of logarithms.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Square = Float[np.ndarray, "n n"]
SMALLEST, LARGEST = 1e-9, 1e3
"""Ridges stay between these, in units of the mean of k(x, x)."""


class Fit(NamedTuple):
    """Coefficients, intercept, and at every point the prediction of the fit without it."""

    alpha: Float[np.ndarray, "n c"]
    intercept: Float[np.ndarray, " c"]
    held_out: Float[np.ndarray, "n c"]
    error: float
    """Mean squared leave-one-out error over the variance of the outputs: 1 knows nothing but the mean."""


class Inverse(NamedTuple):
    """P of a Gram matrix and a ridge, and A⁻¹1 for the intercept."""

    P: Float[np.ndarray, "n n"]
    ones: Float[np.ndarray, " n"]

    def fit(self, Y: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None = None) -> Fit:
        """α = P y, the intercept, and the leave-one-out predictions."""
        centre = mean(Y, weights)
        alpha = self.P @ (Y - centre)
        shift = self.ones @ (Y - centre) / self.ones.sum()
        missed = alpha / np.diagonal(self.P)[:, None]
        return Fit(alpha, centre + shift, Y - missed, error_of(missed, Y, weights))

    def without(self, alpha: Float[np.ndarray, "n c"], rows: np.ndarray) -> Float[np.ndarray, "n c"]:
        """The coefficients of the fit that never saw `rows` (zero there): α - P_{·R} P_RR⁻¹ α_R."""
        from scipy.linalg import cho_factor, cho_solve

        inside = cho_factor(self.P[np.ix_(rows, rows)], lower=True, overwrite_a=True, check_finite=False)
        left = alpha - self.P[:, rows] @ cho_solve(inside, alpha[rows], check_finite=False)
        left[rows] = 0
        return left


def invert(K: Square, ridge: float, weights: Float[np.ndarray, " n"] | None = None) -> Inverse | None:
    """P at one ridge (in units of the mean of k(x, x)); None where K + ρW⁻¹ is not positive to rounding."""
    from scipy.linalg.lapack import dpotrf, dpotri, spotrf, spotri

    factor, inverted = (dpotrf, dpotri) if K.dtype == np.float64 else (spotrf, spotri)
    n = len(K)
    A = np.array(K.T, order="F")  # K is symmetric: its transpose is what LAPACK wants, and no copy is turned around
    extra = ridge * float(np.mean(np.diagonal(K)))
    A.reshape(-1, order="F")[:: n + 1] += extra if weights is None else extra / weights
    A, failed = factor(A, lower=1, overwrite_a=1, clean=1)
    if not failed:
        A, failed = inverted(A, lower=1, overwrite_c=1)
    if failed:
        return None
    P = A + A.T
    P.reshape(-1, order="A")[:: n + 1] *= 0.5
    ones = P.sum(1)
    before = np.diagonal(P).copy()
    P -= np.outer(ones / ones.sum(), ones)
    P.reshape(-1, order="A")[:: n + 1] = np.maximum(np.diagonal(P), np.finfo(K.dtype).eps * before)
    return Inverse(P, ones)


def fit(
    K: Square, Y: Float[np.ndarray, "n c"], ridge: float, weights: Float[np.ndarray, " n"] | None = None
) -> Fit | None:
    """The fit at one ridge; None where K + ρW⁻¹ is not positive to rounding."""
    found = invert(K, ridge, weights)
    return None if found is None else found.fit(Y, weights)


def coefficients(
    K: Square, Y: Float[np.ndarray, "n c"], ridge: float, weights: Float[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"]]:
    """α and the intercept alone, for a third of the work; a ValueError where K + ρW⁻¹ is not positive to rounding."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    A = np.array(K.T, order="F")
    extra = ridge * float(np.mean(np.diagonal(K)))
    A.reshape(-1, order="F")[:: len(K) + 1] += extra if weights is None else extra / weights
    try:
        factor = cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError as error:
        raise ValueError(f"K + {ridge:.2g}·I is not positive to rounding: take a larger ridge, or float64") from error
    centre = mean(Y, weights)
    S = cho_solve(factor, np.concatenate([Y - centre, np.ones((len(Y), 1), Y.dtype)], 1), check_finite=False)
    shift = S[:, :-1].sum(0) / S[:, -1].sum()
    return S[:, :-1] - S[:, -1:] * shift, centre + shift


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
"""Bandwidth and ridge."""


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
    """The leave-one-out error as a function of bandwidth and ridge; `gram` is K as a function of the bandwidth."""
    last: dict[float, np.ndarray] = {}

    def error(h: float, rho: float) -> float:
        if h not in last:
            last.clear()  # one K at a time
            last[h] = gram(h)
        found = fit(last[h], Y, rho, weights)
        return math.inf if found is None else found.error

    return error
