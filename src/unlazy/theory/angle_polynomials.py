"""Kernels of the angle θ alone as short polynomials: analytic in θ on [0, π], kinked activations and any depth too.

F(θ) = F(0) + θ P(2θ/π - 1), exact at θ = 0, fitted at Chebyshev points in float64. Without an arc cosine: F is
analytic in sin θ/2 = √((1 - cos θ)/2) but at θ = π, where a short polynomial times cos θ/2 mends it: two roots
(`in_half_angles`). F is as well a polynomial of sin θ and another of it times cos θ: one root (`in_sines`), and for
ReLU's two duals one of the two is known (`in_cosine`); up to a right angle the first is shorter in 1 - ρ and its root
(`in_versine`).
"""

import itertools
import math
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


class HalfAngles(NamedTuple):
    """F(θ) = b + (P(s - c) + cos(θ/2) S(s - c))^p, s = sin θ/2: c, and P and S by powers, lowest first; the largest
    error, relative to F or a tenth; p, which is 1, 2 or 4, and b."""

    centre: float
    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float
    power: int = 1
    base: float = 0.0

    def at(self, sine: Any, cosine: Any) -> Any:
        """F from both of the half angle; `cosine` of no use where S is none."""
        at = sine - self.centre if self.centre else sine
        found = horner(self.near, at)
        if self.far:
            found = found + cosine * (horner(self.far, at) if len(self.far) > 1 else self.far[0])
        for _ in range(self.power.bit_length() - 1):
            found = found * found
        return found + self.base if self.base else found

    def times(self, factor: float) -> "HalfAngles":
        """factor · F, a positive one."""
        root = factor ** (1 / self.power)
        near, far = (tuple(root * c for c in powers) for powers in (self.near, self.far))
        return self._replace(near=near, far=far, base=factor * self.base)


def in_half_angles(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 20
) -> HalfAngles:
    """The fewest steps within the tolerance when float32 evaluates them, or the best of `most`; F(0) = 1.

    For angles up to the `largest`. How kinked F is at θ = π is its own: every share of S is tried. Deep networks need
    the centre, or large powers of both signs cancel; their F falls steeply from 1 and then hardly, and so is a square
    or fourth power above most of its smallest value in fewer steps.
    """
    best = HalfAngles(0.0, (1.0,), (), math.inf)
    low = float(np.min(of_angle(GRID * (largest / np.pi))))
    shapes = [(0.0, 1, 0.0), (0.5, 1, 0.0)] + [(0.0, p, _SHARE * low) for p in (2, 4) if low > 0.1]
    for steps in range(4, most + 1):
        for far, (centre, power, base) in itertools.product(range(max(1, min(6, steps - 4))), shapes):
            near = steps - far - (far > 0) - (centre > 0) - (power.bit_length() - 1)
            if power > 1 and near < 4:
                continue
            found = _half_angles(of_angle, largest, near, far, centre, power, base)
            if found.error < best.error:
                best = found
        if best.error <= tolerance:
            break
    return best


class Sines(NamedTuple):
    """F(θ) = P(r) + y Q(r), r = ½ sin θ, y = sin² θ/2 or, `turned`, ½ cos θ: P and Q by powers, lowest first; the
    largest error, relative to F or a tenth."""

    near: tuple[float, ...]
    far: tuple[float, ...]
    turned: bool
    error: float

    def at(self, square: Any, root: Any) -> Any:
        """F from h = sin² θ/2 and r = √(h - h²)."""
        y = 0.5 - square if self.turned else square
        near = horner(self.near, root) if len(self.near) > 1 else self.near[0]
        return near + y * (horner(self.far, root) if len(self.far) > 1 else self.far[0])

    def times(self, factor: float) -> "Sines":
        near, far = (tuple(factor * c for c in powers) for powers in (self.near, self.far))
        return self._replace(near=near, far=far)


def in_sines(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 18
) -> Sines:
    """As `in_half_angles`, with one root for two and some steps more: on an H200 as fast for networks of 3 layers,
    slower for 10, where steps are many, and faster where sin θ is wanted as well.

    With a = π/2 - θ the even part of F is analytic in cos a = sin θ, from 0 to 1 and beyond, and so is the odd part
    over sin a = cos θ: kinks of F at θ = 0 and at π, functions of sin θ both, need nothing of their own.
    """
    best = Sines((1.0,), (0.0,), False, math.inf)
    for steps in range(4, most + 1):
        for turned in (False, True):
            powers = steps - 1 - turned
            for near in {0, *range(max(0, powers // 2 - 1), min(powers, powers // 2 + 2) + 1)}:
                found = _sines(of_angle, largest, near, powers - near, turned)
                if found.error < best.error:
                    best = found
        if best.error <= tolerance:
            break
    return best


def _sines(of_angle: Callable, largest: float, near: int, far: int, turned: bool) -> Sines:
    """P and Q of these degrees."""

    def sides(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sin(theta / 2) ** 2, np.sin(theta) / 2

    def terms(theta: np.ndarray) -> np.ndarray:
        h, r = sides(theta)
        y = 0.5 - h if turned else h
        P, Q = (chebyshev.chebvander(4 * r - 1, degree) for degree in (near, far))
        return np.hstack([P, y[:, None] * Q])

    theta = largest * (1 - np.cos(np.pi * (np.arange(200) + 0.5) / 200)) / 2
    wanted, at_zero = of_angle(theta), terms(np.zeros(1))
    found = _nearest((terms(theta) - at_zero)[:, 1:], wanted - 1, _size(wanted))
    constant = 1 - float(np.dot(at_zero[0, 1:], found))
    P, Q = np.split(np.array([constant, *found]), [near + 1])
    powers = [tuple(Polynomial(chebyshev.cheb2poly(c))(Polynomial([-1, 4])).coef.tolist()) for c in (P, Q)]
    fit, grid = Sines(powers[0], powers[1], turned, 0.0), GRID * (largest / np.pi)
    rounded, wanted = fit.at(*(side.astype(np.float32) for side in sides(grid))), of_angle(grid)
    return fit._replace(error=float((np.abs(rounded - wanted) / _size(wanted)).max()))


_SHARE = 0.87
"""Of the smallest F: as found for networks of 10 layers, where 0 costs a fifth of the error."""
_ROUNDS = 12
"""Rounds of weights: least squares then errs as much everywhere as anywhere, within a tenth or so."""


def _nearest(
    terms: Float[np.ndarray, "n k"], wanted: Float[np.ndarray, " n"], size: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " k"]:
    """Coefficients whose largest error, relative to `size`, is nearly least: weights of Lawson's method (1961)."""
    weights, best = np.ones(len(wanted)), (math.inf, np.zeros(0))
    for _ in range(_ROUNDS):
        each = np.sqrt(weights) / size
        found = np.linalg.lstsq(terms * each[:, None], wanted * each, rcond=None)[0]
        wrong = np.abs(np.dot(terms, found) - wanted) / size
        if wrong.max() < best[0]:
            best = (float(wrong.max()), found)
        if best[0] == 0:
            break
        weights = weights * (wrong / wrong.max() + 1e-3)
        weights /= weights.max()
    return best[1]


def _half_angles(
    of_angle: Callable, largest: float, near: int, far: int, centre: float, power: int = 1, base: float = 0.0
) -> HalfAngles:
    """So many coefficients of P and S."""
    theta = largest * (1 - np.cos(np.pi * (np.arange(200) + 0.5) / 200)) / 2
    sine, cosine = np.sin(theta / 2), np.cos(theta / 2)
    series = [chebyshev.chebvander(2 * a - 1, max(near, far, 2) - 1) for a in (sine, np.zeros(1))]
    at_angles, at_zero = series
    terms = np.hstack([(at_angles - at_zero)[:, 1:near], cosine[:, None] * at_angles[:, :far] - at_zero[:, :far]])
    whole, at_first = of_angle(theta), (1 - base) ** (1 / power)
    root = (whole - base) ** (1 / power)
    found = _nearest(terms, root - at_first, _size(whole) / (power * root ** (power - 1)))
    P, S = np.split(found, [near - 1])
    constant = at_first - float(np.dot(at_zero[0, 1:near], P) + np.dot(at_zero[0, :far], S))
    around = Polynomial([2 * centre - 1, 2])
    powers = [
        tuple(Polynomial(chebyshev.cheb2poly(c))(around).coef.tolist()) if len(c) else ()
        for c in (np.array([constant, *P]), S)
    ]
    fit = HalfAngles(centre, powers[0], powers[1], 0.0, power, base)
    grid = GRID * (largest / np.pi)
    rounded = fit.at(*(np.sin(grid / 2 + a).astype(np.float32) for a in (0, np.pi / 2)))
    wanted = of_angle(grid)
    return fit._replace(error=float((np.abs(rounded - wanted) / _size(wanted)).max()))


def _size(values: np.ndarray) -> np.ndarray:
    """What errors are relative to: sums of many pairs at right angles show them."""
    return np.maximum(np.abs(values), 0.1)


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
    series = _nearest(chebyshev.chebvander(2 * x - 1, degree) * weight[:, None], odd / np.pi, np.ones_like(x))
    return Polynomial(chebyshev.cheb2poly(series))(Polynomial([-1, 2])).coef
