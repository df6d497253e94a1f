"""Generative exponent: what the best transformation of the labels reveals about the direction [E2].

k*(g) is the smallest k ≥ 1 with ζ_k = E[h_k(z) | g(z)] not identically zero: some function of y then has information
exponent k*, and none has a smaller one. Damian, Pillaud-Vivien, Lee and Bruna (COLT 2024).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from unlazy.theory.activations import hermite


def conditional_moments(coefficients: Sequence[float], degree: int) -> Float[np.ndarray, " k"]:
    """√E (E[h_k(z) | g(z)])² for k = 1 … degree, of a polynomial g.

    Given y, z is one of the real roots of g = y, with weights φ(z_i)/|g'(z_i)|.

    Parameters
    ----------
    coefficients : sequence of float
        Hermite coefficients of g.
    degree : int

    Returns
    -------
    array of shape (degree,)

    Raises
    ------
    ValueError
        If a coefficient is not finite.
    """
    if not np.isfinite(np.asarray(coefficients, float)).all():
        raise ValueError(f"Hermite coefficients must be finite, got {list(coefficients)}")
    powers = hermite.to_monomials(coefficients)[::-1]
    slope = np.polyder(powers)
    z, weights = hermite.panel_rule(480, 8.0, np.real(np.roots(slope)))
    found = np.zeros(degree)
    for point, weight in zip(z, weights):
        roots = np.roots(np.polysub(powers, [np.polyval(powers, point)]))
        others = np.real(roots[np.abs(np.imag(roots)) < 1e-7 * (1 + np.abs(roots))])
        share = np.exp(-(others**2) / 2) / np.maximum(np.abs(np.polyval(slope, others)), 1e-12)
        found += weight * (share @ hermite.basis(others, degree)[:, 1:] / share.sum()) ** 2
    return np.sqrt(found)


def generative_exponent(coefficients: Sequence[float], degree: int = 6, tolerance: float = 1e-5) -> int | None:
    """Generative exponent k* of a polynomial; None if it exceeds `degree`."""
    seen = np.flatnonzero(conditional_moments(coefficients, degree) > tolerance)
    return int(seen[0]) + 1 if len(seen) else None
