"""The cheapest polynomials of a kernel of the angle θ alone, from ½ cos θ and without an arc cosine.

F is analytic in sin θ/2 but at θ = π, where a short polynomial times cos θ/2 mends it: two roots (`in_half_angles`). It
is as well a polynomial of sin θ and another of it times cos θ: one root (`in_sines`). `shortest` is the cheaper.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial, chebyshev

from unlazy.theory.numerics.angle_polynomials import GRID, ROUNDS, nearest
from unlazy.theory.numerics.angles import horner

ROOT = 3
"""Multiply-adds that a root is worth: on an H200 the NTK of ten layers was a little faster by one root and seventeen
steps in all than by two and fifteen."""


class HalfAngles(NamedTuple):
    """G(θ) = P(s - c) + cos(θ/2) S(s - c), s = sin θ/2: c, and P and S by powers, lowest first; the largest error,
    relative to F or a tenth. F is G or, of numbers k in `squares`, (G² + k)² + k …, the innermost first."""

    center: float
    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float
    squares: tuple[float, ...] = ()

    @property
    def cost(self) -> int:
        """Multiply-adds from what the first root is of, on."""
        terms = len(self.near) - 1 + len(self.far) + (self.center != 0) + len(self.squares)
        return terms + ROOT + (ROOT + 1 if self.far else 0)

    def sides(self, half: Any, root_of: Callable, cut: Callable) -> tuple[Any, Any]:
        """What `at` takes, from ½ cos θ; `cut` to [0, 1] where rounding has left it."""
        square = cut(0.5 - half)
        return root_of(square), root_of(1 - square)

    def at(self, sine: Any, cosine: Any) -> Any:
        """F from both of the half angle; `cosine` of no use where S is none."""
        at = sine - self.center if self.center else sine
        found = horner(self.near, at)
        if self.far:
            found = found + cosine * (horner(self.far, at) if len(self.far) > 1 else self.far[0])
        return _squared(found, self.squares)

    def times(self, factor: float) -> "HalfAngles":
        """factor · F, a positive one."""
        return _times(self, factor)


class Sines(NamedTuple):
    """G(θ) = P(r) + ½ cos θ Q(r), r = ½ sin θ: P and Q by powers, lowest first; error and squares as above."""

    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float
    squares: tuple[float, ...] = ()

    @property
    def cost(self) -> int:
        return len(self.near) - 1 + len(self.far) + len(self.squares) + ROOT

    def sides(self, half: Any, root_of: Callable, cut: Callable) -> tuple[Any, Any]:
        return half, root_of(cut(0.25 - half * half))

    def at(self, half: Any, root: Any) -> Any:
        """F from ½ cos θ and r."""
        near = horner(self.near, root) if len(self.near) > 1 else self.near[0]
        found = near + half * (horner(self.far, root) if len(self.far) > 1 else self.far[0])
        return _squared(found, self.squares)

    def times(self, factor: float) -> "Sines":
        return _times(self, factor)


def shortest(of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, most: int = 28) -> HalfAngles | Sines:
    """The cheaper of `in_half_angles` and `in_sines`, or the better where neither is within the tolerance."""
    two = in_half_angles(of_angle, tolerance, most=most)
    one = in_sines(of_angle, tolerance, most=two.cost - 1 if two.error <= tolerance else most)
    return one if one.error <= max(tolerance, two.error if two.error > tolerance else 0.0) else two


def in_half_angles(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 28
) -> HalfAngles:
    """The cheapest within the tolerance when float32 evaluates it, or the best of a cost up to `most`; F(0) = 1.

    For angles up to the `largest`. How kinked F is at θ = π is its own: every share of S is tried. Deep networks need
    the center, or large powers of both signs cancel; their F falls steeply from 1 and then hardly, and so is a square
    above most of its smallest value in fewer steps, or a square of one.
    """
    wanted = _Wanted(of_angle, largest)
    shapes = list(itertools.product((0.0, 0.5), wanted.shares))

    def of_cost(cost: int) -> Iterator[_Tried]:
        for far, (center, shares) in itertools.product(range(6), shapes):
            near = cost - ROOT - (ROOT + 1 if far else 0) - far - (center > 0) - len(shares) + 1
            if near >= max(far, 3):
                yield _HalfAnglesTried(wanted, near, far, shares, center)

    return _cheapest(of_cost, tolerance, most)


def in_sines(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 28
) -> Sines:
    """As `in_half_angles`, with one root for two and some steps more.

    With a = π/2 - θ the even part of F is analytic in cos a = sin θ, from 0 to 1 and beyond, and so is the odd part
    over sin a = cos θ: kinks of F at θ = 0 and at π, functions of sin θ both, need nothing of their own.
    """
    wanted = _Wanted(of_angle, largest)

    def of_cost(cost: int) -> Iterator[_Tried]:
        for shares in wanted.shares:
            powers = cost - ROOT - 1 - len(shares)
            for near in {0, *range(max(0, powers // 2 - 1), min(powers, powers // 2 + 2) + 1)}:
                if powers >= max(near, 1):
                    yield _SinesTried(wanted, near + 1, powers - near + 1, shares)

    return _cheapest(of_cost, tolerance, most)


def _squared(found: Any, squares: tuple[float, ...]) -> Any:
    for constant in squares:
        found = found * found + constant
    return found


def _times(fit: Any, factor: float) -> Any:
    """What is squared later by the factor's root."""
    squares: list[float] = []
    for constant in reversed(fit.squares):
        squares, factor = [factor * constant, *squares], math.sqrt(factor)
    near, far = (tuple(factor * c for c in powers) for powers in (fit.near, fit.far))
    return fit._replace(near=near, far=far, squares=tuple(squares))


_OUTER, _INNER = (0.8, 0.87, 0.93, 0.96, 0.98, 0.99), (0.0, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94)
"""Shares of the smallest F, and of the smallest of its roots, that squares are above: those tried."""
_DEEP = 0.2
"""Smallest value of F from which squares are tried: that of an NTK of five layers."""
_FEW_ROUNDS, _AGAIN, _FAR = 2, 2, 4.0
"""Rounds of weights at first, how many of the best are tried again in all, and how many times the tolerance away none
is."""


class _Wanted:
    """F at the angles of a fit, and at those where it is judged."""

    def __init__(self, of_angle: Callable[[np.ndarray], np.ndarray], largest: float):
        self.theta = largest * (1 - np.cos(np.pi * (np.arange(200) + 0.5) / 200)) / 2
        self.grid = GRID * (largest / np.pi)
        self.values, self.judged = of_angle(self.theta), of_angle(self.grid)
        self.low = float(np.min(self.judged))
        deep = [(outer,) for outer in (0.0, *_OUTER)] + list(itertools.product(_OUTER, _INNER))
        self.shares: list[tuple[float, ...]] = [(), *(deep if self.low > _DEEP else [])]

    def rooted(self, shares: tuple[float, ...]) -> tuple[np.ndarray, float, np.ndarray, tuple[float, ...]]:
        """G of which F is made by squares above these shares, G(0), the slope of F in G, and the constants."""
        G, at_first, low, slope = self.values, 1.0, self.low, np.ones(())
        constants: tuple[float, ...] = ()
        for share in shares:
            constant = share * low
            constants = (constant, *constants)
            G, at_first, low = np.sqrt(G - constant), math.sqrt(at_first - constant), math.sqrt(low - constant)
            slope = 2 * slope * G
        return G, at_first, slope, constants


@dataclass(frozen=True)
class _Tried:
    """Base: so many terms of each of two polynomials, and squares."""

    wanted: _Wanted
    near: int
    far: int
    shares: tuple[float, ...]
    center: float = 0.0

    def terms(self, theta: np.ndarray) -> np.ndarray:
        """Those of both at some angles, the first of them 1."""
        raise NotImplementedError

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        """The fit, and what it is evaluated from at the angles where it is judged."""
        raise NotImplementedError

    def coefficients(self, rounds: int, every: int = 1) -> tuple[np.ndarray, tuple[float, ...], float]:
        """Of all terms, exact at θ = 0, with the constants of the squares and the error where it was fitted, every
        so manieth angle."""
        G, at_first, slope, squares = self.wanted.rooted(self.shares)
        at_zero = self.terms(np.zeros(1))
        terms, size = (self.terms(self.wanted.theta[::every]) - at_zero)[:, 1:], _size(self.wanted.values) / slope
        found, error = nearest(terms, (G - at_first)[::every], size[::every], rounds)
        return np.array([at_first - float(np.dot(at_zero[0, 1:], found)), *found]), squares, error

    def judged(self) -> Any:
        """With the largest error when float32 evaluates it."""
        found, squares, _ = self.coefficients(ROUNDS)

        def powers(line: list[float]) -> list[tuple[float, ...]]:
            """Of x, where the series are of a + b x."""
            return [
                tuple(Polynomial(chebyshev.cheb2poly(c))(Polynomial(line)).coef.tolist()) if len(c) else ()
                for c in np.split(found, [self.near])
            ]

        fit, sides = self.fit(powers, squares)
        rounded, wanted = fit.at(*(side.astype(np.float32) for side in sides)), self.wanted.judged
        return fit._replace(error=float((np.abs(rounded - wanted) / _size(wanted)).max()))


class _HalfAnglesTried(_Tried):
    def terms(self, theta: np.ndarray) -> np.ndarray:
        series = chebyshev.chebvander(2 * np.sin(theta / 2) - 1, max(self.near, self.far) - 1)
        return np.hstack([series[:, : self.near], np.cos(theta / 2)[:, None] * series[:, : self.far]])

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        near, far = powers([2 * self.center - 1, 2])
        fit = HalfAngles(self.center, near, far, 0.0, squares)
        return fit, (np.sin(self.wanted.grid / 2), np.cos(self.wanted.grid / 2))


class _SinesTried(_Tried):
    def terms(self, theta: np.ndarray) -> np.ndarray:
        P, Q = (chebyshev.chebvander(2 * np.sin(theta) - 1, count - 1) for count in (self.near, self.far))
        return np.hstack([P, np.cos(theta)[:, None] / 2 * Q])

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        near, far = powers([-1, 4])
        return Sines(near, far, 0.0, squares), (np.cos(self.wanted.grid) / 2, np.sin(self.wanted.grid) / 2)


def _cheapest(of_cost: Callable[[int], Iterator[_Tried]], tolerance: float, most: int) -> Any:
    """The best of the least cost within the tolerance: all are fitted at few angles in few rounds, the best of
    every kind again."""
    best = None
    for cost in range(ROOT + 4, most + 1):
        tried = sorted(
            ((each.coefficients(_FEW_ROUNDS, every=3)[-1], each) for each in of_cost(cost)), key=lambda t: t[0]
        )
        chosen: dict = {}  # of every kind some, since rounding makes one or the other useless
        for error, each in tried:
            kind = chosen.setdefault((each.center, len(each.shares)), [])
            if len(kind) < _AGAIN and (error < _FAR * tolerance or cost == most or not kind):
                kind.append(each.judged())
        found = [fit for kind in chosen.values() for fit in kind if fit.error < math.inf]
        best = min([*found, *([best] if best else [])], key=lambda fit: fit.error)
        if best is not None and best.error <= tolerance:
            break
    return best


def _size(values: np.ndarray) -> np.ndarray:
    """What errors are relative to: sums of many pairs at right angles show them."""
    return np.maximum(np.abs(values), 0.1)
