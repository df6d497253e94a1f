"""Short polynomials for kernels that depend on the angle θ only; such kernels are analytic in θ on [0, π] at any depth.

F(θ) = F(0) + θ P(2θ/π - 1), exact at θ = 0, fitted at Chebyshev points in float64. Alternatives without an arc cosine:
theory.numerics.polynomial_fits, and for the two duals of ReLU polynomials in √(1 - ρ²) (`relu_duals_in_cosine`); up to
a right angle the first is shorter in 1 - ρ and its root (`relu_dual_in_versine`).
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial, chebyshev

from unlazy.theory.numerics.geometry import horner

GRID = np.linspace(0, np.pi, 2001)
"""Angles at which the error of a fit is measured."""
LAWSON_ROUNDS = 12
"""Reweighting rounds, after which the largest error is within about a tenth of the smallest possible one."""


class AnglePolynomialFit(NamedTuple):
    """Coefficients in powers of t = 2θ/π - 1, lowest first, one row per function, and the largest error on the grid."""

    powers: Float[np.ndarray, "f k"]
    error: float


def fit_angle_polynomial(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, sizes: Iterable[int]
) -> AnglePolynomialFit:
    """Shortest P with F = 1 + θ P(t) within the tolerance, by interpolation; else the longest one tried.

    Parameters
    ----------
    of_angle : callable
        Maps angles to rows of F, scaled to F(0) = 1.
    tolerance : float
        Largest absolute error.
    sizes : iterable of int
        Numbers of coefficients to try.

    Returns
    -------
    AnglePolynomialFit
    """
    wanted = np.atleast_2d(of_angle(GRID))
    for size in sizes:
        t = np.cos(np.pi * (np.arange(size) + 0.5) / size)
        theta = (t + 1) * np.pi / 2
        series = chebyshev.chebfit(t, ((np.atleast_2d(of_angle(theta)) - 1) / theta).T, size - 1)
        error = float(np.abs(1 + GRID * chebyshev.chebval(2 * GRID / np.pi - 1, series) - wanted).max())
        if error <= tolerance:
            break
    return AnglePolynomialFit(np.array([chebyshev.cheb2poly(row) for row in series.T]), error)


def evaluate_at_angle(at_zero: float | Array, powers: tuple, theta: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """F(0) + θ P(2θ/π - 1)."""
    return at_zero + theta * horner(powers, theta * (2 / np.pi) - 1)


def minimax_fit(
    terms: Float[np.ndarray, "n k"],
    wanted: Float[np.ndarray, " n"],
    size: Float[np.ndarray, " n"],
    rounds: int = LAWSON_ROUNDS,
) -> tuple[Float[np.ndarray, " k"], float]:
    """Coefficients with a nearly minimal largest error relative to `size`, and that error (Lawson's method, 1961)."""
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
def relu_duals_in_cosine(degree: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """G and Q in powers of w = √(1 - ρ²), lowest first: for ReLU E φφ/√(vv') = ρ/4 + G(w), E φ'φ' = ¼ + ρ Q(w).

    With ρ = sin a and w = cos a, both 2πG = w + a sin a and 2πQ = a/sin a are even in a, so analytic in w from 0 to 1
    (singular at -1: each degree gains a factor of 6). Fitted by least squares at Chebyshev points, which is nearly
    optimal.
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
def relu_dual_in_versine(degree: int) -> Float[np.ndarray, " k"]:
    """A in powers of x = 1 - ρ, lowest first: for ReLU and ρ from 0 to 1, 2 E φφ/√(vv') = 1 - x + x √x A(x).

    With θ = arccos ρ the remainder is (sin θ - θ cos θ)/π: odd in θ, as √x is, and of third order.
    """
    theta = np.pi / 2 * (1 - np.cos(np.pi * (np.arange(512) + 0.5) / 512)) / 2
    x = 2 * np.sin(theta / 2) ** 2
    weight = x * np.sqrt(x)
    # sin θ - θ cos θ, by its series at small angles to avoid cancellation
    odd = np.where(
        theta < 0.1, theta**3 / 3 * (1 - theta**2 / 10 + theta**4 / 280), np.sin(theta) - theta * np.cos(theta)
    )
    series, _ = minimax_fit(chebyshev.chebvander(2 * x - 1, degree) * weight[:, None], odd / np.pi, np.ones_like(x))
    return Polynomial(chebyshev.cheb2poly(series))(Polynomial([-1, 2])).coef
