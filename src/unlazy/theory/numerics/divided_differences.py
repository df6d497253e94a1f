"""Divided differences f[λ, μ] = (f(λ) - f(μ))/(λ - μ) of the filters of theory.dynamics.spectral_filters.

Derivatives of functions of K need them for all pairs of eigenvalues (theory.numerics.matrix_functions), including λ =
μ: closed forms, so that no digits cancel. With λ ≥ μ,

| training | r[λ, μ] | c[λ, μ] |
|---|---|---|
| gradient flow | -r(μ) c(λ - μ) | -(c(μ) + r[λ, μ])/λ |
| gradient descent | -η p^{s-1} (1 - (1 - z)^s)/z, p = 1 - ημ, z = η(λ - μ)/p | the same |
| ridge | -ρ c(λ) c(μ) | -c(λ) c(μ) |

The last column for flow and descent is the product rule for λc = 1 - r. It cancels if λt (or ηλs) is small; there the
power series in λ and μ is used.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from unlazy.theory.dynamics.spectral_filters import (
    descent_coefficient,
    descent_residual,
    flow_coefficient,
    flow_residual,
    ridge_coefficient,
)
from unlazy.theory.numerics.matrix_functions import FilterRule

SMALL = 0.25
"""λt below which the series is used. Above it c(μ) + r[λ, μ] ≳ c(μ)λt/4, so at most about 16 roundings are lost."""
TERMS = 13
"""Terms of Σ_k h_k/(k + 2)! with h_k ≤ (k + 1)/4^k: the first omitted one is below 2^-53 of the sum."""


def flow_residual_difference(eigenvalues: Float[Array, " n"], time: Real[ArrayLike, "*t"]) -> Float[Array, "*t n n"]:
    """r[λ, μ] = -e^{-μt} (1 - e^{-(λ-μ)t})/(λ - μ), λ ≥ μ."""
    _, low, gap, shape = _pairs(eigenvalues, time)
    return -(flow_residual(low, time) * flow_coefficient(gap, time)).reshape(shape)


def flow_coefficient_difference(eigenvalues: Float[Array, " n"], time: Real[ArrayLike, "*t"]) -> Float[Array, "*t n n"]:
    """c[λ, μ] = -(c(μ) + r[λ, μ])/λ, λ ≥ μ; for small λt, -t² Σ_k (-1)^k h_k(λt, μt)/(k + 2)!."""
    high, low, _, shape = _pairs(eigenvalues, time)
    t = jnp.asarray(time, eigenvalues.dtype)[..., None]
    top = flow_coefficient(low, time) + flow_residual_difference(eigenvalues, time).reshape(*t.shape[:-1], -1)
    small = high * t < SMALL
    t = jnp.where(small, t, 0)
    series = jnp.square(t) * _series(high * t, low * t, jnp.zeros_like(t))
    return -jnp.where(small, series, _over(top, high)).reshape(shape)


def descent_residual_difference(
    eigenvalues: Float[Array, " n"], step_size: Real[ArrayLike, ""], steps: Real[ArrayLike, "*t"]
) -> Float[Array, "*t n n"]:
    """r[λ, μ] = -η(p^s - q^s)/(p - q) = -η p^{s-1} (1 - (1 - z)^s)/z, z = 1 - q/p, |p| ≥ |q| of 1 - ημ, 1 - ηλ."""
    eta, s = jnp.asarray(step_size, eigenvalues.dtype), jnp.asarray(steps, eigenvalues.dtype)
    high, low, gap, shape = _pairs(eigenvalues, s)
    larger = jnp.where(jnp.abs(1 - eta * low) >= jnp.abs(1 - eta * high), low, high)
    z = _over(eta * gap, jnp.abs(1 - eta * larger))
    power = descent_residual(larger, eta, jnp.maximum(s - 1, 0))
    return -(eta * power * descent_coefficient(z, jnp.ones_like(eta), s)).reshape(shape)


def descent_coefficient_difference(
    eigenvalues: Float[Array, " n"], step_size: Real[ArrayLike, ""], steps: Real[ArrayLike, "*t"]
) -> Float[Array, "*t n n"]:
    """c[λ, μ] = -(c(μ) + r[λ, μ])/λ, λ ≥ μ; for small ηλs, -Σ_k (-1)^k C(s, k + 2) η^{k+2} h_k(λ, μ)."""
    eta, s = jnp.asarray(step_size, eigenvalues.dtype), jnp.asarray(steps, eigenvalues.dtype)[..., None]
    high, low, _, shape = _pairs(eigenvalues, steps)
    differences = descent_residual_difference(eigenvalues, eta, steps).reshape(*s.shape[:-1], -1)
    top = descent_coefficient(low, eta, steps) + differences
    t = eta * s
    small = high * t < SMALL
    t = jnp.where(small, t, 0)
    one_step = jnp.where((s > 0) & jnp.isfinite(s), 1 / jnp.where(s > 0, s, 1), 0)
    series = jnp.square(t) * (1 - one_step) * _series(high * t, low * t, one_step)
    return -jnp.where(small, series, _over(top, high)).reshape(shape)


def ridge_residual_difference(eigenvalues: Float[Array, " n"], ridge: Real[ArrayLike, "*t"]) -> Float[Array, "*t n n"]:
    """r[λ, μ] = -ρ c(λ) c(μ); -1/λ between λ and the null space of a kernel without ridge."""
    left, right, null = _ridge_pairs(eigenvalues, ridge)
    rho = jnp.asarray(ridge, eigenvalues.dtype)[..., None, None]
    return -jnp.where(null, left + right, rho * left * right)


def ridge_coefficient_difference(
    eigenvalues: Float[Array, " n"], ridge: Real[ArrayLike, "*t"]
) -> Float[Array, "*t n n"]:
    """c[λ, μ] = -c(λ) c(μ); 1/λ² between λ and the null space of a kernel without ridge (pseudo-inverse)."""
    left, right, null = _ridge_pairs(eigenvalues, ridge)
    return jnp.where(null, jnp.square(left + right), -left * right)


def _ridge_pairs(eigenvalues: Array, ridge: ArrayLike) -> tuple[Array, Array, Array]:
    """c(λ), c(μ), and which pairs have exactly one null direction."""
    c = ridge_coefficient(eigenvalues, ridge)
    left, right = c[..., :, None], c[..., None, :]
    return left, right, (left == 0) ^ (right == 0)


def _pairs(eigenvalues: Array, path: ArrayLike) -> tuple[Array, Array, Array, tuple[int, ...]]:
    """The larger, the smaller and the difference of every pair, flat, and the shape of the result."""
    lam = jnp.maximum(eigenvalues, 0)
    high, low = jnp.maximum(lam[:, None], lam), jnp.minimum(lam[:, None], lam)
    return high.ravel(), low.ravel(), (high - low).ravel(), (*jnp.shape(path), lam.size, lam.size)


def _series(a: Array, b: Array, one_step: Array) -> Array:
    """Σ_k (-1)^k w_k h_k(a, b), w_0 = ½, w_{k+1} = w_k (1 - (k + 2)/s)/(k + 3), h_k = Σ_{i ≤ k} a^i b^{k-i}.

    `one_step` is 1/s, zero for a flow.
    """
    a, b, one_step = jnp.broadcast_arrays(a, b, one_step)

    def add(k: jax.Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        total, weight, h, power = state
        weight = -weight * (1 - (k + 2) * one_step) / (k + 3)
        power = power * b
        h = a * h + power
        return total + weight * h, weight, h, power

    half, one = jnp.full_like(a, 0.5), jnp.ones_like(a)
    return jax.lax.fori_loop(0, TERMS, add, (half, half, one, one))[0]


def _over(top: Array, bottom: Array) -> Array:
    """top/bottom, zero where bottom is zero."""
    return jnp.where(bottom == 0, 0, top / jnp.where(bottom == 0, 1, bottom))


RIDGE = FilterRule(ridge_coefficient, ridge_coefficient_difference, ridge_residual_difference)
FLOW = FilterRule(flow_coefficient, flow_coefficient_difference, flow_residual_difference)
DESCENT = FilterRule(descent_coefficient, descent_coefficient_difference, descent_residual_difference)
