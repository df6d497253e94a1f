"""Kernels of the angle θ alone as short polynomials: analytic in θ on [0, π], kinked activations and any depth too.

F(θ) = F(0) + θ P(2θ/π - 1), exact at θ = 0, fitted at Chebyshev points in float64. Without an arc cosine:
theory.numerics.polynomial_fits, and for ReLU's two duals, of which a part is known, polynomials of √(1 - ρ²)
(`in_cosine`); up to a right angle the first is shorter in 1 - ρ and its root (`in_versine`).
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial, chebyshev

from unlazy.theory.numerics.angles import horner

GRID = np.linspace(0, np.pi, 2001)
"""Angles at which a fit is judged."""
ROUNDS = 12
"""Rounds of weights: least squares then errs as much everywhere as anywhere, within a tenth or so."""


class Fit(NamedTuple):
    """Powers of t = 2θ/π - 1, lowest first, a row for each function, and the largest error on the grid."""

    powers: Float[np.ndarray, "f k"]
    error: float


def fit(of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, sizes: Iterable[int]) -> Fit:
    """The shortest P of F = 1 + θ P(t) within the tolerance, or those of the last size tried, interpolated.

    `of_angle` gives rows of F at some angles, scaled to F(0) = 1.
    """
    wanted = np.atleast_2d(of_angle(GRID))
    for size in sizes:
        t = np.cos(np.pi * (np.arange(size) + 0.5) / size)
        theta = (t + 1) * np.pi / 2
        series = chebyshev.chebfit(t, ((np.atleast_2d(of_angle(theta)) - 1) / theta).T, size - 1)
        error = float(np.abs(1 + GRID * chebyshev.chebval(2 * GRID / np.pi - 1, series) - wanted).max())
        if error <= tolerance:
            break
    return Fit(np.array([chebyshev.cheb2poly(row) for row in series.T]), error)


def at_angle(at_zero: Any, powers: tuple, theta: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """F(0) + θ P(2θ/π - 1) of a fit."""
    return at_zero + theta * horner(powers, theta * (2 / np.pi) - 1)


def nearest(
    terms: Float[np.ndarray, "n k"],
    wanted: Float[np.ndarray, " n"],
    size: Float[np.ndarray, " n"],
    rounds: int = ROUNDS,
) -> tuple[Float[np.ndarray, " k"], float]:
    """Coefficients whose largest error, relative to `size`, is nearly least: weights of Lawson's method (1961). And the
    error."""
    weights, best = np.ones(len(wanted)), (math.inf, np.zeros(0))
    for _ in range(rounds):
        each = np.sqrt(weights) / size
        found = np.linalg.lstsq(terms * each[:, None], wanted * each, rcond=None)[0]
        wrong = np.abs(np.dot(terms, found) - wanted) / size
        if wrong.max() < best[0]:
            best = (float(wrong.max()), found)
        if best[0] == 0:
            break
        weights = weights * (wrong / wrong.max() + 1e-3)
        weights /= weights.max()
    return best[1], best[0]


@lru_cache
def in_cosine(degree: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """G and Q in powers of w = √(1 - ρ²), lowest first: of ReLU E φφ/√(vv') = ρ/4 + G(w), E φ'φ' = ¼ + ρ Q(w).

    With ρ = sin a and w = cos a, both 2πG = w + a sin a and 2πQ = a/sin a are even in a, so analytic in w from 0 to 1
    (singular at -1: a degree gains a factor of 6). Nearly the best there: least squares at Chebyshev points.
    """
    t = np.cos(np.pi * (np.arange(512) + 0.5) / 512)
    w = (t + 1) / 2
    a = np.arccos(w)
    found = []
    for values in ((w + a * np.sin(a)) / (2 * np.pi), a / np.sin(a) / (2 * np.pi)):
        series = chebyshev.cheb2poly(chebyshev.chebfit(t, values, degree))
        found.append(Polynomial(series)(Polynomial([-1, 2])).coef)
    return found[0], found[1]


@lru_cache
def in_versine(degree: int) -> Float[np.ndarray, " k"]:
    """A in powers of x = 1 - ρ, lowest first: of ReLU and ρ from 0 to 1, 2 E φφ/√(vv') = 1 - x + x √x A(x).

    With θ = arccos ρ the rest of 1 - x is (sin θ - θ cos θ)/π: odd in θ, as √x is, and of third order.
    """
    theta = np.pi / 2 * (1 - np.cos(np.pi * (np.arange(512) + 0.5) / 512)) / 2
    x = 2 * np.sin(theta / 2) ** 2
    weight = x * np.sqrt(x)
    # sin θ - θ cos θ, without what cancels at small angles
    odd = np.where(
        theta < 0.1, theta**3 / 3 * (1 - theta**2 / 10 + theta**4 / 280), np.sin(theta) - theta * np.cos(theta)
    )
    series, _ = nearest(chebyshev.chebvander(2 * x - 1, degree) * weight[:, None], odd / np.pi, np.ones_like(x))
    return Polynomial(chebyshev.cheb2poly(series))(Polynomial([-1, 2])).coef
