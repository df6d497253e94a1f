"""Duals of functions without a closed form, by Hermite expansion: E φ(a)φ(b) = Σ_k c_k(√q11) c_k(√q22) ρ^k.

c_k(s) = E φ(s x) h_k(x), h_k = He_k/√k!, x ~ N(0,1), is taken by Gauss-Legendre panels split at the kinks of φ. What
TERMS coefficients leave out is known exactly from Parseval, E φ(s x)² - Σ c_k², and is given to the last power of ρ:
values at a = b are then exact, and the omitted part bounds the error elsewhere. Daniely, Frostig and Singer (2016).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.activations import Activation
from unlazy.core.linear import dot
from unlazy.theory.angles import safe_sqrt
from unlazy.theory.homogeneous import cosine_gap

TERMS = 128
NODES_A_PANEL = 16
REACH = 2 * math.sqrt(TERMS) + 6
"""Beyond this h_k(x) times the density is under 1e-16 for every k < TERMS."""


def duals(activation: Activation) -> tuple[Callable, Callable]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) as functions of (q12, q11, q22)."""
    return functools.partial(_series, activation, False), functools.partial(_series, activation, True)


def error_estimate(activation: Activation, root: Float[Array, " k"], derivative: bool = False) -> Float[Array, " k"]:
    """Largest possible error of the dual at √q = root, relative to its value at a = b: the mass left out."""
    _, left_out, square = coefficients(activation, root, derivative)
    return left_out**2 / jnp.maximum(square, jnp.finfo(root.dtype).tiny)


def _series(activation: Activation, derivative: bool, q12: Array, q11: Array, q22: Array) -> Array:
    c1, rest1, _ = coefficients(activation, safe_sqrt(q11), derivative)
    c2, rest2, _ = coefficients(activation, safe_sqrt(q22), derivative)
    rho = 1 - cosine_gap(q12, q11, q22)

    def add(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total * rho + pair[0] * pair[1], None

    start = jnp.broadcast_to(rest1 * rest2, rho.shape)
    return jax.lax.scan(add, start, (jnp.moveaxis(c1, -1, 0), jnp.moveaxis(c2, -1, 0)), reverse=True)[0]


def coefficients(activation: Activation, root: Array, derivative: bool) -> tuple[Array, Array, Array]:
    """c_0 … c_{TERMS-1} on a last axis, the root of the mass they leave out, and E φ(s x)²."""
    if any(k != 0 for k in activation.kinks):
        x, w = _moving_nodes(activation.kinks, root)
        values = _evaluate(activation, root[..., None] * x, derivative)
        c = _project(values, x, w)
    else:
        nodes, weights, basis = _fixed_nodes()
        x, w = jnp.asarray(nodes, root.dtype), jnp.asarray(weights, root.dtype)
        values = _evaluate(activation, root[..., None] * x, derivative)
        c = dot(values, jnp.asarray(basis, root.dtype))
    square = jnp.sum(values * values * w, -1)
    return c, safe_sqrt(square - jnp.sum(c * c, -1)), square


def _evaluate(activation: Activation, x: Array, derivative: bool) -> Array:
    if not derivative:
        return activation(x)
    return jax.jvp(activation, (x,), (jnp.ones_like(x),))[1]


@functools.cache
def _edges() -> np.ndarray:
    """Panels that halve towards 0, where activations bend, and have unit length further out."""
    inner = 2.0 ** -np.arange(7, 0, -1)
    outer = np.linspace(1, REACH, math.ceil(REACH))
    return np.concatenate([-outer[::-1], -inner[::-1], [0.0], inner, outer])


@functools.cache
def _fixed_nodes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t, weight = np.polynomial.legendre.leggauss(NODES_A_PANEL)
    edges = _edges()
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = (middle[:, None] + half[:, None] * t).ravel()
    w = (half[:, None] * weight).ravel() * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    basis = [w, w * x]  # weights times h_k, which alone would leave float32
    for k in range(1, TERMS - 1):
        basis.append((x * basis[-1] - math.sqrt(k) * basis[-2]) / math.sqrt(k + 1))
    return x, w, np.stack(basis, 1)


def _moving_nodes(kinks: tuple[float, ...], root: Array) -> tuple[Array, Array]:
    """The same panels with the kinks of φ(s x) as further edges; one set of nodes for each s, on a last axis."""
    t, weight = (jnp.asarray(v, root.dtype) for v in np.polynomial.legendre.leggauss(NODES_A_PANEL))
    at = jnp.asarray(kinks, root.dtype) / jnp.maximum(root[..., None], 1e-3 / REACH)
    fixed = jnp.broadcast_to(jnp.asarray(_edges(), root.dtype), (*root.shape, _edges().size))
    edges = jnp.sort(jnp.concatenate([fixed, jnp.clip(at, -REACH, REACH)], -1), -1)
    middle, half = (edges[..., 1:] + edges[..., :-1]) / 2, jnp.diff(edges, axis=-1) / 2
    x = (middle[..., None] + half[..., None] * t).reshape(*root.shape, -1)
    w = (half[..., None] * weight).reshape(*root.shape, -1) * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return x, w


def _project(values: Array, x: Array, w: Array) -> Array:
    """Σ_j w_j values_j h_k(x_j) for every k, by the recurrence of √w h, which stays small."""
    half = jnp.sqrt(w)
    weighted = values * half

    def step(pair: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], Array]:
        previous, current = pair
        following = (x * current - jnp.sqrt(k) * previous) / jnp.sqrt(k + 1)
        return (current, following), jnp.sum(weighted * current, -1)

    ks = jnp.arange(TERMS, dtype=x.dtype)
    return jnp.moveaxis(jax.lax.scan(step, (jnp.zeros_like(x), half), ks)[1], 0, -1)
