"""Dual activations: E φ(a)φ(b) and E φ'(a)φ'(b) for Gaussian (a,b) of covariance (q11, q22, q12) [K7, K8].

By Price's theorem the second is the derivative of the first in q12; where a closed form is known both are written so
that they stay finite and keep their digits at a = b, at q = 0 and at large q. Functions without one go to
theory.numeric_duals. Cho and Saul (2009), Williams (1997), Tsuchida et al. (2021), Daniely et al. (2016).
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.activations import Activation
from unlazy.theory import numeric_duals, truncated
from unlazy.theory.angles import angle_and_gap, arcsine, horner, safe_sqrt
from unlazy.theory.homogeneous import cosine_gap, gain_and_kink, slope_below_zero

Dual = Callable[[Array, Array, Array], Array]


def dual(q12: Array, q11: Array, q22: Array, activation: Activation) -> Float[Array, "*s"]:
    """E φ(a)φ(b)."""
    return _pair(activation)[0](q12, q11, q22)


def dual_derivative(q12: Array, q11: Array, q22: Array, activation: Activation) -> Float[Array, "*s"]:
    """E φ'(a)φ'(b); infinite, hence refused, where φ jumps."""
    return _pair(activation)[1](q12, q11, q22)


def dual_pair(q12: Array, q11: Array, q22: Array, activation: Activation) -> tuple[Array, Array]:
    """Both at once, where they share work."""
    if activation.name == "truncated_relu":
        return truncated.dual_pair(q12, q11, q22)
    return dual(q12, q11, q22, activation), dual_derivative(q12, q11, q22, activation)


def has_closed_form(activation: Activation) -> bool:
    """Whether the duals are exact to rounding; otherwise numeric_duals.error_estimate says how good they are."""
    return slope_below_zero(activation) is not None or activation.name in {*_CLOSED, *_WITH_PARAMETER}


def _pair(activation: Activation) -> tuple[Dual, Dual]:
    slope = slope_below_zero(activation)
    if slope is not None:
        return _piecewise_linear(slope)
    if activation.name in _WITH_PARAMETER:
        return _WITH_PARAMETER[activation.name](activation.parameter)
    if activation.name in _CLOSED:
        return _CLOSED[activation.name]
    return numeric_duals.duals(activation)


def _piecewise_linear(slope: float) -> tuple[Dual, Dual]:
    gain, kink = gain_and_kink(slope)

    def value(q12, q11, q22):
        u = cosine_gap(q12, q11, q22)
        _, gap = angle_and_gap(u)
        return gain * safe_sqrt(q11) * safe_sqrt(q22) * (1 - u + kink / math.pi * gap)

    def derivative(q12, q11, q22):
        theta, _ = angle_and_gap(cosine_gap(q12, q11, q22))
        return gain * (1 - kink / math.pi * theta)

    return value, derivative


def _step(q12, q11, q22):
    """P(a > 0, b > 0) = (π - θ)/(2π)."""
    theta, _ = angle_and_gap(cosine_gap(q12, q11, q22))
    return (math.pi - theta) / (2 * math.pi)


def _no_derivative(q12, q11, q22):
    raise ValueError("the step function has no derivative, so no NTK; use its NNGP, or a smooth activation such as erf")


def _erf(q12, q11, q22):
    """(2/π) arcsin(2 q12/√((1 + 2 q11)(1 + 2 q22)))."""
    r1, r2 = 1 / jnp.sqrt(1 + 2 * q11), 1 / jnp.sqrt(1 + 2 * q22)
    return (2 / math.pi) * arcsine(2 * q12 * (r1 * r2), _complement(q12, q11, q22, 2.0))


def _erf_derivative(q12, q11, q22):
    """(4/π)/√((1 + 2 q11)(1 + 2 q22) - 4 q12²)."""
    r1, r2 = 1 / jnp.sqrt(1 + 2 * q11), 1 / jnp.sqrt(1 + 2 * q22)
    return (4 / math.pi) * r1 * r2 / jnp.sqrt(_complement(q12, q11, q22, 2.0))


def _complement(q12, q11, q22, scale: float):
    """1 - (s q12)²/((1 + s q11)(1 + s q22)) as a sum of positive terms."""
    i1, i2 = 1 / (1 + scale * q11), 1 / (1 + scale * q22)
    u = cosine_gap(q12, q11, q22)
    return i1 + i2 - i1 * i2 + (scale * q11 * i1) * (scale * q22 * i2) * (u * (2 - u))


def _gelu_parts(q12, q11, q22):
    """i1 + i2, m, m N and arcsin ρ.

    i = 1/(1 + q), ρ = q12 √(i1 i2), m = √(i1 i2/(1 - ρ²)), N = q11 q22 - q12²(1 - i1 - i2).
    N is written with u, since its first two terms cancel near a = b, and factors are paired so that none overflows.
    """
    r1, r2 = 1 / jnp.sqrt(1 + q11), 1 / jnp.sqrt(1 + q22)
    complement = _complement(q12, q11, q22, 1.0)
    rest = jnp.sqrt(complement)
    u = cosine_gap(q12, q11, q22)
    sum_i = r1 * r1 + r2 * r2
    mN = ((q11 * r1) * (q22 * r2) * (u * (2 - u)) + (q12 * r1) * (q12 * r2) * sum_i) / rest
    return sum_i, r1 * r2 / rest, mN, arcsine(q12 * (r1 * r2), complement)


def _gelu(q12, q11, q22):
    """q12/4 + (q12 arcsin ρ + m N)/(2π), from Stein's identity applied twice to E ab Φ(a)Φ(b)."""
    _, _, mN, arcsine = _gelu_parts(q12, q11, q22)
    return q12 / 4 + (q12 * arcsine + mN) / (2 * math.pi)


def _gelu_derivative(q12, q11, q22):
    """1/4 + (arcsin ρ + m q12 (1 + m² N + 2(i1 + i2 - 1)))/(2π): the derivative of the above in q12."""
    sum_i, m, mN, arcsine = _gelu_parts(q12, q11, q22)
    return 1 / 4 + (arcsine + m * q12 * (2 * sum_i - 1 + m * mN)) / (2 * math.pi)


def _waves(frequency: float) -> tuple[Dual, Dual]:
    """e^{-s} sinh x and e^{-s} cosh x with s = ω²(q11 + q22)/2, x = ω² q12, never through a large exponential."""
    w2 = frequency**2

    def exponentials(q12, q11, q22):
        s, x = 0.5 * w2 * (q11 + q22), w2 * q12
        return x, jnp.exp(jnp.minimum(x - s, 0)), jnp.exp(jnp.minimum(-x - s, 0))

    def sinh(q12, q11, q22):
        x, rising, falling = exponentials(q12, q11, q22)
        small = jnp.abs(x) < 0.5
        # the Taylor series of sinh where the difference would cancel: its next term is under 1e-17
        near = jnp.where(small, x, 0)
        taylor = near * horner(tuple(1 / math.factorial(2 * k + 1) for k in range(7)), near * near)
        outer = jnp.exp(-0.5 * w2 * q11) * jnp.exp(-0.5 * w2 * q22)
        return jnp.where(small, outer * taylor, 0.5 * (rising - falling))

    def cosh(q12, q11, q22):
        _, rising, falling = exponentials(q12, q11, q22)
        return 0.5 * (rising + falling)

    return sinh, cosh


def _sin(frequency: float) -> tuple[Dual, Dual]:
    sinh, cosh = _waves(frequency)
    return sinh, lambda q12, q11, q22: frequency**2 * cosh(q12, q11, q22)


def _cos(frequency: float) -> tuple[Dual, Dual]:
    sinh, cosh = _waves(frequency)
    return cosh, lambda q12, q11, q22: frequency**2 * sinh(q12, q11, q22)


def _monomial(degree: float) -> tuple[Dual, Dual]:
    """E a^k b^k = Σ_j (k!/((k-2j)! j! 2^j))² (k-2j)! q12^{k-2j} (q11 q22)^j."""
    k = int(degree)
    return _even_series(k, 0.0, 1.0), _even_series(k - 1, 0.0, float(k * k)) if k else _zero


def _hermite(degree: float) -> tuple[Dual, Dual]:
    """E h_k(a) h_k(b), h_k = He_k/√k!: as for monomials with (q11 - 1)(q22 - 1) for q11 q22, divided by k!."""
    k = int(degree)
    inner = _even_series(k - 1, 1.0, k / math.factorial(k - 1)) if k else _zero
    return _even_series(k, 1.0, 1 / math.factorial(k)), inner


def _even_series(k: int, centre: float, scale: float) -> Dual:
    terms = [
        (k - 2 * j, j, scale * (math.factorial(k) / (math.factorial(k - 2 * j) * math.factorial(j) * 2**j)) ** 2
         * math.factorial(k - 2 * j))
        for j in range(k // 2 + 1)
    ]  # fmt: skip

    def value(q12, q11, q22):
        even = (q11 - centre) * (q22 - centre)
        total = jnp.zeros(jnp.broadcast_shapes(jnp.shape(q12), jnp.shape(even)), jnp.result_type(q12))
        for power, j, coefficient in terms:
            total = total + coefficient * q12**power * even**j
        return total

    return value


def _zero(q12, q11, q22):
    return jnp.zeros_like(q12)


_CLOSED: dict[str, tuple[Dual, Dual]] = {
    "step": (_step, _no_derivative),
    "erf": (_erf, _erf_derivative),
    "gelu": (_gelu, _gelu_derivative),
    "square": _monomial(2),
    "truncated_relu": (truncated.dual, truncated.dual_derivative),
}
_WITH_PARAMETER: dict[str, Callable[..., tuple[Dual, Dual]]] = {
    "sin": _sin, "cos": _cos, "monomial": _monomial, "hermite": _hermite,
}  # fmt: skip
