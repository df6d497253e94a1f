"""Cheapest polynomials for a kernel of the angle θ, evaluated from ½ cos θ without an arc cosine.

F is analytic in sin θ/2 except at θ = π, where a short polynomial times cos θ/2 corrects it: two square roots
(`fit_half_angles`). It is also a polynomial in sin θ plus cos θ times another: one square root (`fit_sines`).
`cheapest_fit` returns the cheaper one.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial, chebyshev

from unlazy.theory.numerics.angle_polynomials import GRID, LAWSON_ROUNDS, minimax_fit
from unlazy.theory.numerics.geometry import horner

SQRT_COST = 3
"""Cost of a square root in multiply-adds: on an H200 the NTK of ten layers was slightly faster with one root and
seventeen steps in total than with two roots and fifteen.
"""


class HalfAngleFit(NamedTuple):
    """G(θ) = P(s - c) + cos(θ/2) S(s - c), s = sin θ/2.

    Attributes
    ----------
    center : float
        c.
    near, far : tuple of float
        Coefficients of P and S, lowest first.
    error : float
        Largest error relative to max(F, 0.1).
    squares : tuple of float
        F is G or, for constants k in `squares`, (G² + k)² + k …, the innermost first.
    """

    center: float
    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float
    squares: tuple[float, ...] = ()

    @property
    def cost(self) -> int:
        """Cost in multiply-adds, from the argument of the first square root on."""
        terms = len(self.near) - 1 + len(self.far) + (self.center != 0) + len(self.squares)
        return terms + SQRT_COST + (SQRT_COST + 1 if self.far else 0)

    def arguments(self, half: Any, root_of: Callable, cut: Callable) -> tuple[Any, Any]:
        """Arguments of `evaluate` from half = ½ cos θ; `cut` clips to [0, 1] what rounding moved outside."""
        square = cut(0.5 - half)
        return root_of(square), root_of(1 - square)

    def evaluate(self, sine: Any, cosine: Any) -> Any:
        """F from sine and cosine of the half angle; `cosine` is unused if S is empty."""
        at = sine - self.center if self.center else sine
        found = horner(self.near, at)
        if self.far:
            found = found + cosine * (horner(self.far, at) if len(self.far) > 1 else self.far[0])
        return _apply_squares(found, self.squares)

    def scaled(self, factor: float) -> "HalfAngleFit":
        """The fit of factor·F, for a positive factor."""
        return _scaled(self, factor)


class SineFit(NamedTuple):
    """G(θ) = P(r) + ½ cos θ Q(r), r = ½ sin θ.

    Attributes
    ----------
    near, far : tuple of float
        Coefficients of P and Q, lowest first.
    error, squares
        As for `HalfAngleFit`.
    """

    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float
    squares: tuple[float, ...] = ()

    @property
    def cost(self) -> int:
        """Cost in multiply-adds, from the argument of the square root on."""
        return len(self.near) - 1 + len(self.far) + len(self.squares) + SQRT_COST

    def arguments(self, half: Any, root_of: Callable, cut: Callable) -> tuple[Any, Any]:
        """Arguments of `evaluate` from half = ½ cos θ; `cut` clips to [0, 1] what rounding moved outside."""
        return half, root_of(cut(0.25 - half * half))

    def evaluate(self, half: Any, root: Any) -> Any:
        """F from half = ½ cos θ and root = ½ sin θ."""
        near = horner(self.near, root) if len(self.near) > 1 else self.near[0]
        found = near + half * (horner(self.far, root) if len(self.far) > 1 else self.far[0])
        return _apply_squares(found, self.squares)

    def scaled(self, factor: float) -> "SineFit":
        """The fit of factor·F, for a positive factor."""
        return _scaled(self, factor)


def cheapest_fit(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, most: int = 28
) -> HalfAngleFit | SineFit:
    """The cheaper of `fit_half_angles` and `fit_sines`, or the more accurate if neither is within the tolerance.

    Parameters
    ----------
    of_angle : callable
        F, a function of NumPy angles with F(0) = 1.
    tolerance : float
        Largest error relative to max(F, 0.1), evaluated in float32.
    most : int, default 28
        Largest cost to try.

    Returns
    -------
    HalfAngleFit or SineFit
    """
    two = fit_half_angles(of_angle, tolerance, most=most)
    one = fit_sines(of_angle, tolerance, most=two.cost - 1 if two.error <= tolerance else most)
    return one if one.error <= max(tolerance, two.error if two.error > tolerance else 0.0) else two


def fit_half_angles(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 28
) -> HalfAngleFit:
    """Cheapest half-angle fit within the tolerance in float32, or the most accurate one of cost up to `most`.

    The kink of F at θ = π varies, so all sizes of S are tried. Deep networks need the center, otherwise large
    coefficients of opposite signs cancel; their F falls steeply from 1 and then flattens, so a square plus most of its
    smallest value, or a square of such a square, needs fewer steps.

    Parameters
    ----------
    of_angle : callable
        F, a function of NumPy angles with F(0) = 1.
    tolerance : float
        Largest error relative to max(F, 0.1).
    largest : float, default π
        Largest angle.
    most : int, default 28
        Largest cost to try.

    Returns
    -------
    HalfAngleFit
    """
    wanted = _Target(of_angle, largest)
    shapes = list(itertools.product((0.0, 0.5), wanted.shares))

    def of_cost(cost: int) -> Iterator[_Candidate]:
        for far, (center, shares) in itertools.product(range(6), shapes):
            near = cost - SQRT_COST - (SQRT_COST + 1 if far else 0) - far - (center > 0) - len(shares) + 1
            if near >= max(far, 3):
                yield _HalfAngleCandidate(wanted, near, far, shares, center)

    return _cheapest(of_cost, tolerance, most)


def fit_sines(
    of_angle: Callable[[np.ndarray], np.ndarray], tolerance: float, largest: float = np.pi, most: int = 28
) -> SineFit:
    """As `fit_half_angles`, with one square root instead of two and somewhat more steps.

    With a = π/2 - θ the even part of F is analytic in cos a = sin θ, from 0 to 1 and beyond, and so is the odd part
    divided by sin a = cos θ: the kinks of F at θ = 0 and π are functions of sin θ and need no extra terms.
    """
    wanted = _Target(of_angle, largest)

    def of_cost(cost: int) -> Iterator[_Candidate]:
        for shares in wanted.shares:
            powers = cost - SQRT_COST - 1 - len(shares)
            for near in {0, *range(max(0, powers // 2 - 1), min(powers, powers // 2 + 2) + 1)}:
                if powers >= max(near, 1):
                    yield _SineCandidate(wanted, near + 1, powers - near + 1, shares)

    return _cheapest(of_cost, tolerance, most)


def _apply_squares(found: Any, squares: tuple[float, ...]) -> Any:
    """(G² + k)² + k … for the constants k."""
    for constant in squares:
        found = found * found + constant
    return found


def _scaled(fit: Any, factor: float) -> Any:
    """Scale a fit; what is squared later is scaled by a root of the factor."""
    squares: list[float] = []
    for constant in reversed(fit.squares):
        squares, factor = [factor * constant, *squares], math.sqrt(factor)
    near, far = (tuple(factor * c for c in powers) for powers in (fit.near, fit.far))
    return fit._replace(near=near, far=far, squares=tuple(squares))


_OUTER_SHARES, _INNER_SHARES = (0.8, 0.87, 0.93, 0.96, 0.98, 0.99), (0.0, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94)
"""Shares of the smallest F, and of the smallest of its roots, that are tried as constants of the squares."""
_MIN_VALUE_FOR_SQUARES = 0.2
"""Smallest value of F from which squares are tried: that of an NTK with five layers."""
_FEW_ROUNDS, _REFITS_PER_KIND, _REFIT_FACTOR = 2, 2, 4.0
"""Reweighting rounds of the first pass, number of best candidates of each kind that are refitted, and the multiple of
the tolerance beyond which none is refitted.
"""


class _Target:
    """F at the angles of a fit and at those where its error is measured."""

    def __init__(self, of_angle: Callable[[np.ndarray], np.ndarray], largest: float):
        self.theta = largest * (1 - np.cos(np.pi * (np.arange(200) + 0.5) / 200)) / 2
        self.grid = GRID * (largest / np.pi)
        self.values, self.grid_values = of_angle(self.theta), of_angle(self.grid)
        self.low = float(np.min(self.grid_values))
        deep = [(outer,) for outer in (0.0, *_OUTER_SHARES)] + list(itertools.product(_OUTER_SHARES, _INNER_SHARES))
        self.shares: list[tuple[float, ...]] = [(), *(deep if self.low > _MIN_VALUE_FOR_SQUARES else [])]

    def rooted(self, shares: tuple[float, ...]) -> tuple[np.ndarray, float, np.ndarray, tuple[float, ...]]:
        """G such that F follows by squares plus these shares; G(0), the slope of F in G, and the constants."""
        G, at_first, low, slope = self.values, 1.0, self.low, np.ones(())
        constants: tuple[float, ...] = ()
        for share in shares:
            constant = share * low
            constants = (constant, *constants)
            G, at_first, low = np.sqrt(G - constant), math.sqrt(at_first - constant), math.sqrt(low - constant)
            slope = 2 * slope * G
        return G, at_first, slope, constants


@dataclass(frozen=True)
class _Candidate:
    """Base class: numbers of terms of the two polynomials, and squares."""

    target: _Target
    near: int
    far: int
    shares: tuple[float, ...]
    center: float = 0.0

    def terms(self, theta: np.ndarray) -> np.ndarray:
        """Terms of both polynomials at some angles; the first is 1."""
        raise NotImplementedError

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        """The fit, and its arguments at the angles where its error is measured."""
        raise NotImplementedError

    def coefficients(self, rounds: int, every: int = 1) -> tuple[np.ndarray, tuple[float, ...], float]:
        """Coefficients of all terms, exact at θ = 0; constants of the squares; error on every n-th angle fitted."""
        G, at_first, slope, squares = self.target.rooted(self.shares)
        at_zero = self.terms(np.zeros(1))
        terms, size = (
            (self.terms(self.target.theta[::every]) - at_zero)[:, 1:],
            _error_scale(self.target.values) / slope,
        )
        found, error = minimax_fit(terms, (G - at_first)[::every], size[::every], rounds)
        return np.array([at_first - float(np.dot(at_zero[0, 1:], found)), *found]), squares, error

    def evaluated_fit(self) -> Any:
        """The fit with its largest error in float32."""
        found, squares, _ = self.coefficients(LAWSON_ROUNDS)

        def powers(line: list[float]) -> list[tuple[float, ...]]:
            """Coefficients in x of Chebyshev series in a + b x."""
            return [
                tuple(Polynomial(chebyshev.cheb2poly(c))(Polynomial(line)).coef.tolist()) if len(c) else ()
                for c in np.split(found, [self.near])
            ]

        fit, sides = self.fit(powers, squares)
        rounded, wanted = fit.evaluate(*(side.astype(np.float32) for side in sides)), self.target.grid_values
        return fit._replace(error=float((np.abs(rounded - wanted) / _error_scale(wanted)).max()))


class _HalfAngleCandidate(_Candidate):
    """Candidate for `fit_half_angles`."""

    def terms(self, theta: np.ndarray) -> np.ndarray:
        series = chebyshev.chebvander(2 * np.sin(theta / 2) - 1, max(self.near, self.far) - 1)
        return np.hstack([series[:, : self.near], np.cos(theta / 2)[:, None] * series[:, : self.far]])

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        near, far = powers([2 * self.center - 1, 2])
        fit = HalfAngleFit(self.center, near, far, 0.0, squares)
        return fit, (np.sin(self.target.grid / 2), np.cos(self.target.grid / 2))


class _SineCandidate(_Candidate):
    """Candidate for `fit_sines`."""

    def terms(self, theta: np.ndarray) -> np.ndarray:
        P, Q = (chebyshev.chebvander(2 * np.sin(theta) - 1, count - 1) for count in (self.near, self.far))
        return np.hstack([P, np.cos(theta)[:, None] / 2 * Q])

    def fit(self, powers: Callable, squares: tuple[float, ...]) -> Any:
        near, far = powers([-1, 4])
        return SineFit(near, far, 0.0, squares), (np.cos(self.target.grid) / 2, np.sin(self.target.grid) / 2)


def _cheapest(of_cost: Callable[[int], Iterator[_Candidate]], tolerance: float, most: int) -> Any:
    """Best candidate of the smallest sufficient cost: all are fitted roughly, the best of every kind again."""
    best = None
    for cost in range(SQRT_COST + 4, most + 1):
        tried = sorted(
            ((each.coefficients(_FEW_ROUNDS, every=3)[-1], each) for each in of_cost(cost)), key=lambda t: t[0]
        )
        chosen: dict = {}  # several of every kind, since rounding spoils some of them
        for error, each in tried:
            kind = chosen.setdefault((each.center, len(each.shares)), [])
            if len(kind) < _REFITS_PER_KIND and (error < _REFIT_FACTOR * tolerance or cost == most or not kind):
                kind.append(each.evaluated_fit())
        found = [fit for kind in chosen.values() for fit in kind if fit.error < math.inf]
        best = min([*found, *([best] if best else [])], key=lambda fit: fit.error)
        if best is not None and best.error <= tolerance:
            break
    return best


def _error_scale(values: np.ndarray) -> np.ndarray:
    """Scale of relative errors, at least a tenth: sums over many pairs at right angles show errors there."""
    return np.maximum(np.abs(values), 0.1)
