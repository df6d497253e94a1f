"""Duals of the truncated ReLU min(1, max(z, 0)) [P3] = max(z, 0) - max(z - 1, 0), through the bivariate normal.

With h = s/√q11, k = t/√q22 ≥ 0, ρ the correlation, Q the normal tail and T Owen's function (Owen 1956),

    P(a > s, b > t) = ½Q(h) + ½Q(k) - T(h, (k - ρh)/(h √(1-ρ²))) - T(k, (h - ρk)/(k √(1-ρ²))),

and P(a > s, b > 0) = ½Q(h) + T(h, ρ/√(1-ρ²)): nothing cancels near a = b.
"""

import math

import jax
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
    """Both: sums over the four pairs of kinks (s, t), stacked on a first axis, with signs +, -, -, +."""
    q12, q11, q22 = jnp.broadcast_arrays(q12, q11, q22)
    r1, r2 = (jnp.maximum(safe_sqrt(q), SMALLEST_ROOT) for q in (q11, q22))
    u = cosine_gap(q12, q11, q22)
    sine = safe_sqrt(u * (2 - u))
    s, t, sign = (jnp.reshape(jnp.asarray(v, u.dtype), (4,) + (1,) * u.ndim) for v in _KINKS)
    tails = _tails(1 / r1, 1 / r2, u, sine)
    return jnp.sum(sign * _ramps(s, t, q12, r1, r2, u, sine, tails), 0), jnp.sum(sign * tails, 0)


_KINKS = (0, 1, 0, 1), (0, 0, 1, 1), (1, -1, -1, 1)


def _tails(h: Array, k: Array, u: Array, sine: Array) -> Array:
    """P(a > s, b > t) for (s, t) = (0,0), (1,0), (0,1), (1,1)."""
    theta, _ = angle_and_gap(u)
    inverse = safe_reciprocal(sine)
    # slopes are infinite where the points are parallel; 1e6 is as good, and its square is finite in float32
    cotangent = jnp.where(sine > 0, jnp.clip((1 - u) * inverse, -1e6, 1e6), jnp.where(u > 1, -1e6, 1e6))
    opposite = jnp.where((sine == 0) & (u > 1), 1e6, 0)
    across_h, across_k = (jnp.clip((gap + u) * inverse, -1e6, 1e6) + opposite for gap in ((k - h) / h, (h - k) / k))
    T = owens_t(jnp.stack([h, k, h, k]), jnp.stack([cotangent, cotangent, across_h, across_k]))
    half_h, half_k = 0.5 * ndtr(-h), 0.5 * ndtr(-k)
    return jnp.stack([0.5 - theta / (2 * math.pi), half_h + T[0], half_k + T[1], half_h + half_k - T[2] - T[3]])


def _ramps(s, t, q12, r1, r2, u, sine, tails) -> Array:
    """E (a-s)_+ (b-t)_+ by Stein's identity, with T the tail, f the densities.

    q12 T + q11 f_a(s) E[(b-t)_+ | a = s] - s (q12 f_a(s) P(b > t | a = s) + q22 f_b(t) P(a > s | b = t) - t T).
    """
    # q11 f_a(s) = √q11 · density of the standardised variable, and so on
    at_s, at_t = _density(s / r1), _density(t / r2)
    excess, above_t = _given(s, r1, t, r2, u, sine)
    _, above_s = _given(t, r2, s, r1, u, sine)
    below = (1 - u) * r2 * at_s * above_t + r2 * at_t * above_s - t * tails
    return q12 * tails + r1 * at_s * excess - s * below


def _given(at, other, level, root, u, sine) -> tuple[Array, Array]:
    """E (y - level)_+ and P(y > level) for y ~ N(root·cos θ·at/other, (root·sin θ)²): b given a = at."""
    # root·cos θ·at/other - level, arranged so that equal points give exactly 0 at equal levels
    mean = at * ((root - other) - u * root) / other + (at - level)
    spread = root * sine
    inverse = safe_reciprocal(spread)
    # with no spread the probability is 0, 1, or 1/2 at the level itself
    above = jnp.where(spread > 0, ndtr(mean * inverse), 0.5 * (1 + jnp.sign(mean)))
    return mean * above + spread * _density(mean * inverse), above


def _density(x: Array) -> Array:
    return jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@jax.custom_jvp
def owens_t(h: Array, a: Array) -> Array:
    """T(h, a) = (1/2π) ∫_0^a exp(-h²(1+x²)/2)/(1+x²) dx for h ≥ 0.

    For a > 1 through T(h, a) = ½(Q(h) + Q(ah)) - Q(h)Q(ah) - T(ah, 1/a), so that quadrature stays on [0, 1].
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
    # a loop, not a sum of 6 terms: XLA would repeat those for every use and compile for minutes
    inner = slope * jax.lax.scan(add, jnp.zeros_like(slope), nodes)[0]
    at, far = ndtr(-h), ndtr(-level)
    return jnp.sign(a) * jnp.where(steep, 0.5 * (at + far) - at * far - inner, inner)


@owens_t.defjvp
def _owens_t_jvp(primals, tangents):
    """∂T/∂a = exp(-h²(1+a²)/2)/(2π(1+a²)), ∂T/∂h = -f(h)(Φ(ah) - ½)."""
    (h, a), (dh, da) = primals, tangents
    by_a = jnp.exp(-0.5 * h * h * (1 + a * a)) / (2 * math.pi * (1 + a * a))
    return owens_t(h, a), by_a * da - _density(h) * (ndtr(a * h) - 0.5) * dh
