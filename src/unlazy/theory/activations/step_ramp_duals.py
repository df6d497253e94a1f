"""Gaussian expectations of steps and ramps with arbitrary kinks, via the bivariate normal distribution [P3].

With h = s/√q11, k = t/√q22 ≥ 0, ρ the correlation, Q the normal tail and T Owen's function (Owen 1956),

    P(a > s, b > t) = ½Q(h) + ½Q(k) - T(h, (k - ρh)/(h √(1-ρ²))) - T(k, (h - ρk)/(k √(1-ρ²))),

and P(a > s, b > 0) = ½Q(h) + T(h, ρ/√(1-ρ²)), without cancellation near a = b. The truncated ReLU min(1, max(z, 0)) is
max(z, 0) - max(z - 1, 0). A kink left of 0 is treated as one right of 0 of -a, so levels are never negative.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from unlazy.theory.numerics.geometry import Covariance, angle_and_gap, safe_sqrt

NODES = {"float32": 6, "float64": 13}
"""Gauss-Legendre nodes for T on [0, 1]: with its poles at ±i every node gains a factor of about 20."""
SMALLEST_ROOT = 1e-6
"""Lower bound for √q: a kink 10^6 standard deviations away has no effect."""
SMALLEST_SPREAD = 1e-18
"""Lower bound for divisors: 1/x² is finite in float32, and rounding errors of the levels divided by it exceed any slope
that matters.
"""
TAIL_CUTOFF = 40.0
"""Standard deviations beyond which a tail is 0 in float64."""
MAX_SLOPE = 1e6
"""Bound for slopes, which are infinite for parallel points; its square is finite in float32."""


class Kink(NamedTuple):
    """jump · [εx > level] + slope · max(εx - level, 0), with ε = side = ±1 and level ≥ 0."""

    side: int
    level: float
    jump: float
    slope: float


class _Pair(NamedTuple):
    """A kink of a with a kink of b, with their sides folded into u and q12."""

    s: float
    t: float
    q12: Array
    u: Array


def tail_probabilities(kinks: tuple[Kink, ...], pair: Covariance) -> list[Array]:
    """P(ε_i a > κ_i, ε_j b > κ_j) of every pair of kinks, shared by φ and φ'."""
    pairs, roots, sine = _pairs(kinks, pair)
    return _tails(pairs, *roots, sine)


def _pairs(kinks: tuple[Kink, ...], pair: Covariance) -> tuple[list[_Pair], tuple[Array, Array], Array]:
    """All pairs of kinks, the roots of the variances (in the shape of their side) and sin θ."""
    u, q12 = jnp.broadcast_arrays(pair.gap, pair.q12)
    r1, r2 = (jnp.maximum(safe_sqrt(q), SMALLEST_ROOT) for q in (pair.q11, pair.q22))
    pairs = [
        _Pair(i.level, j.level, i.side * j.side * q12, u if i.side == j.side else 2 - u) for i in kinks for j in kinks
    ]
    return pairs, (r1, r2), safe_sqrt(u * (2 - u))


def expectation(kinks: tuple[Kink, ...], pair: Covariance, known: list[Array] | None = None) -> Array:
    """E P(a)P(b) of a sum P of steps and ramps; `known` are its tail probabilities if already computed."""
    pairs, (r1, r2), sine = _pairs(kinks, pair)
    both = [(i, j) for i in kinks for j in kinks]
    total = jnp.zeros_like(sine)
    for (i, j), p, tail in zip(both, pairs, _tails(pairs, r1, r2, sine) if known is None else known):
        total = total + i.jump * j.jump * tail if i.jump * j.jump else total
        if not (i.slope or j.slope):
            continue
        at_s, at_t = _density(p.s / r1), _density(p.t / r2)
        excess, above_t = _conditional_excess(p.s, r1, p.t, r2, p.u, sine)
        stepped = i.jump * j.slope or i.slope * j.jump or p.s
        above_s = _conditional_excess(p.t, r2, p.s, r1, p.u, sine)[1] if stepped else 0.0
        # E [a > s] (b - t)_+ and E (a - s)_+ [b > t], by Stein's identity
        rising_b = (1 - p.u) * r2 * at_s * above_t + r2 * at_t * above_s - p.t * tail if stepped else 0.0
        if i.jump * j.slope:
            total = total + i.jump * j.slope * rising_b
        if i.slope * j.jump:
            rising_a = (1 - p.u) * r1 * at_t * above_s + r1 * at_s * above_t - p.s * tail
            total = total + i.slope * j.jump * rising_a
        if i.slope * j.slope:
            # E (a - s)_+ (b - t)_+ = q12 P + q11 f_a(s) E[(b-t)_+ | a = s] - s E [a > s] (b - t)_+
            total = total + i.slope * j.slope * (p.q12 * tail + r1 * at_s * excess - p.s * rising_b)
    return total


def _tails(pairs: list[_Pair], r1: Array, r2: Array, sine: Array) -> list[Array]:
    """P(a > s, b > t) of every pair of kinks, with one call of Owen's function."""
    levels, slopes, found = [], [], []
    for p in pairs:
        h, k = p.s / r1, p.t / r2
        if p.s and p.t:
            levels += [h, k]
            apart = _difference(k, h, sine)
            slopes += [_clipped_ratio(rise, sine, _half_tangent(p.u, sine)) for rise in (apart / h, -apart / k)]
        elif p.s or p.t:
            levels.append(h if p.s else k)
            slopes.append(_clipped_ratio(1 - p.u, sine))
    full = [jnp.broadcast_to(level, sine.shape) for level in levels]
    T = iter(owens_t(jnp.stack(full), jnp.stack(slopes))) if levels else iter(())
    for p in pairs:
        half_h, half_k = (0.5 * ndtr(-level / r) if level else 0.0 for level, r in ((p.s, r1), (p.t, r2)))
        if p.s and p.t:
            found.append(half_h + half_k - next(T) - next(T))
        elif p.s or p.t:
            found.append((half_h if p.s else half_k) + next(T))
        else:
            found.append(0.5 - angle_and_gap(p.u)[0] / (2 * math.pi))
    return found


def _difference(a: Array, b: Array, sine: Array) -> Array:
    """a - b of two levels or roots, and 0 if parallel points differ by no more than rounding.

    Divided by sin θ it is a ratio of roundings there. A compiler that evaluates it at several places may round it
    differently at each, while what follows needs (a - b)/sin θ and (b - a)/sin θ to cancel: T(h, x) + T(k, -x), and the
    probabilities Φ(x) + Φ(-x). Sums of both depend on a - b only to first order, so that 0 costs no accuracy. Levels
    have at most 4 roundings (two roots, two ratios); for sines of √eps or more they change x by at most 4 √eps.
    """
    eps = jnp.finfo(sine.dtype).eps
    return jnp.where((jnp.abs(a - b) <= 4 * eps * b) & (sine * sine <= eps), 0, a - b)


def _half_tangent(u: Array, sine: Array) -> Array:
    """tan(θ/2) = u/sin θ. By one root for acute angles: rounding of a small u must not be divided by a sine of 0."""
    acute = jnp.where(u < 1, u, 0)
    return jnp.where(u < 1, safe_sqrt(acute / (2 - acute)), u / jnp.maximum(sine, SMALLEST_SPREAD))


def _clipped_ratio(rise: Array, sine: Array, shift: Array | float = 0.0) -> Array:
    """rise/sine + shift, clipped to ±MAX_SLOPE; 0 if all are 0."""
    return jnp.clip(rise / jnp.maximum(sine, SMALLEST_SPREAD) + shift, -MAX_SLOPE, MAX_SLOPE)


def _conditional_excess(
    at: float, other: Array, level: float, root: Array, u: Array, sine: Array
) -> tuple[Array, Array]:
    """E (y - level)_+ and P(y > level) for y ~ N(root·cos θ·at/other, (root·sin θ)²): b given a = at."""
    if not at and not level:
        return root * sine / math.sqrt(2 * math.pi), jnp.full_like(sine, 0.5)
    # root·cos θ·at/other - level, arranged so that equal points give exactly 0 at equal levels
    rise = at * _difference(root, other, sine) / other + (at - level)
    spread, turn = root * sine, at / other
    mean = rise - turn * u * root
    # without spread the probability is 0, 1, or 1/2 at the level itself
    scaled = rise / jnp.maximum(spread, SMALLEST_SPREAD) - turn * _half_tangent(u, sine)
    scaled = jnp.clip(scaled, -TAIL_CUTOFF, TAIL_CUTOFF)
    above = ndtr(scaled)
    return mean * above + spread * _density(scaled), above


def _density(x: Array) -> Array:
    """Standard normal density."""
    return jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@jax.custom_jvp
def owens_t(h: Array, a: Array) -> Array:
    """Owen's function T(h, a) = (1/2π) ∫_0^a exp(-h²(1+x²)/2)/(1+x²) dx for h ≥ 0.

    For a > 1 uses T(h, a) = ½(Q(h) + Q(ah)) - Q(h)Q(ah) - T(ah, 1/a), so that quadrature stays on [0, 1].
    """
    size = jnp.abs(a)
    steep = size > 1
    slope = jnp.where(steep, 1 / jnp.where(steep, size, 1), size)
    level = jnp.where(steep, size * h, h)
    x, w = np.polynomial.legendre.leggauss(NODES["float64" if slope.dtype == jnp.float64 else "float32"])

    def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        square = (slope * node[0]) ** 2
        return total + node[1] * jnp.exp(-0.5 * level * level * (1 + square)) / (1 + square), None

    nodes = jnp.asarray((x + 1) / 2, slope.dtype), jnp.asarray(w / (4 * math.pi), slope.dtype)
    # a loop: XLA would duplicate an unrolled sum for every use and compile for minutes
    inner = slope * jax.lax.scan(add, jnp.zeros_like(slope), nodes)[0]
    at, far = ndtr(-h), ndtr(-level)
    return jnp.sign(a) * jnp.where(steep, 0.5 * (at + far) - at * far - inner, inner)


@owens_t.defjvp
def _owens_t_jvp(primals, tangents):
    """∂T/∂a = exp(-h²(1+a²)/2)/(2π(1+a²)), ∂T/∂h = -f(h)(Φ(ah) - ½)."""
    (h, a), (dh, da) = primals, tangents
    by_a = jnp.exp(-0.5 * h * h * (1 + a * a)) / (2 * math.pi * (1 + a * a))
    return owens_t(h, a), by_a * da - _density(h) * (ndtr(a * h) - 0.5) * dh
