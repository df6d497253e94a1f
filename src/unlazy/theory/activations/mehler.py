"""E φ(a)φ(b) = Σ_k c_k(√q11) c_k(√q22) ρ^k of a smooth φ, as many terms as these variances need.

What one variance brings (`row`) is computed once a point: c_k of φ and φ', even k and odd k apart, since many functions
are odd or even but for a line. A block of pairs then evaluates two polynomials of ρ² by `CHUNK` terms at a time, up to
where what follows is below the rounding of E φ² for every pair of the block, by Cauchy-Schwarz. Daniely et al. (2016).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.theory.activations import numeric_duals
from unlazy.theory.activations.chebyshev_interpolation import across
from unlazy.theory.activations.functions import Activation
from unlazy.theory.activations.numeric_duals import TERMS
from unlazy.theory.numerics.angles import safe_reciprocal, safe_sqrt

CHUNK = 16
CHUNKS = TERMS // 2 // CHUNK
LEFT_OUT = 0.125
"""Of a unit of rounding of E φ²: what the terms that are left out may sum to."""


class Series(NamedTuple):
    """c_k of even and of odd k on a last axis, the root of what all of them leave out, and for even and odd k the part
    of E φ² from every chunk on."""

    even: Array
    odd: Array
    rest: Array
    tails: Array


class Row(NamedTuple):
    """What one variance q brings: 1/√q and the series of φ and φ'."""

    inverse: Array
    value: Series
    slope: Series | None


def row(activation: Activation, q: Float[Array, " n"], tangent: bool) -> tuple[Array, Row]:
    """E φ² of every variance, and the rest."""
    root = safe_sqrt(q)
    columns, squares = across(functools.partial(_columns, activation, tangent), root)
    series = [_series(columns[:, i * TERMS : (i + 1) * TERMS], squares[:, i]) for i in range(squares.shape[1])]
    return squares[:, 0], Row(safe_reciprocal(root), series[0], series[1] if tangent else None)


def own(activation: Activation, q: Float[Array, " n"], tangent: bool) -> tuple[Array, Array]:
    """E φ² and E φ'² of every variance."""
    squares = across(functools.partial(_squares, activation, tangent), safe_sqrt(q))[1]
    return squares[:, 0], squares[:, 1] if tangent else jnp.zeros_like(q)


def _columns(activation: Activation, tangent: bool, root: Array) -> tuple[Array, Array]:
    """c_k of φ and φ', even k before odd ones, and E φ² and E φ'²."""
    found = [numeric_duals.by_parity(activation, root, derivative) for derivative in ((False, True)[: 1 + tangent])]
    return jnp.concatenate([c for parts in found for c in parts[:2]], 1), jnp.stack([parts[2] for parts in found], 1)


def _squares(activation: Activation, tangent: bool, root: Array) -> tuple[Array, Array]:
    wanted = (False, True)[: 1 + tangent]
    found = jnp.stack([numeric_duals.own_square(activation, root, derivative) for derivative in wanted], 1)
    return jnp.zeros((root.shape[0], 0), root.dtype), found


def _series(c: Array, square: Array) -> Series:
    parts = jnp.sum(jnp.square(c.reshape(-1, 2, CHUNKS, CHUNK)), -1)
    tails = jnp.flip(jnp.cumsum(jnp.flip(parts, -1), -1), -1) / jnp.where(square > 0, square, 1)[:, None, None]
    even, odd = c[:, : TERMS // 2], c[:, TERMS // 2 :]
    return Series(even, odd, safe_sqrt(square - jnp.sum(c * c, -1)), tails)


def both(q12: Array, left: Row, right: Row) -> tuple[Array, Array]:
    """E φ(a)φ(b) and E φ'(a)φ'(b); 0 for the latter where no derivative was asked for. Rows broadcast against q12."""
    rho = jax.lax.optimization_barrier(jnp.clip(q12 * (left.inverse * right.inverse), -1, 1))
    if left.slope is None or right.slope is None:
        return _sum(rho, left.value, right.value), jnp.zeros_like(rho)
    return _sum(rho, left.value, right.value), _sum(rho, left.slope, right.slope)


@jax.custom_jvp
def _sum(rho: Array, left: Series, right: Series) -> Array:
    square, parts = rho * rho, []
    fourth = square * square
    chunks = _chunks(rho, left.tails, right.tails)
    full = chunks == CHUNKS
    for p, last in ((0, full[0] & ~full[1]), (1, full[1])):  # what all terms leave out goes to the last power
        start = jnp.broadcast_to(jnp.where(last, left.rest * right.rest, 0), rho.shape)

        def add(i: Array, total: Array, p: int = p) -> Array:
            at = CHUNK * (chunks[p] - 1 - i)
            # in this order once, not again for each pair
            a, b = jax.lax.optimization_barrier((_chunk(left[p], at), _chunk(right[p], at)))
            for j in reversed(range(0, CHUNK, 2)):  # by pairs: a CPU waits for what follows one another
                total = total * fourth + (a[j] * b[j] + square * (a[j + 1] * b[j + 1]))
            return total

        parts.append(jax.lax.fori_loop(0, chunks[p], add, start))
    return parts[0] + rho * parts[1]


def _chunks(rho: Array, left: Array, right: Array) -> Array:
    """How many chunks of even and of odd k matter: |Σ_{k≥K} c_k c'_k ρ^k| ≤ |ρ|^K √(Σ_{k≥K} c_k² Σ_{k≥K} c'_k²)."""
    most = [jnp.max(t.reshape(-1, 2, CHUNKS), 0) for t in (left, right)]
    first = 2 * CHUNK * jnp.arange(CHUNKS, dtype=rho.dtype) + jnp.asarray([[0], [1]], rho.dtype)
    missed = jnp.sqrt(most[0] * most[1]) * jnp.max(jnp.abs(rho)) ** first
    return jnp.sum(missed > LEFT_OUT * float(jnp.finfo(rho.dtype).eps), -1, dtype=jnp.int32)


def _chunk(c: Array, at: Array) -> Array:
    return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(c, at, CHUNK, -1), -1, 0)


@_sum.defjvp
def _sum_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """The derivative of all terms: a loop of unknown length has no transpose."""
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
