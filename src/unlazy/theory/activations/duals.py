"""Dual activations: E φ(a)φ(b) and E φ'(a)φ'(b) for Gaussian (a, b) with covariance (q11, q22, q12) [K7, K8].

By Price's theorem the second is the derivative of the first in q12. Closed forms are written so that they stay finite
and keep full precision at a = b, at q = 0 and at large q. Functions without a closed form use
theory.activations.numeric_duals. Cho and Saul (2009), Williams (1997), Tsuchida et al. (2021), Daniely et al. (2016).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf
from jaxtyping import Array, Float, PyTree

from unlazy.theory.activations import erf_gelu_duals, functions, mehler, numeric_duals
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.numerics.geometry import (
    Covariance,
    angle_and_gap,
    covariance,
    horner,
    safe_sqrt,
)

Dual = Callable[[Covariance], Array]


def dual(q12: Array, q11: Array, q22: Array, activation: ActivationFunction) -> Float[Array, "*s"]:
    """E φ(a)φ(b) for Gaussian (a, b) [K7].

    Parameters
    ----------
    q12, q11, q22 : array
        E ab, E a² and E b²; shapes broadcast.
    activation : ActivationFunction

    Returns
    -------
    array
    """
    return dual_functions(activation)[0](covariance(q12, q11, q22))


def dual_derivative(q12: Array, q11: Array, q22: Array, activation: ActivationFunction) -> Float[Array, "*s"]:
    """E φ'(a)φ'(b) for Gaussian (a, b), the derivative of `dual` in q12 [K8].

    Parameters
    ----------
    q12, q11, q22 : array
        E ab, E a² and E b²; shapes broadcast.
    activation : ActivationFunction

    Returns
    -------
    array

    Raises
    ------
    ValueError
        If φ is discontinuous, so that the expectation is infinite.
    """
    return dual_functions(activation)[1](covariance(q12, q11, q22))


def has_closed_form(activation: ActivationFunction, derivative: bool = False) -> bool:
    """Whether the dual (or its derivative) is exact up to rounding; otherwise see theory.activations.dual_errors."""
    return _closed_form(activation) is not None or numeric_duals.has_closed_form(activation, derivative)


def dual_functions(activation: ActivationFunction) -> tuple[Dual, Dual]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) as functions of a `Covariance`."""
    return _closed_form(activation) or numeric_duals.dual_functions(activation)


def dual_and_derivative(activation: ActivationFunction, pair: Covariance) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) of one covariance, sharing work where possible."""
    closed = _closed_form(activation)
    return numeric_duals.dual_and_derivative(activation, pair) if closed is None else (closed[0](pair), closed[1](pair))


def diagonal_dual(activation: ActivationFunction, q: Array, derivative: bool = True) -> tuple[Array, Array]:
    """E φ(a)² and E φ'(a)² for a of variance q.

    Parameters
    ----------
    activation : ActivationFunction
    q : array
        Variances.
    derivative : bool, default True
        If False the second result is zero.

    Returns
    -------
    tuple of arrays of the shape of q
    """
    if is_smooth_without_closed_form(activation) and q.ndim == 1:
        return mehler.diagonal_dual(activation, q, derivative)
    if is_smooth_without_closed_form(activation):
        root = safe_sqrt(q)
        value = numeric_duals.mean_square(activation, root, False)
        return value, numeric_duals.mean_square(activation, root, True) if derivative else jnp.zeros_like(value)
    pair = covariance(q, q, q)
    if derivative:
        return dual_and_derivative(activation, pair)
    value = dual_functions(activation)[0](pair)
    return value, jnp.zeros_like(value)


def is_smooth_without_closed_form(activation: ActivationFunction) -> bool:
    """Whether φ has neither a closed form nor kinks: its dual is then a Mehler series."""
    return _closed_form(activation) is None and not activation.kinks


def has_per_point_terms(activation: ActivationFunction) -> bool:
    """Whether the dual can be computed from terms of the two variances (`per_point_terms`, `dual_from_terms`)."""
    return is_smooth_without_closed_form(activation) or _normal_form(activation) is not None


def per_point_terms(activation: ActivationFunction, q: Array, tangent: bool) -> tuple[Array, PyTree]:
    """E φ(a)² for variances q, and the per-point terms from which `dual_from_terms` computes duals of pairs.

    Parameters
    ----------
    activation : ActivationFunction
    q : array of shape (n,)
        Variances.
    tangent : bool
        Whether E φ'φ' will be needed.

    Returns
    -------
    tuple
        E φ² of shape (n,), and `MehlerTerms` or `NormalDualTerms`.
    """
    form = _normal_form(activation)
    if form is None:
        return mehler.per_point_terms(activation, q, tangent)
    return diagonal_dual(activation, q, False)[0], erf_gelu_duals.per_point_terms(form[0], q)


def per_point_term_count(activation: ActivationFunction) -> int:
    """Approximate number of values per point in `per_point_terms`."""
    return 4 if _normal_form(activation) is not None else 2 * numeric_duals.TERMS


def dual_from_terms(
    activation: ActivationFunction, pair: Covariance, left: PyTree, right: PyTree
) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) of pairs, from their covariance and the per-point terms of both sides."""
    form = _normal_form(activation)
    if form is None:
        return mehler.dual_from_terms(pair.q12, left, right)
    return form[1](pair, left, right)


def _normal_form(activation: ActivationFunction) -> tuple[float, Any] | None:
    """Scale and formula of erf and GELU in erf_gelu_duals; None for other functions."""
    if _closed_form(activation) is None:
        return None
    return erf_gelu_duals.FORMS.get(_NORMAL.get(activation.function, ""))


def _closed_form(activation: ActivationFunction) -> tuple[Dual, Dual] | None:
    """Closed-form dual and derivative; None if there is none."""
    slope = slope_below_zero(activation)
    if slope is not None:
        return _piecewise_linear(slope)
    if activation.function is jax.nn.gelu and activation.parameter:  # the tanh approximation
        return None
    form = _CLOSED.get(activation.function)
    return form if form is None or isinstance(form, tuple) else form(activation.parameter)


def _piecewise_linear(slope: float) -> tuple[Dual, Dual]:
    """Duals of max(z, 0) - slope·max(-z, 0): see theory.infinite_width.homogeneous."""
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
    """Raise ValueError: the step function has no derivative."""
    raise ValueError("the step function has no derivative, so no NTK; use its NNGP, or a smooth activation such as erf")


def _normal(name: str) -> tuple[Dual, Dual]:
    """Duals of erf or GELU from erf_gelu_duals."""
    scale, formula = erf_gelu_duals.FORMS[name]

    def both(pair):
        return formula(
            pair, erf_gelu_duals.per_point_terms(scale, pair.q11), erf_gelu_duals.per_point_terms(scale, pair.q22)
        )

    return lambda pair: both(pair)[0], lambda pair: both(pair)[1]


def _waves(frequency: float) -> tuple[Dual, Dual]:
    """e^{-s} sinh x and e^{-s} cosh x with s = ω²(q11 + q22)/2 and x = ω² q12, without overflow.

    Uses x - s = -ω²D/2 with D = E (a - b)², because the difference loses all digits at large q.
    """
    w2 = frequency**2

    def exponentials(pair):
        q12, q11, q22 = pair[:3]
        rising = jnp.exp(jnp.minimum(-0.5 * w2 * pair.distance, 0))
        return w2 * q12, rising, jnp.exp(jnp.minimum(-0.5 * w2 * (q11 + q22) - w2 * q12, 0))

    def sinh(pair):
        x, rising, falling = exponentials(pair)
        small = jnp.abs(x) < 0.5
        # Taylor series of sinh where the difference would cancel; the next term is below 1e-17
        near = jnp.where(small, x, 0)
        taylor = near * horner(tuple(1 / math.factorial(2 * k + 1) for k in range(7)), near * near)
        outer = jnp.exp(-0.5 * w2 * pair.q11) * jnp.exp(-0.5 * w2 * pair.q22)
        return jnp.where(small, outer * taylor, 0.5 * (rising - falling))

    def cosh(pair):
        _, rising, falling = exponentials(pair)
        return 0.5 * (rising + falling)

    return sinh, cosh


def _sin(frequency: float | None) -> tuple[Dual, Dual]:
    """Duals of sin(ωx)."""
    omega = 1.0 if frequency is None else frequency
    sinh, cosh = _waves(omega)
    return sinh, lambda pair: omega**2 * cosh(pair)


def _cos(frequency: float | None) -> tuple[Dual, Dual]:
    """Duals of cos(ωx)."""
    omega = 1.0 if frequency is None else frequency
    sinh, cosh = _waves(omega)
    return cosh, lambda pair: omega**2 * sinh(pair)


def _monomial(degree: float) -> tuple[Dual, Dual]:
    """E a^k b^k = Σ_j (k!/((k-2j)! j! 2^j))² (k-2j)! q12^{k-2j} (q11 q22)^j."""
    k = int(degree)
    return _even_series(k, 0.0, 1.0), _even_series(k - 1, 0.0, float(k * k)) if k else _zero


def _hermite(degree: float) -> tuple[Dual, Dual]:
    """E h_k(a) h_k(b), h_k = He_k/√k!: as for monomials, with (q11 - 1)(q22 - 1) for q11 q22, divided by k!."""
    k = int(degree)
    inner = _even_series(k - 1, 1.0, k / math.factorial(k - 1)) if k else _zero
    return _even_series(k, 1.0, 1 / math.factorial(k)), inner


def _even_series(k: int, center: float, scale: float) -> Dual:
    """The sum of `_monomial` with (q11 - center)(q22 - center) for q11 q22, times a scale."""
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
    """The derivative of a constant."""
    return jnp.zeros_like(pair.q12)


_NORMAL: dict[Callable, str] = {erf: "erf", functions.exact_gelu: "gelu", jax.nn.gelu: "gelu"}
_STEP = _step, _no_derivative
_CLOSED: dict[Callable, tuple[Dual, Dual] | Callable[..., tuple[Dual, Dual]]] = {
    functions.step: _STEP,
    jnp.heaviside: _STEP,  # its value at 0 has measure zero
    **{function: _normal(name) for function, name in _NORMAL.items()},
    jnp.square: _monomial(2),
    functions.sine: _sin,
    jnp.sin: _sin,
    functions.cosine: _cos,
    jnp.cos: _cos,
    functions.monomial: _monomial,
    functions.hermite_polynomial: _hermite,
}


def slope_below_zero(activation: ActivationFunction) -> float | None:
    """Slope of φ below zero; None if φ is not piecewise linear with a single kink at 0."""
    if activation.function in (functions.leaky_relu, jax.nn.leaky_relu):
        return float(activation.parameter or 0.0)
    return _SLOPES.get(activation.function)


_SLOPES: dict[Callable, float] = {
    functions.relu: 0.0, jax.nn.relu: 0.0,
    jnp.abs: -1.0, jnp.absolute: -1.0, jnp.fabs: -1.0,
    functions.identity: 1.0, jax.nn.identity: 1.0, jnp.positive: 1.0,
}  # fmt: skip


def gain_and_kink(slope: float) -> tuple[float, float]:
    """g = E φ(a)² / E a² and the weight w of the angular part."""
    return (1 + slope**2) / 2, (1 - slope) ** 2 / (1 + slope**2)
