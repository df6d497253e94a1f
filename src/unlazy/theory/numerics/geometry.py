"""Distances and angles of pairs of points from inner products, accurate where they are small.

Centering keeps the digits of distances. For x = z the expansion ½‖x-z‖² = ½(⟨x,x⟩ + ⟨z,z⟩) - ⟨x,z⟩ leaves a few units
of rounding, and kernels with a kink at x = z (Laplace, NTK) show its square root. A pair therefore counts as a
duplicate, with ½‖x-z‖² = 0, if

    ½‖x-z‖² ≤ floor · ½(⟨x,x⟩ + ⟨z,z⟩).

The floor depends on the arithmetic: `rounding_floor` for inner products, `worst_case_floor` if the rows are known to be
equal, `half_precision_floor` for products of float16 halves. For unit vectors ½‖x-z‖² is u = 1 - cos θ, from which the
angle θ follows by one square root and one polynomial.

In float64, pairs that are close but not equal (floor NEAR) get their distance from `split_distances`, which loses no
digits to the difference above.

Typical distances and norms are default bandwidths, which scale inputs to order one: the median distance between sampled
rows for kernels of a distance (Gretton et al. 2012), the root mean square norm for the others.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt
from numpy.polynomial import Polynomial, chebyshev

from unlazy.core.arrays import A, dot

SNAP_UNITS = 4.0
"""Units of rounding by which u of parallel vectors may differ from 0 (or 2): three inner products and roots."""


NEAR = 2.0**-20
"""Pairs with ½‖x-z‖² below this share of the mean square are evaluated from differences in float64. For all others the
expansion leaves an error of ‖x-z‖ of at most rounding_floor/√(2 NEAR), 2^10 roundings, relative to |x|."""


def is_near_duplicate(half_distance: Any, mean_square: Any, floor: Any) -> Any:
    """Whether ½‖x-z‖² ≤ floor · ½(⟨x,x⟩ + ⟨z,z⟩). Uses operators only: works for NumPy, JAX and fused programs."""
    return half_distance <= floor * mean_square


def half_precision_floor(dimension: int) -> float:
    """Floor of inner products computed from halves (two half-precision parts per number) on tensor cores.

    Tensor cores add sixteen products at a time and truncate the sum to float32, four times per sixteen coordinates;
    eight more units cover both norms. For float16 halves of vectors of length √½ they add three times, which leaves
    d/16 units; with the eight this exceeds the rounding to halves, √(d/2) (values are off by 2^-25, inner products of ½
    by 2^-24 √(d/2)), two units of the omitted product lo·lo, at most 2^-11 · 2^-11, and two of dividing.
    """
    return 2.0**-23 * (4 * math.ceil(dimension / 16) + 8)


def rounding_floor(dimension: int, dtype: DTypeLike) -> float:
    """Floor of ⟨x,z⟩ by typical rounding: about √d independent roundings. With dimension 0, that of u itself."""
    return (SNAP_UNITS + 2 * math.sqrt(dimension)) * float(jnp.finfo(dtype).eps) / 2


def worst_case_floor(dimension: int, dtype: DTypeLike) -> float:
    """Floor of ⟨x,z⟩ in the worst case: all d roundings in the same direction."""
    return (2 * dimension + 8) * float(jnp.finfo(dtype).eps) / 2


def snap_inner_product(xz: Array, xx: Array, zz: Array, dimension: int, same: Array | None = None) -> Array:
    """⟨x,z⟩ with near duplicates made exactly equal; its derivative is unchanged.

    Parameters
    ----------
    xz, xx, zz : array
        ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩.
    dimension : int
        Number of coordinates d.
    same : array of bool, optional
        Which pairs have equal `row_hashes`. Hashes may collide, so the worst-case floor is required too.

    Returns
    -------
    array of the shape of xz
    """
    middle = 0.5 * (xx + zz)
    if same is None:
        close = is_near_duplicate(middle - xz, middle, rounding_floor(dimension, xz.dtype))
    else:
        close = same & is_near_duplicate(middle - xz, middle, worst_case_floor(dimension, xz.dtype))
    return xz + jax.lax.stop_gradient(jnp.where(close, middle - xz, 0))


def split_distances(x: Float[Array, "n d"], z: Float[Array, "m d"]) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """‖x-z‖² and 1 - cos θ of all pairs in float64, for points of similar norm; matrix products only.

    Every row is split into x = h + l, where h has so few bits that ⟨h,h'⟩ is exact (Ozaki et al. 2012). Then ‖h-h'‖²
    does not round, and the remaining terms contain the factor l, which is 2^-b of x with b from 19 to 24.

    References
    ----------
    Ozaki, Ogita, Oishi and Rump (2012), Error-free transformations of matrix multiplication.
    """
    d = x.shape[1]
    # integers up to 2^b, twice that if the unit of the other row is half as large; four sums of d products
    bits = (49 - math.ceil(math.log2(max(d, 1)))) // 2
    (hx, lx), (hz, lz) = _split_rows(x, bits), _split_rows(z, bits)
    exact_x, exact_z = jnp.sum(hx * hx, 1)[:, None], jnp.sum(hz * hz, 1)
    rest_x, rest_z = jnp.sum(lx * (hx + x), 1)[:, None], jnp.sum(lz * (hz + z), 1)
    rest = dot(jnp.concatenate([hx, lx], 1), jnp.concatenate([lz, z], 1).T)
    distance = (exact_x + exact_z - 2 * dot(hx, hz.T)) + (rest_x + rest_z - 2 * rest)
    same = row_hashes(x)[:, None] == row_hashes(z)  # the rounding of the remaining terms must not show
    distance = distance - jax.lax.stop_gradient(jnp.where(same | (distance < 0), distance, 0))
    n1, n2 = safe_sqrt(exact_x + rest_x), safe_sqrt(exact_z + rest_z)
    norms = ((exact_x - exact_z) + (rest_x - rest_z)) * safe_reciprocal(n1 + n2)  # |x| - |z|
    chord = jnp.maximum(distance - norms * norms, 0) * (safe_reciprocal(n1) * safe_reciprocal(n2))
    return distance, 0.5 * chord


def _split_rows(x: Float[Array, "n d"], bits: int) -> tuple[Array, Array]:
    """Multiples of 2^-bits of a power of two near the largest coordinate of the row, and what is left."""
    largest = jax.lax.bitcast_convert_type(jnp.max(jnp.abs(jax.lax.stop_gradient(x)), 1, keepdims=True), "uint64")
    unit = jax.lax.bitcast_convert_type(largest & jnp.uint64(0x7FF << 52), x.dtype) * 2.0 ** (1 - bits)
    unit = jnp.where(unit > 0, unit, 1)
    high = jnp.round(jax.lax.stop_gradient(x) / unit) * unit
    return high, x - high


def snap_cosine_gap(u: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """u = 1 - cos θ clipped to [0, 2] and snapped to the ends within the floor; its derivative is unchanged."""
    floor = rounding_floor(0, u.dtype)
    cut = jnp.where(is_near_duplicate(u, 1, floor), 0, jnp.where(is_opposite(u, floor), 2, u))
    return u + jax.lax.stop_gradient(cut - u)


def is_opposite(u: Any, floor: float) -> Any:
    """The same test at the other end, x = -z, where u near 2 has half the digits."""
    return u >= 2 - 2 * floor


def row_hashes(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """An integer hash per row, equal for bitwise equal rows; sums of integers do not round."""
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(X) + 0.0, f"uint{8 * X.dtype.itemsize}")
    random = np.random.default_rng(0).integers(0, 2**31, X.shape[1], dtype=np.uint32)
    return jnp.sum((bits ^ (bits >> 15)) * jnp.asarray(2 * random + 1, bits.dtype), 1, dtype=bits.dtype)


def evenly_spaced_rows(n: int, most: int) -> Int[np.ndarray, " m"]:
    """Indices of at most `most` of n rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


MEDIAN_ROWS = 31
"""Rows used: their median is within a quarter of the spread of the points from the median of all."""


def robust_center(points: np.ndarray | Array) -> np.ndarray | Array:
    """Coordinate-wise lower median of up to 31 evenly spaced rows.

    Kernels of differences subtract it before they expand squares, so that rounding errors scale with the spread of the
    points instead of their offset. A median, because a few outlying rows (1e5, or 9999 for "missing") must not cost the
    others digits. Gradients are stopped: such kernels do not depend on the center.

    Parameters
    ----------
    points : array of shape (n, d)
        NumPy or JAX.

    Returns
    -------
    array of shape (d,)
    """
    rows = points[evenly_spaced_rows(len(points), MEDIAN_ROWS)]
    place = (len(rows) - 1) // 2
    if isinstance(points, np.ndarray):
        return np.sort(rows, axis=0)[place] if len(rows) else np.zeros(points.shape[1:], points.dtype)
    rows = jax.lax.stop_gradient(rows)
    first = np.arange(len(rows))[:, None] < np.arange(len(rows))  # ties
    below = (rows[:, None] < rows) | ((rows[:, None] == rows) & first[:, :, None])
    return jnp.sum(jnp.where(jnp.sum(below, 0) == place, rows, 0), 0)  # without sorting: a small program


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


def safe_sqrt(x: A) -> A:
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


def cosine_gap(xz: Array, xx: Array, zz: Array) -> Float[Array, "*s"]:
    """u = 1 - cos of the angle between x and z; 1 if one of them is 0. Norms are not multiplied before the root.

    For norms of similar size it is (½(xx + zz) - xz - ½(|x| - |z|)²)/(|x||z|), whose first difference is exact near the
    diagonal: u is then as accurate as the inner products, and exactly 0 if all three agree.
    """
    n1, n2 = safe_sqrt(xx), safe_sqrt(zz)
    inverse = safe_reciprocal(n1) * safe_reciprocal(n2)
    middle = 0.5 * (xx + zz)
    near = (middle - xz) - 0.5 * (n1 - n2) ** 2
    similar = (inverse > 0) & (middle * inverse <= 2)
    return snap_cosine_gap(jnp.where(similar, near * inverse, 1 - xz * inverse))


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


@functools.lru_cache(maxsize=2)
def row_pairs(m: int) -> tuple[Int[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """Indices (i, j) of all pairs of m different rows, each once."""
    return np.triu_indices(m, 1)


def median_distance(distances: Float[np.ndarray, " p"], otherwise: float) -> float:
    """Median of pairwise distances (or of their squares); `otherwise` if at least half of them are zero."""
    found = float(np.median(distances)) if len(distances) else 0.0
    return found if found > 0 else otherwise


def root_mean_square_norm(squares: Float[np.ndarray, " n"], otherwise: float = 1.0) -> float:
    """Root mean square of norms, given their squares; `otherwise` if all are zero."""
    found = float(np.mean(squares))
    return math.sqrt(found) if found > 0 else otherwise
