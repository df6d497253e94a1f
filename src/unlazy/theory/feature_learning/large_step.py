"""One large gradient step on the first layer of erf features for labels sign(u·x): spike, bulk, and risk [E3].

W⁰ has unit rows, heads ζ_j = ±1, inputs are N(0, I_d), labels y = sign(u·x) + ς·noise. From n_1 samples

    W¹ = W⁰ + η D_ζ mean_i y_i φ'(W⁰x_i) x_iᵀ = W⁰ + η ζ μ_1 βᵀ + η μ_3 D_ζ diag(W⁰β) W⁰ + noise of the gradient,

β = mean y x, ‖β‖² = 2/π + (1 + ς²) d/n_1, u·β/‖β‖ = √(2/π)/‖β‖ = ρ, μ_k = E φ^{(k)}(z). With b = β/‖β‖ and s = b·x a
neuron receives τ ζ_j s + (1 + ε_j) w_j·x + noise, τ = η μ_1 ‖β‖, ε_j = ζ_j η μ_3 ‖β‖ w_j·b, of order 1/√d: the μ_3 term
changes norms, too little to affect the spectrum, but correlated with w_j·b, so that the column W⁰b carries s c_1 +
ε'c_0''. The noise lengthens the rows, r² = 1 + η² (1 + ς²) Var φ'(z) d/n_1. η is that of Ba et al. (2022) divided by
√w: their steps of order one are η of order 1/√w, their steps of order √w are η of order one.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import erf

from unlazy.core.arrays import dot, vdot
from unlazy.theory.activations import hermite
from unlazy.theory.spectra.conditional_ridge import ConditionalFeatures, ridge_risk

ERF_MEAN_SLOPE = 2 / math.sqrt(3 * math.pi)
"""μ_1 of erf."""
ERF_SLOPE_VARIANCE = 4 / (math.pi * math.sqrt(5)) - ERF_MEAN_SLOPE**2
"""Variance of erf'(z)."""
LINEAR_SHARE = 2 / math.pi
"""Share of E sign² that is linear: the best linear model has risk 1 - 2/π."""


def gradient_direction(d: int, first: int, noise: float) -> tuple[float, float]:
    """‖β‖ and its cosine with u, from `first` samples, as d and n_1 grow together [E3]."""
    length = math.sqrt(LINEAR_SHARE + (1 + noise**2) * d / first)
    return length, math.sqrt(LINEAR_SHARE) / length


def spike_and_row_norm(step: float, d: int, first: int, noise: float) -> tuple[float, float]:
    """τ, the shift of every neuron per unit of s, and r, the norm of the rest of its row [E3]."""
    length, _ = gradient_direction(d, first, noise)
    return step * ERF_MEAN_SLOPE * length, math.sqrt(1 + step**2 * (1 + noise**2) * ERF_SLOPE_VARIANCE * d / first)


def spike_location(tau: float, r: float, d: int, width: int) -> tuple[float, float]:
    """Largest singular value of W¹, and the edge of the bulk, r(1 + √(w/d)) [E3].

    With θ = τ√w/r and c = w/d: r√((1 + θ²)(c + θ²))/θ if θ > c^{1/4}, else the edge. Benaych-Georges and Nadakuditi
    (2012).
    """
    c, theta = width / d, tau * math.sqrt(width) / r
    edge = r * (1 + math.sqrt(c))
    if theta <= c**0.25:
        return edge, edge
    return r * math.sqrt((1 + theta**2) * (c + theta**2)) / theta, edge


def marchenko_pastur(d: int, width: int, nodes: int = 200) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Eigenvalues of Wᵀ W for w × d entries of variance 1/d, and how many of the d each represents.

    Density ∝ √((λ_+ - λ)(λ - λ_-))/λ, λ_± = (1 ± √(w/d))², and d - w zeros, by the Chebyshev rule of the second kind.
    """
    c, angle = width / d, np.pi * np.arange(1, nodes + 1) / (nodes + 1)
    values = 1 + c + 2 * math.sqrt(c) * np.cos(angle)
    counts = np.sin(angle) ** 2 / values
    counts *= min(d, width) / counts.sum()
    return np.append(values, 0.0), np.append(counts, max(d - width, 0))


def conditional_features(tau: float, r: float, cosine: float) -> ConditionalFeatures:
    """erf features and sign labels given s, at 401 nodes [E3].

    With v = 1 + 2r²: c_0 = erf(τs/√v), c_1 = c_0' in τs, and c_0'' = -2τs c_1/v, so that p = s c_1 (1 + τ² (2/3)(2/v)).
    """
    s = np.linspace(-8, 8, 401)
    weights = np.exp(-s * s / 2)
    z, w = hermite.gauss_hermite(80)
    t, v = tau * s, 1 + 2 * r * r
    spike, linear = erf(t / math.sqrt(v)), 2 / math.sqrt(math.pi * v) * np.exp(-t * t / v)
    rest = np.sum(w * erf(t[:, None] + r * z) ** 2, 1) - spike**2 - (r * linear) ** 2
    sine = math.sqrt(max(1 - cosine**2, 1e-12))
    mean = erf(cosine * s / (sine * math.sqrt(2)))
    slope = math.sqrt(2 / math.pi) * np.exp(-((cosine * s / sine) ** 2) / 2)
    return ConditionalFeatures(
        weights / weights.sum(), spike, s * linear * (1 + tau**2 * 4 / (3 * v)), linear, np.maximum(rest, 0),
        mean, slope, np.maximum(1 - mean**2 - slope**2, 0),
    )  # fmt: skip


def risk(step: float, *, d: int, width: int, first: int, second: int, ridge: float, noise: float = 0.0) -> float:
    """Risk of ridge regression on erf(W¹x) after one gradient step [E3].

    W¹ is one step from `first` samples, the head is fitted to `second` fresh ones. A function of the sizes
    only, without sampling.

    Parameters
    ----------
    step : float
        η.
    d, width : int
        Number of inputs and neurons.
    first, second : int
        Samples for the step, and fresh samples for the head.
    ridge : float
        Absolute.
    noise : float, default 0.0
        ς, standard deviation of the label noise.

    Returns
    -------
    float
    """
    tau, r = spike_and_row_norm(step, d, first, noise)
    values, counts = marchenko_pastur(d, width)
    parts = conditional_features(tau, r, gradient_direction(d, first, noise)[1])
    return ridge_risk(parts, r**2 * values, counts, width=width, n=second, ridge=ridge, noise_variance=noise**2)


def exact_risk(head: Float[Array, " w"], W: Float[Array, "w d"], u: Float[Array, " d"]) -> Float[Array, ""]:
    """E (θ·erf(Wx) - sign(u·x))² over x ~ N(0, I), |u| = 1: 1 - 2θ·t + θᵀΩθ [E3].

    With q_j = √(1 + 2|w_j|²): Ω_jk = (2/π) arcsin(2 w_j·w_k/(q_j q_k)), t_j = (2/π) arcsin(√2 w_j·u/q_j).
    Williams (1997).
    """
    products = dot(W, W.T)
    scale = 1 / jnp.sqrt(1 + 2 * jnp.diag(products))
    covariance = jnp.arcsin(2 * products * scale * scale[:, None]) * (2 / math.pi)
    target = jnp.arcsin(math.sqrt(2) * dot(W, u) * scale) * (2 / math.pi)
    return 1 - 2 * vdot(head, target) + vdot(head, dot(covariance, head))
