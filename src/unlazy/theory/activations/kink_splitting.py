"""Split a function with kinks into a smooth part plus steps and ramps: φ = g + P, P = Σ J [εx > κ] + S max(εx - κ, 0).

The Hermite coefficients of a step decay as k^{-3/4}, those of a ramp as k^{-5/4}, too slowly for an expansion. The
duals of steps and ramps have closed forms (step_ramp_duals); the remainder is smooth, often a polynomial.
With a_k of the smooth part and p_k of the kinks,  E φ(a)φ(b) = Σ_k (a_k a'_k + a_k p'_k + p_k a'_k) ρ^k + E P(a)P(b).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array
from numpy.polynomial import chebyshev

from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.step_ramp_duals import SMALLEST_ROOT, Kink

FIT_NODES, WIDTH = 14, 0.25
"""Nodes on each side of a kink and the width they cover: functions analytic there are fitted to rounding."""
FIT_NOISE = 1e-10
"""Jumps and changes of slope are accurate to a tenth of this, relative to the function's size."""


class KinkSplit(NamedTuple):
    """Kinks of a function, and the coefficients of 1, x, x² if the remainder is a polynomial, else None."""

    kinks: tuple[Kink, ...]
    rest: tuple[float, float, float] | None


@functools.lru_cache(maxsize=512)
def split_kinks(activation: ActivationFunction, derivative: bool = False) -> KinkSplit:
    """Jumps and changes of slope of φ (or φ') at its kinks, from one-sided fits in float64."""
    ends = [(at, side * _width(at, activation.kinks)) for at in activation.kinks for side in (1, -1)]
    t = np.cos(np.pi * (np.arange(FIT_NODES) + 0.5) / FIT_NODES)
    grid = _grid()
    x = np.concatenate([grid, *(at + width * (1 + t) / 2 for at, width in ends)])
    values = evaluate(activation, x, derivative)  # one call, since every shape is compiled
    size = np.abs(values[np.abs(x) < 3]).max() + 1e-300
    fitted = [_one_sided(t, part, width) for part, (_, width) in zip(values[grid.size :].reshape(-1, FIT_NODES), ends)]
    kinks = []
    for at, (above, up), (below, down) in zip(activation.kinks, fitted[::2], fitted[1::2]):
        jump, slope = (_round_to_short_decimal(d, size) for d in (above - below, up - down))
        if jump or slope:
            side = 1 if at >= 0 else -1
            kinks.append(Kink(side, abs(at), side * jump, slope))
    found = tuple(kinks)
    rest = _polynomial(grid, values[: grid.size], found, size) if activation.kinks else None
    return KinkSplit(found, rest)


def _round_to_short_decimal(value: float, size: float) -> float:
    """Round to four decimals (0, 1, 0.25) if the difference is within the noise of the fit."""
    near = round(value, 4)
    return near if abs(value - near) < FIT_NOISE / 10 * size else value


def _width(at: float, kinks: tuple[float, ...]) -> float:
    """Width of a one-sided fit: at most half the distance to the next kink."""
    return min([WIDTH, *(abs(at - other) / 2 for other in kinks if other != at)])


def _grid() -> np.ndarray:
    """Evaluation points, dense near zero and sparse far out, that identify a polynomial."""
    far = np.geomspace(12, 1e4, 60)
    return np.concatenate([-far, np.linspace(-12, 12, 2001) + 1e-3, far])


def _one_sided(t: np.ndarray, values: np.ndarray, width: float) -> tuple[float, float]:
    """One-sided value and slope of the function at a kink."""
    series = chebyshev.chebfit(t, values, FIT_NODES - 1)
    return float(chebyshev.chebval(-1, series)), float(chebyshev.chebval(-1, chebyshev.chebder(series)) * 2 / width)


def _polynomial(
    x: np.ndarray, values: np.ndarray, kinks: tuple[Kink, ...], size: float
) -> tuple[float, float, float] | None:
    """c_0 + c_1 x + c_2 x² if the remainder of the function is such a polynomial, else None."""
    left, near = values - kink_sum(kinks, x), np.abs(x) < 3
    c = np.array([_round_to_short_decimal(v, size) for v in np.polynomial.polynomial.polyfit(x[near], left[near], 2)])
    # rounding errors of the fits grow with x, as the ramps do, and with x² if there is a square
    allowed = size + np.abs(values) + np.abs(x) * (sum(abs(kink.slope) for kink in kinks) + np.abs(c).max())
    off = np.abs(left - np.polynomial.polynomial.polyval(x, c)) / allowed
    return (float(c[0]), float(c[1]), float(c[2])) if off.max() < 1e-10 else None


def evaluate(activation: ActivationFunction, x: np.ndarray, derivative: bool) -> np.ndarray:
    """φ or φ' at NumPy points in float64, also while JAX traces a caller."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(_compiled(activation, derivative)(jnp.asarray(x, jnp.float64)), np.float64)


@functools.lru_cache(maxsize=512)
def _compiled(activation: ActivationFunction, derivative: bool):  # type: ignore[no-untyped-def]
    """Compiled φ or φ'."""
    return jax.jit(lambda x: jax.jvp(activation, (x,), (jnp.ones_like(x),))[1] if derivative else activation(x))


def kink_sum(kinks: tuple[Kink, ...], x):  # type: ignore[no-untyped-def]
    """P(x), the sum of steps and ramps, for NumPy or JAX arrays."""
    total = 0 * x
    for kink in kinks:
        beyond = kink.side * x - kink.level
        total = total + (beyond > 0) * (kink.jump + kink.slope * beyond)
    return total


def kink_coefficients(kinks: tuple[Kink, ...], root: Array, terms: int) -> Array:
    """Hermite coefficients p_k(s) = E P(s x) h_k(x), k < terms, on a last axis, in closed form with h = κ/s.

    A step: Q(h), then f(h) h_{k-1}(h)/√k. A ramp: s(f(h) - h Q(h)), s Q(h), then s f(h) h_{k-2}(h)/√(k(k-1)).
    """
    total = jnp.zeros((*root.shape, terms), root.dtype)
    sign = jnp.asarray((-1.0) ** np.arange(terms), root.dtype)
    k = np.arange(2, terms)
    for kink in kinks:
        h = kink.level / jnp.maximum(root, SMALLEST_ROOT)
        tail, hermite = ndtr(-h), _weighted_hermite(h, terms - 1)
        step = jnp.concatenate([tail[..., None], hermite / jnp.asarray(np.sqrt(np.arange(1, terms)), h.dtype)], -1)
        later = hermite[..., :-1] / jnp.asarray(np.sqrt(k * (k - 1.0)), h.dtype)
        first = jnp.stack([hermite[..., 0] - h * tail, tail], -1)
        ramp = root[..., None] * jnp.concatenate([first, later], -1)
        total = total + (kink.jump * step + kink.slope * ramp) * (sign if kink.side < 0 else 1)
    return total


def _weighted_hermite(h: Array, terms: int) -> Array:
    """f(h) h_k(h), k < terms, f the normal density: the recurrence of √f h_k, which stays small, times √f."""
    half = jnp.exp(-0.25 * h * h) / (2 * math.pi) ** 0.25

    def step(pair: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], Array]:
        previous, current = pair
        return (current, (h * current - jnp.sqrt(k) * previous) / jnp.sqrt(k + 1)), current * half

    ks = jnp.arange(terms, dtype=h.dtype)
    return jnp.moveaxis(jax.lax.scan(step, (jnp.zeros_like(h), half), ks)[1], 0, -1)
