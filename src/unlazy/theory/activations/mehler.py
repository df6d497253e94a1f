"""E φ(a)φ(b) = Σ_k c_k(√q11) c_k(√q22) ρ^k of a smooth φ, with as many terms as the variances require.

The coefficients c_k of φ and φ' depend on one variance only and are computed once per point (`per_point_terms`), even
and odd k separately, since many functions are odd or even up to a line. A block of pairs evaluates two polynomials in
ρ², CHUNK terms at a time, until the remainder is below the rounding of E φ² for every pair of the block, by
Cauchy-Schwarz. Daniely et al. (2016).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.theory.activations import numeric_duals
from unlazy.theory.activations.chebyshev_interpolation import interpolate
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.numeric_duals import TERMS
from unlazy.theory.numerics.geometry import safe_reciprocal, safe_sqrt

CHUNK = 16
"""Terms per loop iteration."""
CHUNKS = TERMS // 2 // CHUNK
TRUNCATION_UNITS = 0.125
"""Bound on the sum of the omitted terms, in units of rounding of E φ²."""


class Series(NamedTuple):
    """Hermite coefficients of one function at many variances.

    Attributes
    ----------
    even, odd : array
        c_k of even and of odd k on a last axis.
    rest : array
        Square root of the mass that all coefficients omit.
    tails : array
        For even and odd k, the share of E φ² from every chunk on.
    """

    even: Array
    odd: Array
    rest: Array
    tails: Array


class MehlerTerms(NamedTuple):
    """Per-point terms of variance q: 1/√q and the series of φ and φ'."""

    inverse: Array
    value: Series
    slope: Series | None


def per_point_terms(activation: ActivationFunction, q: Float[Array, " n"], tangent: bool) -> tuple[Array, MehlerTerms]:
    """E φ² and the series of every variance."""
    root = safe_sqrt(q)
    columns, squares = interpolate(functools.partial(_columns, activation, tangent), root)
    series = [_series(columns[:, i * TERMS : (i + 1) * TERMS], squares[:, i]) for i in range(squares.shape[1])]
    return squares[:, 0], MehlerTerms(safe_reciprocal(root), series[0], series[1] if tangent else None)


def diagonal_dual(activation: ActivationFunction, q: Float[Array, " n"], tangent: bool) -> tuple[Array, Array]:
    """E φ² and E φ'² of every variance."""
    squares = interpolate(functools.partial(_squares, activation, tangent), safe_sqrt(q))[1]
    return squares[:, 0], squares[:, 1] if tangent else jnp.zeros_like(q)


def _columns(activation: ActivationFunction, tangent: bool, root: Array) -> tuple[Array, Array]:
    """c_k of φ and φ', even k before odd ones, and E φ² and E φ'²."""
    found = [
        numeric_duals.coefficients_by_parity(activation, root, derivative)
        for derivative in ((False, True)[: 1 + tangent])
    ]
    return jnp.concatenate([c for parts in found for c in parts[:2]], 1), jnp.stack([parts[2] for parts in found], 1)


def _squares(activation: ActivationFunction, tangent: bool, root: Array) -> tuple[Array, Array]:
    """No columns, and E φ² and E φ'²."""
    wanted = (False, True)[: 1 + tangent]
    found = jnp.stack([numeric_duals.mean_square(activation, root, derivative) for derivative in wanted], 1)
    return jnp.zeros((root.shape[0], 0), root.dtype), found


def _series(c: Array, square: Array) -> Series:
    """Series from its coefficients and E φ²."""
    parts = jnp.sum(jnp.square(c.reshape(-1, 2, CHUNKS, CHUNK)), -1)
    tails = jnp.flip(jnp.cumsum(jnp.flip(parts, -1), -1), -1) / jnp.where(square > 0, square, 1)[:, None, None]
    even, odd = c[:, : TERMS // 2], c[:, TERMS // 2 :]
    return Series(even, odd, safe_sqrt(square - jnp.sum(c * c, -1)), tails)


def dual_from_terms(q12: Array, left: MehlerTerms, right: MehlerTerms) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b), zero for the latter if the terms have no derivative; terms broadcast against q12."""
    rho = jax.lax.optimization_barrier(jnp.clip(q12 * (left.inverse * right.inverse), -1, 1))
    if left.slope is None or right.slope is None:
        return _sum(rho, left.value, right.value), jnp.zeros_like(rho)
    return _sum(rho, left.value, right.value), _sum(rho, left.slope, right.slope)


@jax.custom_jvp
def _sum(rho: Array, left: Series, right: Series) -> Array:
    """Truncated series at every ρ."""
    square, parts = rho * rho, []
    fourth = square * square
    chunks = _chunks(rho, left.tails, right.tails)
    full = chunks == CHUNKS
    for p, last in ((0, full[0] & ~full[1]), (1, full[1])):  # the omitted mass is assigned to the last power
        start = jnp.broadcast_to(jnp.where(last, left.rest * right.rest, 0), rho.shape)

        def add(i: Array, total: Array, p: int = p) -> Array:
            at = CHUNK * (chunks[p] - 1 - i)
            # transpose once, not for each pair
            a, b = jax.lax.optimization_barrier((_chunk(left[p], at), _chunk(right[p], at)))
            for j in reversed(range(0, CHUNK, 2)):  # in pairs: shorter dependency chains on a CPU
                total = total * fourth + (a[j] * b[j] + square * (a[j + 1] * b[j + 1]))
            return total

        parts.append(jax.lax.fori_loop(0, chunks[p], add, start))
    return parts[0] + rho * parts[1]


def _chunks(rho: Array, left: Array, right: Array) -> Array:
    """Number of required chunks of even and of odd k: |Σ_{k≥K} c_k c'_k ρ^k| ≤ |ρ|^K √(Σ_{k≥K} c_k² Σ_{k≥K} c'_k²)."""
    most = [jnp.max(t.reshape(-1, 2, CHUNKS), 0) for t in (left, right)]
    first = 2 * CHUNK * jnp.arange(CHUNKS, dtype=rho.dtype) + jnp.asarray([[0], [1]], rho.dtype)
    missed = jnp.sqrt(most[0] * most[1]) * jnp.max(jnp.abs(rho)) ** first
    return jnp.sum(missed > TRUNCATION_UNITS * float(jnp.finfo(rho.dtype).eps), -1, dtype=jnp.int32)


def _chunk(c: Array, at: Array) -> Array:
    """CHUNK coefficients from an index on, on a first axis."""
    return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(c, at, CHUNK, -1), -1, 0)


@_sum.defjvp
def _sum_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Derivative of the full series: a loop of unknown length has no transpose."""
    rho, left, right = primals
    d_rho, d_left, d_right = tangents

    def every(rho: Array, a: Any, b: Any) -> Array:
        square = rho * rho

        def add(total: tuple[Array, Array], c: Any) -> tuple[Any, None]:
            return tuple(t * square + x * y for t, (x, y) in zip(total, c)), None

        start = jnp.zeros_like(rho), jnp.broadcast_to(a[2] * b[2], rho.shape)
        terms = tuple((jnp.moveaxis(a[p], -1, 0), jnp.moveaxis(b[p], -1, 0)) for p in (0, 1))
        even, odd = jax.lax.scan(add, start, terms, reverse=True)[0]
        return even + rho * odd

    moved = d_rho, tuple(d_left[:3]), tuple(d_right[:3])
    _, tangent = jax.jvp(every, (rho, tuple(left[:3]), tuple(right[:3])), moved)
    return _sum(rho, left, right), tangent
