"""Angle between two vectors from u = 1 - cos θ, accurate near 0, with one square root and one polynomial."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial, chebyshev

DEGREE = {"float32": 7, "float64": 19}
"""Degrees at which the fits below are accurate to 2e-8 and 1e-15 relative, below the rounding of the dtype."""


@functools.cache
def _coefficients(degree: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Monomial coefficients in v of A(v) = arccos(1-v)/√v and of R(v) = v^{-3/2} ∫_0^v √s A(s) ds on [0, 1].

    A is analytic up to v = 2, so its Chebyshev fit gains a factor 3 + √8 per degree. Since d(sin θ - θ cos θ)/du = θ, R
    is A integrated term by term: a_k v^{k+3/2}/(k + 3/2).
    """
    t = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    v = (1 + t) / 2
    series = chebyshev.cheb2poly(chebyshev.chebfit(t, 2 * np.arcsin(np.sqrt(v / 2)) / np.sqrt(v), degree))
    a = np.asarray(Polynomial(series)(Polynomial([-1.0, 2.0])).coef, float)
    return tuple(map(float, a)), tuple(float(c / (k + 1.5)) for k, c in enumerate(a))


def horner(coefficients: tuple, x: Any) -> Any:
    """c_0 + c_1 x + c_2 x² + … by Horner's rule, for NumPy or JAX; coefficients are numbers or scalars."""
    total = coefficients[-1] if len(coefficients) > 1 else 0 * x + coefficients[0]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def estrin(coefficients: tuple, x: Array) -> Array:
    """The same sum by Estrin's scheme, which has shorter dependency chains on a CPU."""
    terms = list(coefficients)
    while len(terms) > 1:
        terms = [a + x * b for a, b in zip(terms[::2], terms[1::2])] + terms[len(terms) & ~1 :]
        x = x * x
    return terms[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def angle_and_gap(
    u: Float[Array, "*s"], unit: float = 1.0, acute: bool = False
) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
    """θ = arccos(1-u) and h = sin θ - θ cos θ for u in [0, 2], times `unit`, without cancellation at small u.

    Derivatives: dh/du = θ and dθ/du = 1/sin θ. The latter is set to 0 at u = 0 and u = 2, where θ has a kink: kernels
    keep the smooth part of their gradient there and drop that of the kink.

    Parameters
    ----------
    u : array
        1 - cos θ.
    unit : float, default 1.0
        Factor of both results.
    acute : bool, default False
        Whether u is known to be at most 1.

    Returns
    -------
    theta, gap : array
    """
    a, r = _coefficients(DEGREE["float64" if u.dtype == jnp.float64 else "float32"])
    a, r = (tuple(unit * c for c in powers) for powers in (a, r))
    v = u if acute else jnp.minimum(u, 2 - u)
    root = jnp.sqrt(jnp.maximum(v, 0))
    near, gap = root * estrin(a, v), root * v * estrin(r, v)
    if acute:
        return near, gap
    far, straight = u > 1, unit * math.pi
    return jnp.where(far, straight - near, near), jnp.where(far, gap + straight * (1 - v), gap)


@angle_and_gap.defjvp
def _angle_and_gap_jvp(unit, acute, primals, tangents):
    """See `angle_and_gap`."""
    (u,), (du,) = primals, tangents
    theta, gap = angle_and_gap(u, unit, acute)
    square = u * (2 - u)
    # identical points leave u of a few squared roundings (layers with biases): treated as the kink
    inside = square > (64 * float(jnp.finfo(u.dtype).eps)) ** 2
    slope = jnp.where(inside, jax.lax.rsqrt(jnp.where(inside, square, 1)), 0)
    return (theta, gap), (unit * slope * du, theta * du)


def angle_and_gap_on_host(u: Float[np.ndarray, "*s"]) -> tuple[Float[np.ndarray, "*s"], Float[np.ndarray, "*s"]]:
    """The same in NumPy, by definition: for fits in float64."""
    theta = 2 * np.arcsin(np.sqrt(np.clip(u / 2, 0, 1)))
    return theta, np.sin(theta) - theta * np.cos(theta)


@functools.cache
def _arcsine_coefficients(degree: int) -> tuple[float, ...]:
    """Monomial coefficients of R(z) = arcsin(√z)/√z on [0, 1/4]: analytic up to z = 1, factor 13.9 per degree."""
    t = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    y = np.sqrt((1 + t) / 8)
    series = chebyshev.cheb2poly(chebyshev.chebfit(t, np.arcsin(y) / y, degree))
    return tuple(map(float, Polynomial(series)(Polynomial([-1.0, 8.0])).coef))


@jax.custom_jvp
def arcsine(x: Float[Array, "*s"], gap: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """arcsin x, given gap = 1 - |x| without cancellation: relative accuracy at 0 and at ±1.

    arcsin y = y R(y²) for y = |x| below 1/2, beyond it π/2 - 2 arcsin √(gap/2): one polynomial serves both.
    """
    size = jnp.abs(x)
    near = size < 0.5
    square = jnp.where(near, size * size, 0.5 * gap)
    powers = _arcsine_coefficients(12 if x.dtype == jnp.float64 else 5)
    angle = jnp.where(near, size, jnp.sqrt(square)) * estrin(powers, square)
    return jnp.where(x < 0, -1, 1) * jnp.where(near, angle, math.pi / 2 - 2 * angle)


@arcsine.defjvp
def _arcsine_jvp(primals, tangents):
    """d arcsin x = dx/√(gap (2 - gap))."""
    (x, gap), (dx, _) = primals, tangents
    return arcsine(x, gap), dx * safe_reciprocal(safe_sqrt(gap * (2 - gap)))


def safe_sqrt(x: Float[Any, "*s"]) -> Float[Any, "*s"]:
    """√x with derivative 0 instead of ∞ at x = 0; 0 for negative x, NaN stays NaN. NumPy arrays stay NumPy."""
    return np.sqrt(np.maximum(x, 0)) if isinstance(x, np.ndarray) else _root(x)


@jax.custom_jvp
def _root(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """√max(x, 0). Does not branch on x <= 0: a compiler may recompute x with different rounding for each use."""
    return jnp.sqrt(jnp.maximum(x, 0))


@_root.defjvp
def _root_jvp(primals, tangents):
    """Derivative 1/(2√x), zero at x = 0."""
    root = _root(*primals)
    return root, 0.5 * safe_reciprocal(root) * tangents[0]


def safe_reciprocal(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """1/x; 0 with derivative 0 at x = 0, NaN stays NaN."""
    return 1 / jnp.where(x == 0, jnp.inf, x)
