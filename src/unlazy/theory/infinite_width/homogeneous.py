"""Infinite width for piecewise linear activations, in terms of u = 1 - cos θ to avoid cancellation.

φ(z) = max(z, 0) - slope·max(-z, 0): ReLU (slope 0), leaky ReLU, |z| (slope -1), identity (slope 1). With
h = sin θ - θ cos θ, gain g = (1 + slope²)/2 and kink w = (1 - slope)²/(1 + slope²), Cho and Saul (2009) reads

    E φ(a)φ(b) = g |a||b| (1 - u + w h/π),   E φ'(a)φ'(b) = g (1 - w θ/π),   |a| = √q11, |b| = √q22.

Near the diagonal the next layer needs 1 - cos θ', not cos θ'. With the unit vectors
(α, β) = (√(σ_w² g) |a|, σ_b)/|a'| of each point,  u' = α1 α2 (u - w h/π) + ½((α1 - α2)² + (β1 - β2)²): positive terms.
"""

import functools
import math
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.theory.activations.duals import gain_and_kink
from unlazy.theory.infinite_width import layer_recursion
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.layer_recursion import LayerMoments, LayerTerm
from unlazy.theory.numerics import angle_polynomials
from unlazy.theory.numerics.geometry import (
    angle_and_gap,
    angle_and_gap_on_host,
    cosine_gap,
    safe_reciprocal,
    safe_sqrt,
)

FIT_ERROR = 3e-8
"""Largest error of an angle polynomial relative to the kernel's diagonal: half a unit of float32 rounding."""


class HomogeneousState(NamedTuple):
    """u = 1 - cos of the angle of a pair after some layers, and the roots of the diagonals of Σ there."""

    u: Any
    left: Any
    right: Any


def first_layer(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None
) -> tuple[HomogeneousState, LayerTerm]:
    """Σ¹ = σ_w² ⟨x,z⟩ + σ_b² [K7]; `half_chord` is u of the inputs if known more accurately than xz."""
    sw, sb = network.sigma_w[0], network.sigma_b[0]
    norms = tuple(sw * safe_sqrt(q) for q in (xx, zz))
    if not network.biases:
        u = cosine_gap(xz, xx, zz) if half_chord is None else half_chord
        return HomogeneousState(u, *norms), LayerTerm(norms[0] * norms[1] * (1 - u), 0.0, 0.0)
    after = tuple(norm_after(q, sw**2, sb**2) for q in (xx, zz))
    if half_chord is None:
        # from the covariance: its gradient is correct at x = 0, unlike that of the input angle
        u = cosine_gap(sw**2 * xz + sb**2, sw**2 * xx + sb**2, sw**2 * zz + sb**2)
        return HomogeneousState(u, *after), LayerTerm(sw**2 * xz, sb**2, 0.0)
    return (
        HomogeneousState(gap_with_bias(half_chord, norms, sb, after), *after),
        LayerTerm(norms[0] * norms[1] * (1 - half_chord), sb**2, 0.0),
    )


def next_layer(
    state: HomogeneousState,
    layer: LayerMoments,
    slope: float,
    biases: bool = False,
    skips: bool = False,
    xp: ModuleType = jnp,
) -> tuple[HomogeneousState, LayerTerm]:
    """One hidden layer and the weight matrix after it [K7, K8]; in JAX, or in NumPy for fits in float64."""
    gain, kink = gain_and_kink(slope)
    u, norms = state.u, state[1:]
    sw2, sb2 = layer.sigma_w**2 * gain, layer.sigma_b**2 if biases else 0.0
    total = sw2 + layer.skip**2 if skips else sw2
    theta, gap = angle_and_gap(u) if xp is jnp else angle_and_gap_on_host(u)
    added, lost = angular_part(theta, gap, kink)
    term = LayerTerm(sw2 * (norms[0] * norms[1]) * (1 - u + added), sb2, total - sw2 * lost)
    u = xp.maximum(u - added * (sw2 / total if skips else 1.0), 0)
    if not biases:
        return HomogeneousState(u, *(xp.sqrt(total) * n for n in norms)), term
    after = tuple(norm_after(n * n, total, sb2) for n in norms)
    return HomogeneousState(gap_with_bias(u, [xp.sqrt(total) * n for n in norms], layer.sigma_b, after), *after), term


def angular_part(theta: Any, gap: Any, kink: float) -> tuple[Any, Any]:
    """w h/π and w θ/π: what the kink of φ adds to cos θ in E φ(a)φ(b), and subtracts from 1 in E φ'(a)φ'(b)."""
    return kink / math.pi * gap, kink / math.pi * theta


def norm_after(square: Array, weights2: Array | float, bias2: Array | float) -> Array:
    """|a'| after a weight matrix, from |a|²: √(σ_w² g |a|² + σ_b²)."""
    return safe_sqrt(weights2 * square + bias2)


def unit_parts(weight: Array | float, bias: Array | float, after: Array) -> tuple[Array, Array]:
    """(α, β) = (weight, bias)/|a'|, a unit vector; 0 if |a'| is 0."""
    inverse = safe_reciprocal(after)
    return weight * inverse, bias * inverse


def gap_with_bias(u, weights, bias, after):
    """1 - cos after adding the bias: of unit vectors (weights, bias)/after, whose weight parts have 1 - cos = u."""
    (a1, b1), (a2, b2) = (unit_parts(w, bias, s) for w, s in zip(weights, after))
    return a1 * a2 * u + 0.5 * ((a1 - a2) ** 2 + (b1 - b2) ** 2)


@functools.lru_cache(maxsize=256)
def fit_kernel_polynomials(depth: int, slope: float) -> tuple[np.ndarray, float] | None:
    """Coefficients of the NNGP and every K_l [L2] without biases as |x||z| (c + θ P(2θ/π - 1)).

    Parameters
    ----------
    depth : int
        Number of hidden layers.
    slope : float
        Slope of φ below zero.

    Returns
    -------
    tuple or None
        Coefficients of P, lowest first, in rows for the NNGP and K_1 … K_{depth+1}, each scaled to 1 at θ = 0 (the
        caller multiplies by Π_l σ_w² g), and the largest error. None if no polynomial with float32-safe coefficients
        reaches FIT_ERROR.
    """
    powers, error = angle_polynomials.fit_angle_polynomial(
        lambda theta: kernels_at_angle(theta, depth, slope), FIT_ERROR, range(9, 25)
    )
    return (powers, error) if error <= FIT_ERROR and np.abs(powers).sum(1).max() < 4 else None


def kernels_at_angle(theta: np.ndarray, depth: int, slope: float) -> np.ndarray:
    """NNGP and K_1 … K_{depth+1} without biases at unit norms and gains, in NumPy float64: rows as above."""
    u = 2 * np.sin(theta / 2) ** 2
    state, kernels = HomogeneousState(u, 1.0, 1.0), [1 - u]
    unit = LayerMoments(1 / math.sqrt(gain_and_kink(slope)[0]), 0.0, 0.0)
    for _ in range(depth):
        state, term = next_layer(state, unit, slope, xp=np)
        kernels = layer_recursion.accumulate_per_layer(term, kernels)
    return np.array([kernels[-1], *kernels])


def kernels_by_polynomial(u: Array, xx: Array, zz: Array, network: MLP, slope: float, weights: tuple):
    """NNGP and Σ_l α_l K_l without biases, as two polynomials of the angle; None if there is no such fit."""
    found = fit_kernel_polynomials(network.depth, slope)
    if found is None:
        return None
    powers = found[0]
    gain = gain_and_kink(slope)[0]
    scale = math.prod(s**2 for s in network.sigma_w) * gain**network.depth
    size = safe_sqrt(xx) * (scale * safe_sqrt(zz))
    theta, _ = angle_and_gap(u)
    tangent = tuple(sum(a * float(p) for a, p in zip(weights, column)) for column in powers[1:].T)
    nngp = tuple(float(p) for p in powers[0])
    both = ((1, nngp), (sum(weights), tangent))
    return tuple(size * angle_polynomials.evaluate_at_angle(at_zero, p, theta) for at_zero, p in both)
