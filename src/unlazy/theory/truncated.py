"""Duals of the truncated ReLU min(1, max(z, 0)) [P3] = max(z, 0) - max(z - 1, 0), through the bivariate normal.

With h = s/√q11, k = t/√q22 ≥ 0, ρ the correlation, Q the normal tail and T Owen's function (Owen 1956),

    P(a > s, b > t) = ½Q(h) + ½Q(k) - T(h, (k - ρh)/(h √(1-ρ²))) - T(k, (h - ρk)/(k √(1-ρ²))),

and P(a > s, b > 0) = ½Q(h) + T(h, ρ/√(1-ρ²)): nothing cancels near a = b.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from unlazy.theory.angles import angle_and_gap, safe_reciprocal, safe_sqrt
from unlazy.theory.homogeneous import cosine_gap

NODES = {"float32": 6, "float64": 13}
"""Gauss-Legendre nodes for T on [0, 1]: its poles at ±i let every node gain a factor of about 20."""
SMALLEST_ROOT = 1e-6
"""√q below this counts as this: a kink 10^6 standard deviations away is never met."""


def dual(q12: Array, q11: Array, q22: Array) -> Array:
    """E φ(a)φ(b)."""
    return dual_pair(q12, q11, q22)[0]


def dual_derivative(q12: Array, q11: Array, q22: Array) -> Array:
    """P(0 < a < 1, 0 < b < 1)."""
    return dual_pair(q12, q11, q22)[1]


def dual_pair(q12: Array, q11: Array, q22: Array) -> tuple[Array, Array]:
    """Both, from the same four tails."""
    pair = _Pair(q12, q11, q22)
    signs = {(0, 0): 1, (1, 0): -1, (0, 1): -1, (1, 1): 1}
    value = sum(sign * pair.ramps(*at) for at, sign in signs.items())
    return value, sum(sign * pair.tails[at] for at, sign in signs.items())  # type: ignore[return-value]


class _Pair:
    """Tails P(a > s, b > t) and ramps E (a-s)_+ (b-t)_+ of one bivariate normal, s and t in {0, 1}."""

    def __init__(self, q12: Array, q11: Array, q22: Array):
        self.q12 = q12
        self.roots = jnp.maximum(safe_sqrt(q11), SMALLEST_ROOT), jnp.maximum(safe_sqrt(q22), SMALLEST_ROOT)
        u = cosine_gap(q12, q11, q22)
        theta, _ = angle_and_gap(u)
        self.gap, self.cosine, self.sine = u, 1 - u, safe_sqrt(u * (2 - u))
        h, k = 1 / self.roots[0], 1 / self.roots[1]
        inverse = safe_reciprocal(self.sine)
        # cot θ is infinite where the points coincide; 1e6 is as good, and its square is finite in float32
        cotangent = jnp.where(self.sine > 0, jnp.clip(self.cosine * inverse, -1e6, 1e6), jnp.sign(self.cosine) * 1e6)
        opposite = jnp.where((self.sine == 0) & (u > 1), 1e6, 0)
        across_h = jnp.clip(((k - h) / h + u) * inverse, -1e6, 1e6) + opposite
        across_k = jnp.clip(((h - k) / k + u) * inverse, -1e6, 1e6) + opposite
        self.tails = {
            (0, 0): 0.5 - theta / (2 * math.pi),
            (1, 0): 0.5 * ndtr(-h) + owens_t(h, cotangent),
            (0, 1): 0.5 * ndtr(-k) + owens_t(k, cotangent),
            (1, 1): 0.5 * (ndtr(-h) + ndtr(-k)) - owens_t(h, across_h) - owens_t(k, across_k),
        }

    def ramps(self, s: int, t: int) -> Array:
        """E (a-s)_+ (b-t)_+ by Stein's identity, with T the tail, f the densities.

        q12 T + q11 f_a(s) E[(b-t)_+ | a = s] - s (q12 f_a(s) P(b > t | a = s) + q22 f_b(t) P(a > s | b = t) - t T).
        """
        (r1, r2), T = self.roots, self.tails[s, t]
        at_s, at_t = _density(s / r1), _density(t / r2)
        excess, above_t = self._given(s, r1, t, r2)
        _, above_s = self._given(t, r2, s, r1)
        # q11 f_a(s) = √q11 · density of the standardised variable, and so on
        first = self.q12 * T + r1 * at_s * excess
        return first - s * (self.cosine * r2 * at_s * above_t + r2 * at_t * above_s - t * T) if s else first

    def _given(self, at: int, other: Array, level: int, root: Array) -> tuple[Array, Array]:
        """E (y - level)_+ and P(y > level) for y ~ N(root·cos θ·at/other, (root·sin θ)²): b given a = at."""
        # root·cos θ·at/other - level, arranged so that equal points give exactly 0 at equal levels
        mean = at * ((root - other) - self.gap * root) / other + (at - level)
        spread = root * self.sine
        inverse = safe_reciprocal(spread)
        # with no spread the probability is 0, 1, or 1/2 at the level itself
        above = jnp.where(spread > 0, ndtr(mean * inverse), 0.5 * (1 + jnp.sign(mean)))
        return mean * above + spread * _density(mean * inverse), above


def _density(x: Array) -> Array:
    return jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def owens_t(h: Array, a: Array) -> Array:
    """T(h, a) = (1/2π) ∫_0^a exp(-h²(1+x²)/2)/(1+x²) dx for h ≥ 0.

    For a > 1 through T(h, a) = ½(Q(h) + Q(ah)) - Q(h)Q(ah) - T(ah, 1/a), so that quadrature stays on [0, 1].
    """
    size = jnp.abs(a)
    steep = size > 1
    slope = jnp.where(steep, 1 / jnp.where(steep, size, 1), size)
    level = jnp.where(steep, size * h, h)
    x, w = np.polynomial.legendre.leggauss(NODES["float64" if slope.dtype == jnp.float64 else "float32"])
    half = -0.5 * level * level
    inner = sum(
        float(weight) * jnp.exp(half * (1 + square)) / (1 + square)
        for square, weight in (((slope * float(node)) ** 2, weight) for node, weight in zip((x + 1) / 2, w / 2))
    )
    inner = inner * slope / (2 * math.pi)
    at, far = ndtr(-h), ndtr(-level)
    return jnp.sign(a) * jnp.where(steep, 0.5 * (at + far) - at * far - inner, inner)
