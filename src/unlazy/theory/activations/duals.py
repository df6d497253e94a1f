"""Dual activations: E φ(a)φ(b) and E φ'(a)φ'(b) for Gaussian (a,b) of covariance (q11, q22, q12) [K7, K8].

By Price's theorem the second is the derivative of the first in q12; where a closed form is known both are written so
that they stay finite and keep their digits at a = b, at q = 0 and at large q. Functions without one go to
theory.activations.numeric_duals. Cho and Saul (2009), Williams (1997), Tsuchida et al. (2021), Daniely et al. (2016).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf
from jaxtyping import Array, Float

from unlazy.theory.activations import functions, mehler, normal_duals, numeric_duals
from unlazy.theory.activations.functions import Activation
from unlazy.theory.infinite_width.covariance import Covariance, covariance
from unlazy.theory.infinite_width.homogeneous import gain_and_kink, slope_below_zero
from unlazy.theory.numerics.angles import angle_and_gap, horner, safe_sqrt

Dual = Callable[[Covariance], Array]


def dual(q12: Array, q11: Array, q22: Array, activation: Activation) -> Float[Array, "*s"]:
    """E φ(a)φ(b)."""
    return of(activation)[0](covariance(q12, q11, q22))


def dual_derivative(q12: Array, q11: Array, q22: Array, activation: Activation) -> Float[Array, "*s"]:
    """E φ'(a)φ'(b); infinite, hence refused, where φ jumps."""
    return of(activation)[1](covariance(q12, q11, q22))


def has_closed_form(activation: Activation, derivative: bool = False) -> bool:
    """Whether the dual is exact to rounding; otherwise theory.activations.dual_errors says how good it is."""
    return _closed(activation) is not None or numeric_duals.is_closed(activation, derivative)


def of(activation: Activation) -> tuple[Dual, Dual]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) as functions of the covariance: closed forms by the function itself."""
    return _closed(activation) or numeric_duals.duals(activation)


def both(activation: Activation, pair: Covariance) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) of one covariance, where they share work."""
    closed = _closed(activation)
    return numeric_duals.both(activation, pair) if closed is None else (closed[0](pair), closed[1](pair))


def own(activation: Activation, q: Array, derivative: bool = True) -> tuple[Array, Array]:
    """E φ(a)² and E φ'(a)² of variance q; with `derivative` off the second is 0."""
    if is_smooth(activation) and q.ndim == 1:
        return mehler.own(activation, q, derivative)
    if is_smooth(activation):
        root = safe_sqrt(q)
        value = numeric_duals.own_square(activation, root, False)
        return value, numeric_duals.own_square(activation, root, True) if derivative else jnp.zeros_like(value)
    pair = covariance(q, q, q)
    if derivative:
        return both(activation, pair)
    value = of(activation)[0](pair)
    return value, jnp.zeros_like(value)


def is_smooth(activation: Activation) -> bool:
    """Whether it has no closed form and no kinks."""
    return _closed(activation) is None and not activation.kinks


def has_rows(activation: Activation) -> bool:
    """Whether its dual is made of what each of two variances brings: `row`, then `of_rows`."""
    return is_smooth(activation) or _normal_form(activation) is not None


def row(activation: Activation, q: Array, tangent: bool) -> tuple[Array, Any]:
    """E φ(a)² of variance q, and what it brings to the dual of a pair."""
    form = _normal_form(activation)
    if form is None:
        return mehler.row(activation, q, tangent)
    return own(activation, q, False)[0], normal_duals.row(form[0], q)


def row_numbers(activation: Activation) -> int:
    """How many numbers `row` gives, about."""
    return 4 if _normal_form(activation) is not None else 2 * numeric_duals.TERMS


def of_rows(activation: Activation, pair: Covariance, left: Any, right: Any) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b), from what the two variances bring."""
    form = _normal_form(activation)
    if form is None:
        return mehler.both(pair.q12, left, right)
    return form[1](pair, left, right)


def _normal_form(activation: Activation) -> tuple[float, Any] | None:
    if _closed(activation) is None:
        return None
    return normal_duals.FORMS.get(_NORMAL.get(activation.function, ""))


def _closed(activation: Activation) -> tuple[Dual, Dual] | None:
    slope = slope_below_zero(activation)
    if slope is not None:
        return _piecewise_linear(slope)
    if activation.function is jax.nn.gelu and activation.parameter:  # the tanh form
        return None
    form = _CLOSED.get(activation.function)
    return form if form is None or isinstance(form, tuple) else form(activation.parameter)


def _piecewise_linear(slope: float) -> tuple[Dual, Dual]:
    gain, kink = gain_and_kink(slope)

    def value(pair):
        _, gap = angle_and_gap(pair.gap)
        return gain * safe_sqrt(pair.q11) * safe_sqrt(pair.q22) * (1 - pair.gap + kink / math.pi * gap)

    def derivative(pair):
        theta, _ = angle_and_gap(pair.gap)
        return gain * (1 - kink / math.pi * theta)

    return value, derivative


def _step(pair):
    """P(a > 0, b > 0) = (π - θ)/(2π)."""
    theta, _ = angle_and_gap(pair.gap)
    return (math.pi - theta) / (2 * math.pi)


def _no_derivative(pair):
    raise ValueError("the step function has no derivative, so no NTK; use its NNGP, or a smooth activation such as erf")


def _normal(name: str) -> tuple[Dual, Dual]:
    scale, formula = normal_duals.FORMS[name]

    def both(pair):
        return formula(pair, normal_duals.row(scale, pair.q11), normal_duals.row(scale, pair.q22))

    return lambda pair: both(pair)[0], lambda pair: both(pair)[1]


def _waves(frequency: float) -> tuple[Dual, Dual]:
    """e^{-s} sinh x and e^{-s} cosh x with s = ω²(q11 + q22)/2, x = ω² q12, never through a large exponential.

    x - s = -ω²D/2 is the distance: at large q the difference would have lost it.
    """
    w2 = frequency**2

    def exponentials(pair):
        q12, q11, q22 = pair[:3]
        rising = jnp.exp(jnp.minimum(-0.5 * w2 * pair.distance, 0))
        return w2 * q12, rising, jnp.exp(jnp.minimum(-0.5 * w2 * (q11 + q22) - w2 * q12, 0))

    def sinh(pair):
        x, rising, falling = exponentials(pair)
        small = jnp.abs(x) < 0.5
        # the Taylor series of sinh where the difference would cancel: its next term is under 1e-17
        near = jnp.where(small, x, 0)
        taylor = near * horner(tuple(1 / math.factorial(2 * k + 1) for k in range(7)), near * near)
        outer = jnp.exp(-0.5 * w2 * pair.q11) * jnp.exp(-0.5 * w2 * pair.q22)
        return jnp.where(small, outer * taylor, 0.5 * (rising - falling))

    def cosh(pair):
        _, rising, falling = exponentials(pair)
        return 0.5 * (rising + falling)

    return sinh, cosh


def _sin(frequency: float | None) -> tuple[Dual, Dual]:
    omega = 1.0 if frequency is None else frequency
    sinh, cosh = _waves(omega)
    return sinh, lambda pair: omega**2 * cosh(pair)


def _cos(frequency: float | None) -> tuple[Dual, Dual]:
    omega = 1.0 if frequency is None else frequency
    sinh, cosh = _waves(omega)
    return cosh, lambda pair: omega**2 * sinh(pair)


def _monomial(degree: float) -> tuple[Dual, Dual]:
    """E a^k b^k = Σ_j (k!/((k-2j)! j! 2^j))² (k-2j)! q12^{k-2j} (q11 q22)^j."""
    k = int(degree)
    return _even_series(k, 0.0, 1.0), _even_series(k - 1, 0.0, float(k * k)) if k else _zero


def _hermite(degree: float) -> tuple[Dual, Dual]:
    """E h_k(a) h_k(b), h_k = He_k/√k!: as for monomials with (q11 - 1)(q22 - 1) for q11 q22, divided by k!."""
    k = int(degree)
    inner = _even_series(k - 1, 1.0, k / math.factorial(k - 1)) if k else _zero
    return _even_series(k, 1.0, 1 / math.factorial(k)), inner


def _even_series(k: int, center: float, scale: float) -> Dual:
    terms = [
        (k - 2 * j, j, scale * (math.factorial(k) / (math.factorial(k - 2 * j) * math.factorial(j) * 2**j)) ** 2
         * math.factorial(k - 2 * j))
        for j in range(k // 2 + 1)
    ]  # fmt: skip

    def value(pair):
        q12, q11, q22 = pair[:3]
        even = (q11 - center) * (q22 - center)
        total = jnp.zeros(jnp.broadcast_shapes(jnp.shape(q12), jnp.shape(even)), jnp.result_type(q12))
        for power, j, coefficient in terms:
            total = total + coefficient * q12**power * even**j
        return total

    return value


def _zero(pair):
    return jnp.zeros_like(pair.q12)


_NORMAL: dict[Callable, str] = {erf: "erf", functions.exact_gelu: "gelu", jax.nn.gelu: "gelu"}
_STEP = _step, _no_derivative
_CLOSED: dict[Callable, tuple[Dual, Dual] | Callable[..., tuple[Dual, Dual]]] = {
    functions.step: _STEP,
    jnp.heaviside: _STEP,  # its value at 0 has no weight
    **{function: _normal(name) for function, name in _NORMAL.items()},
    jnp.square: _monomial(2),
    functions.sine: _sin,
    jnp.sin: _sin,
    functions.cosine: _cos,
    jnp.cos: _cos,
    functions.monomial: _monomial,
    functions.hermite_polynomial: _hermite,
}
