"""Covariance of a Gaussian pair (a, b), including quantities that lose digits near a = b."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from unlazy.theory.infinite_width.homogeneous import cosine_gap
from unlazy.theory.numerics.angles import safe_sqrt


class Covariance(NamedTuple):
    """E ab, E a², E b², u = 1 - cos of their angle, and D = E (a - b)²."""

    q12: Array
    q11: Array
    q22: Array
    gap: Array
    distance: Array


def covariance(q12: Array, q11: Array, q22: Array, gap: Array | None = None) -> Covariance:
    """Covariance of a pair from its three moments.

    Parameters
    ----------
    q12, q11, q22 : array
        E ab, E a² and E b².
    gap : array, optional
        u = 1 - cos θ, if known more accurately; D = (|a| - |b|)² + 2|a||b|u is then equally accurate.

    Returns
    -------
    Covariance
    """
    if gap is None:
        return Covariance(q12, q11, q22, cosine_gap(q12, q11, q22), q11 + q22 - 2 * q12)
    gap = jnp.where(gap > 2, 2, gap)  # opposite points: rounding may leave 1 - cos above 2
    n1, n2 = safe_sqrt(q11), safe_sqrt(q22)
    return Covariance(q12, q11, q22, gap, (n1 - n2) ** 2 + 2 * n1 * n2 * gap)


def inner_product(distance: Array, gap: Array, xx: Array, zz: Array) -> Array:
    """⟨x,z⟩ = |x||z| cos θ from 1 - cos θ, accurate relative to |x||z|.

    ½(|x|² + |z|² - ‖x-z‖²) is only accurate relative to the larger norm; it is used for identical points, where it is
    exact.
    """
    return jnp.where(distance == 0, 0.5 * (xx + zz - distance), safe_sqrt(xx) * safe_sqrt(zz) * (1 - gap))
