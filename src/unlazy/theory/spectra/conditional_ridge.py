"""Asymptotic risk of ridge regression on features that are Gaussian given one projection s of the input [E3].

Width w, inputs x ~ N(0, I_d), s = x·b. Given s, a feature vector and its label are

    φ = ζ c_0(s) + ω p(s) + c_1(s) W x_⊥ + c_*(s) ξ,        y = g_0(s) + g_1(s) v·x + rest of variance g_*²(s),

with ζ a vector of w signs, ω = W b, v ⟂ b a unit vector, ξ noise. With V(s) = c_1² V_1 + c_*² V_2, ⟨f⟩ = n E f/(1 + V):

    A = (δ + ⟨c_*²⟩ + ⟨c_1²⟩ W Wᵀ)^{-1},    V_1 = tr Wᵀ A W,    V_2 = tr A

is the resolvent with one sample left out; a mean direction of squared norm ν w contributes ν tr A, a direction inside W
contributes V_1/d. The mean of the head is A (ζ α_0 + ω α_1 + W v α_2), α_0 = ⟨c_0 (g_0 - m c_0 - k p)⟩ etc., with m and
k the coefficients of c_0 and p in the prediction; its covariance is A (M_1 W Wᵀ + M_2) A, with R(s) the risk at s and
M_j = n E R(s) c_j²/(1 + V)², so that the risk solves two linear equations. With constant c_1, c_*, g_1 this is [G1].
(Cui, Pesce, Dandi, Krzakala, Lu, Zdeborová and Loureiro 2024; Dandi et al. 2024 for the conditional equivalence;
derived here by leaving one sample out.) Exact as d, w, n grow together; corrections are of order 1/d.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " _"]
_MAX_ITERATIONS = 20_000


class ConditionalFeatures(NamedTuple):
    """Features and labels given s, at the nodes of a quadrature over s ~ N(0, 1)."""

    weights: Vector
    """Quadrature weights."""
    spike: Vector
    """c_0(s), along ζ."""
    column: Vector
    """p(s), along W b."""
    linear: Vector
    """c_1(s), the factor of W x."""
    rest: Vector
    """c_*²(s), a variance."""
    mean: Vector
    """g_0(s)."""
    slope: Vector
    """g_1(s), the factor of v·x."""
    left: Vector
    """g_*²(s), a variance."""


def ridge_risk(
    given: ConditionalFeatures,
    values: Vector,
    counts: Vector,
    *,
    width: int,
    n: int,
    ridge: float,
    noise_variance: float = 0.0,
) -> float:
    """E (prediction - E[y | x])² of min Σ (y_i - θ·φ_i)² + ridge ‖θ‖² from n fresh points [E3].

    Parameters
    ----------
    given : ConditionalFeatures
    values : array
        Eigenvalues of Wᵀ W.
    counts : array
        Multiplicities of the values, Σ counts = d.
    width : int
        Number of features w.
    n : int
        Training points.
    ridge : float
        Positive, absolute.
    noise_variance : float, default 0.0

    Returns
    -------
    float
        NaN if the fixed point for V has not converged to 1e-12.

    Raises
    ------
    ValueError
        If ridge is not positive.
    """
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}; use a small value for the limit of no ridge")
    d = counts.sum()
    squared, rest = given.linear**2, given.rest
    V, resolvent = _resolvent(given, values, counts, width, n, ridge)
    A, null = resolvent
    total = np.sum(counts * A) + null * (width - d)
    inner = np.sum(counts * values * A)
    column = np.sum(counts * values) / (d * width)  # |W b|² over w

    def bracket(f: Any) -> float:
        return n * float(np.sum(given.weights * f / (1 + V)))

    means = np.stack([given.spike, given.column])
    strength = np.array([total, column * total])
    G = np.diag(1 / strength) + [[bracket(f * h) for h in means] for f in means]
    found = np.linalg.solve(G, [bracket(f * given.mean) for f in means])
    alpha, inside = found / strength, bracket(given.linear * given.slope)
    traces = np.array([
        [np.sum(counts * (values * A) ** 2), np.sum(counts * values * A**2)],
        [np.sum(counts * values * A**2), np.sum(counts * A**2) + null**2 * (width - d)],
    ])  # fmt: skip
    start = (alpha[0] ** 2 + alpha[1] ** 2 * column) * traces[1] + inside**2 * traces[0] / d
    plain = (given.mean - found @ means) ** 2 + given.left + given.slope**2
    plain = plain - 2 * given.slope * given.linear * inside * inner / d
    parts = np.stack([squared, rest])
    again = n * given.weights / (1 + V) ** 2
    fed = np.array([[np.sum(again * f * h) for h in parts] for f in parts])
    known = np.array([np.sum(again * f * (plain + noise_variance)) for f in parts])
    sizes = np.linalg.solve(np.eye(2) - traces @ fed, start + traces @ known)
    return float(np.sum(given.weights * (plain + sizes @ parts)))


def _resolvent(
    given: ConditionalFeatures, values: Vector, counts: Vector, width: int, n: int, ridge: float
) -> tuple[Vector, tuple[Vector, float]]:
    """V(s), and A on the eigenvectors of W Wᵀ and on their complement; monotone iteration from V = 0."""
    squared, rest, V = given.linear**2, given.rest, np.zeros_like(given.rest)
    spare = width - counts.sum()
    for _ in range(_MAX_ITERATIONS):
        share = n * given.weights / (1 + V)
        a, b = ridge + np.sum(share * rest), np.sum(share * squared)
        A = 1 / (a + b * values)
        now = squared * np.sum(counts * values * A) + rest * (np.sum(counts * A) + spare / a)
        if np.all(np.abs(now - V) <= 1e-12 * now):
            break
        V = now
    else:
        now = np.full_like(V, np.nan)
    return now, (A, float(1 / a))
