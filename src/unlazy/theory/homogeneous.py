"""Infinite width for piecewise linear activations, written in u = 1 - cos θ so that nothing cancels.

φ(z) = max(z, 0) - slope·max(-z, 0): ReLU (slope 0), leaky ReLU, |z| (slope -1), identity (slope 1). With
h = sin θ - θ cos θ, gain g = (1 + slope²)/2 and kink w = (1 - slope)²/(1 + slope²), Cho and Saul (2009) reads

    E φ(a)φ(b) = g |a||b| (1 - u + w h/π),   E φ'(a)φ'(b) = g (1 - w θ/π),   |a| = √q11, |b| = √q22.

Near the diagonal 1 - cos θ', not cos θ', is what the next layer needs. With the unit vectors
(α, β) = (√(σ_w² g) |a|, σ_b)/|a'| of each point,  u' = α1 α2 (u - w h/π) + ½((α1 - α2)² + (β1 - β2)²): positive terms.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev

from unlazy.core import activations
from unlazy.core.activations import Activation
from unlazy.core.architecture import MLP
from unlazy.theory.angles import angle_and_gap, horner, safe_reciprocal, safe_sqrt, snapped

FIT_ERROR = 3e-8
"""Largest error of an angle polynomial relative to the kernel's diagonal: half a unit of float32 rounding."""


class LayerTerm(NamedTuple):
    """What weight matrix l adds to Σ^l through its weights and its biases, and the factor Θ^{l-1} passes with."""

    weights: Array
    bias: Array | float
    slope: Array | float


class Layer(NamedTuple):
    """σ_w, σ_b and the weight of the skip of one weight matrix."""

    sigma_w: Array | float
    sigma_b: Array | float
    skip: Array | float


def slope_below_zero(activation: Activation) -> float | None:
    """The slope of φ left of its kink; None where φ is not piecewise linear with its kink at 0."""
    if activation.function in (activations.leaky_relu, jax.nn.leaky_relu):
        return float(activation.parameter or 0.0)
    return _SLOPES.get(activation.function)


_SLOPES: dict[Callable, float] = {
    activations.relu: 0.0, jax.nn.relu: 0.0,
    jnp.abs: -1.0, jnp.absolute: -1.0, jnp.fabs: -1.0,
    activations.identity: 1.0, jax.nn.identity: 1.0, jnp.positive: 1.0,
}  # fmt: skip


def gain_and_kink(slope: float) -> tuple[float, float]:
    """E φ(a)² / E a² and the weight of the angular part."""
    return (1 + slope**2) / 2, (1 - slope) ** 2 / (1 + slope**2)


def cosine_gap(xz: Array, xx: Array, zz: Array) -> Float[Array, "*s"]:
    """u = 1 - cos of the angle of x and z; 1 where one of them is 0. Norms are never multiplied before the root.

    For norms of similar size it is (½(xx + zz) - xz - ½(|x| - |z|)²)/(|x||z|), whose first difference is exact near the
    diagonal: u is then as good as the inner products are, and exactly 0 where all three agree.
    """
    n1, n2 = safe_sqrt(xx), safe_sqrt(zz)
    inverse = safe_reciprocal(n1) * safe_reciprocal(n2)
    middle = 0.5 * (xx + zz)
    near = (middle - xz) - 0.5 * (n1 - n2) ** 2
    similar = (inverse > 0) & (middle * inverse <= 2)
    return snapped(jnp.where(similar, near * inverse, 1 - xz * inverse))


class State(NamedTuple):
    """u = 1 - cos of the pair's angle after some layers, and the roots of the diagonals of Σ there."""

    u: Array
    left: Array
    right: Array


def first_layer(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None
) -> tuple[State, LayerTerm]:
    """Σ¹ = σ_w² ⟨x,z⟩ + σ_b² [K7]; `half_chord` is u of the inputs where it is known better than xz."""
    sw, sb = network.sigma_w[0], network.sigma_b[0]
    norms = tuple(sw * safe_sqrt(q) for q in (xx, zz))
    if not network.biases:
        u = cosine_gap(xz, xx, zz) if half_chord is None else half_chord
        return State(u, *norms), LayerTerm(norms[0] * norms[1] * (1 - u), 0.0, 0.0)
    after = tuple(safe_sqrt(sw**2 * q + sb**2) for q in (xx, zz))
    if half_chord is None:
        # straight from the covariance: its gradient at x = 0 is right where that of the angle at the input is lost
        u = cosine_gap(sw**2 * xz + sb**2, sw**2 * xx + sb**2, sw**2 * zz + sb**2)
        return State(u, *after), LayerTerm(sw**2 * xz, sb**2, 0.0)
    return (
        State(gap_with_bias(half_chord, norms, sb, after), *after),
        LayerTerm(norms[0] * norms[1] * (1 - half_chord), sb**2, 0.0),
    )


def next_layer(state: State, layer: Layer, network: MLP, slope: float) -> tuple[State, LayerTerm]:
    """One hidden layer and the weight matrix after it [K7, K8]."""
    gain, kink = gain_and_kink(slope)
    u, norms = state.u, state[1:]
    sw2, sb2 = layer.sigma_w**2 * gain, layer.sigma_b**2 if network.biases else 0.0
    total = sw2 + layer.skip**2 if network.skips else sw2
    theta, gap = angle_and_gap(u)
    rest = kink / math.pi * gap
    term = LayerTerm(sw2 * (norms[0] * norms[1]) * (1 - u + rest), sb2, total - sw2 * kink / math.pi * theta)
    u = jnp.maximum(u - rest * (sw2 / total if network.skips else 1.0), 0)
    if not network.biases:
        return State(u, *(jnp.sqrt(total) * n for n in norms)), term
    after = tuple(safe_sqrt(total * n * n + sb2) for n in norms)
    u = gap_with_bias(u, [jnp.sqrt(total) * n for n in norms], layer.sigma_b, after)
    return State(u, *after), term


def gap_with_bias(u, weights, bias, after):
    """1 - cos after adding the bias: of unit vectors (weights, bias)/after, whose weight parts are at 1 - cos = u."""
    (a1, b1), (a2, b2) = ((w * safe_reciprocal(s), bias * safe_reciprocal(s)) for w, s in zip(weights, after))
    return a1 * a2 * u + 0.5 * ((a1 - a2) ** 2 + (b1 - b2) ** 2)


@functools.lru_cache(maxsize=256)
def angle_polynomials(depth: int, slope: float) -> tuple[np.ndarray, float] | None:
    """Coefficients that give the NNGP and every K_l [L2] without biases as |x||z| (c + θ P(2θ/π - 1)), P by powers.

    All are analytic in θ on [0, π], so one short polynomial serves any depth. Rows: the NNGP, then K_1 … K_{depth+1},
    each scaled to 1 at θ = 0 (the caller multiplies by Π_l σ_w² g); columns: P's coefficients, lowest first. Also the
    largest error found on a dense grid. None where no polynomial of float32-safe size reaches FIT_ERROR.
    """
    grid = np.linspace(0, np.pi, 2001)
    wanted = by_angle(grid, depth, slope)
    for degree in range(9, 25):
        t = np.cos(np.pi * (np.arange(degree) + 0.5) / degree)
        theta = (t + 1) * np.pi / 2
        series = chebyshev.chebfit(t, ((by_angle(theta, depth, slope) - 1) / theta).T, degree - 1)
        error = np.abs(1 + grid * chebyshev.chebval(2 * grid / np.pi - 1, series) - wanted).max()
        if error <= FIT_ERROR:
            powers = np.array([chebyshev.cheb2poly(row) for row in series.T])
            return (powers, float(error)) if np.abs(powers).sum(1).max() < 4 else None
    return None


def by_angle(theta: np.ndarray, depth: int, slope: float) -> np.ndarray:
    """NNGP and K_1 … K_{depth+1} without biases at unit norms and unit gains, in NumPy float64: rows as above."""
    kink = gain_and_kink(slope)[1]
    u = 2 * np.sin(theta / 2) ** 2
    kernels = [1 - u]
    for _ in range(depth):
        angle = 2 * np.arcsin(np.sqrt(np.clip(u / 2, 0, 1)))
        passed = 1 - kink * angle / np.pi
        u = u - kink / np.pi * (np.sin(angle) - angle * np.cos(angle))
        kernels = [k * passed for k in kernels] + [1 - u]
    return np.array([kernels[-1], *kernels])


def by_angle_polynomial(u: Array, xx: Array, zz: Array, network: MLP, slope: float, weights: tuple):
    """NNGP and Σ_l α_l K_l without biases, as two polynomials of the angle; None where there is none."""
    fit = angle_polynomials(network.depth, slope)
    if fit is None:
        return None
    powers = fit[0]
    gain = gain_and_kink(slope)[0]
    scale = math.prod(s**2 for s in network.sigma_w) * gain**network.depth
    size = safe_sqrt(xx) * (scale * safe_sqrt(zz))
    theta, _ = angle_and_gap(u)
    t = theta * (2 / math.pi) - 1
    total = sum(weights)
    tangent = tuple(sum(a * float(p) for a, p in zip(weights, column)) for column in powers[1:].T)
    nngp = tuple(float(p) for p in powers[0])
    return size * (1 + theta * horner(nngp, t)), size * (total + theta * horner(tangent, t))


_by_angle = by_angle
