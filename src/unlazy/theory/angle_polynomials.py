"""Kernels of the angle θ alone as one short polynomial: analytic in θ on [0, π], kinked activations and any depth too.

F(θ) = F(0) + θ P(2θ/π - 1), exact at θ = 0, fitted at Chebyshev points in float64; or F as a plain polynomial of
φ = π/2 - θ, a degree or two shorter for the same error, where F(0) need not be exact. ReLU's two duals are
polynomials of w = sin θ as well, one square root away from ρ = cos θ (`in_cosine`).
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial, chebyshev

from unlazy.theory.angles import horner

GRID = np.linspace(0, np.pi, 2001)
"""Angles at which a fit is judged."""


class Fit(NamedTuple):
    """Powers of t = 2θ/π - 1, lowest first, a row for each function, and the largest error on the grid."""

    powers: Float[np.ndarray, "f k"]
    error: float


def fit(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, sizes: Iterable[int], pinned: bool = True
) -> Fit:
    """The shortest polynomials within the tolerance, or those of the last size tried; functions are scaled to F(0) = 1.

    `of_angle` gives rows of F at some angles. Pinned: P of F = 1 + θ P(t), interpolated. Else F itself, by least
    squares over four points for each coefficient, nearly the best there is.
    """
    wanted = np.atleast_2d(of_angle(GRID))
    for size in sizes:
        count = size if pinned else 4 * size
        t = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        theta = (t + 1) * np.pi / 2
        values = np.atleast_2d(of_angle(theta))
        series = chebyshev.chebfit(t, ((values - 1) / theta if pinned else values).T, size - 1)
        found = chebyshev.chebval(2 * GRID / np.pi - 1, series)
        error = float(np.abs((1 + GRID * found if pinned else found) - wanted).max())
        if error <= tolerance:
            break
    return Fit(np.array([chebyshev.cheb2poly(row) for row in series.T]), error)


def at_angle(at_zero: Any, powers: tuple, theta: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """F(0) + θ P(2θ/π - 1) of a pinned fit."""
    return at_zero + theta * horner(powers, theta * (2 / np.pi) - 1)


def in_complement(powers: Float[np.ndarray, " k"]) -> tuple[float, ...]:
    """A plain polynomial of t by powers of φ = π/2 - θ = -πt/2."""
    return tuple(Polynomial(powers)(Polynomial([0, -2 / np.pi])).coef.tolist())


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
