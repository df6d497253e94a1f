"""Duals of the truncated ReLU min(1, max(z, 0)) [P3] = max(z, 0) - max(z - 1, 0), through the bivariate normal.

With h = s/√q11, k = t/√q22 and θ the angle (cos θ = correlation), Plackett's identity integrated from θ = 0 gives

    P(a > s, b > t) = Φ(-max(h, k)) - (1/2π) ∫_0^θ exp(-(h-k)²/(2 sin²φ) - hk/(1 + cos φ)) dφ,

which keeps its digits near a = b. Plackett (1954).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from unlazy.theory.angles import angle_and_gap, safe_reciprocal, safe_sqrt
from unlazy.theory.homogeneous import cosine_gap

NODES = {"float32": (36, 3.0), "float64": (120, 3.6)}
"""Nodes and range of the tanh-sinh rule, which clusters at both ends, where the integrand may rise steeply."""
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
        self.cosine, self.sine = 1 - u, safe_sqrt(u * (2 - u))
        h, k = 1 / self.roots[0], 1 / self.roots[1]
        arcs = [arc / (2 * math.pi) for arc in _arcs(h, k, theta)]
        self.tails = {
            (0, 0): 0.5 - theta / (2 * math.pi),
            (1, 0): ndtr(-h) - arcs[0],
            (0, 1): ndtr(-k) - arcs[1],
            (1, 1): ndtr(-jnp.maximum(h, k)) - arcs[2],
        }

    def ramps(self, s: int, t: int) -> Array:
        """E (a-s)_+ (b-t)_+ by Stein's identity, with T the tail, f the densities.

        q12 T + q11 f_a(s) E[(b-t)_+ | a = s] - s (q12 f_a(s) P(b > t | a = s) + q22 f_b(t) P(a > s | b = t) - t T).
        """
        (r1, r2), T = self.roots, self.tails[s, t]
        at_s, at_t = _density(s / r1), _density(t / r2)
        excess, above_t = self._given(s / r1, t, r2)
        _, above_s = self._given(t / r2, s, r1)
        # q11 f_a(s) = √q11 · density of the standardised variable, and so on
        first = self.q12 * T + r1 * at_s * excess
        return first - s * (self.cosine * r2 * at_s * above_t + r2 * at_t * above_s - t * T) if s else first

    def _given(self, standard: Array, level: int, root: Array) -> tuple[Array, Array]:
        """E (y - level)_+ and P(y > level) for y ~ N(root·cos θ·standard, (root·sin θ)²)."""
        mean, spread = root * self.cosine * standard - level, root * self.sine
        inverse = safe_reciprocal(spread)
        # with no spread the probability is 0, 1, or 1/2 at the level itself
        above = jnp.where(spread > 0, ndtr(mean * inverse), 0.5 * (1 + jnp.sign(mean)))
        return mean * above + spread * _density(mean * inverse), above


def _density(x: Array) -> Array:
    return jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _arcs(h: Array, k: Array, theta: Array) -> list[Array]:
    """The integrals for (h, 0), (0, k) and (h, k) by the tanh-sinh rule, a node at a time: no array gains an axis."""
    count, reach = NODES["float64" if theta.dtype == jnp.float64 else "float32"]
    y = np.linspace(-reach, reach, count)
    fraction = 1 / (1 + np.exp(-np.pi * np.sinh(y)))
    weight = (y[1] - y[0]) * np.pi * np.cosh(y) * fraction * (1 - fraction)
    tiny = jnp.finfo(theta.dtype).tiny
    gaps = [0.5 * h * h, 0.5 * k * k, 0.5 * (h - k) ** 2]
    product = h * k

    def add(totals: list[Array], node: tuple[Array, Array]) -> tuple[list[Array], None]:
        part, w = node
        phi = theta * part
        inverse = 1 / jnp.maximum(jnp.sin(phi) ** 2, tiny)
        # 1/(1 + cos φ) = (1 - cos φ)/sin²φ loses digits at small φ, so the half angle
        slow = product / jnp.maximum(2 * jnp.cos(0.5 * phi) ** 2, tiny)
        exponents = [-gaps[0] * inverse, -gaps[1] * inverse, -gaps[2] * inverse - slow]
        return [total + w * jnp.exp(e) for total, e in zip(totals, exponents)], None

    shape = jnp.broadcast_shapes(jnp.shape(h), jnp.shape(k), theta.shape)
    nodes = jnp.asarray(fraction, theta.dtype), jnp.asarray(weight, theta.dtype)
    totals = jax.lax.scan(add, [jnp.zeros(shape, theta.dtype)] * 3, nodes)[0]
    return [theta * total for total in totals]
