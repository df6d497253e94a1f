"""Duals of functions without a closed form, by Hermite expansion: E φ(a)φ(b) = Σ_k c_k(√q11) c_k(√q22) ρ^k.

c_k(s) = E φ(s x) h_k(x), h_k = He_k/√k!, x ~ N(0,1), uses Gauss-Legendre panels split at the kinks of φ, after its
steps and ramps are subtracted (theory.activations.kink_splitting). The mass that TERMS coefficients of the remainder
omit is known from Parseval, E g(s x)² - Σ c_k², and is assigned to the last power of ρ; theory.activations.dual_errors
estimates the resulting error. Daniely, Frostig and Singer (2016).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.arrays import dot
from unlazy.theory.activations import kink_splitting, step_ramp_duals
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.kink_splitting import KinkSplit
from unlazy.theory.numerics.geometry import Covariance, safe_sqrt

TERMS = 128
"""Terms of the expansion."""
NODES_PER_PANEL = 16
"""Gauss-Legendre nodes per panel."""
REACH = 2 * math.sqrt(TERMS) + 6
"""Half-width of the quadrature: beyond it h_k(x) times the density is below 1e-16 for every k < TERMS."""

SMOOTH = KinkSplit((), None)
"""Split of a function without kinks."""


def dual_functions(
    activation: ActivationFunction,
) -> tuple[Callable[[Covariance], Array], Callable[[Covariance], Array]]:
    """E φ(a)φ(b) and E φ'(a)φ'(b) as functions of a `Covariance`."""
    return functools.partial(_series, activation, False), functools.partial(_series, activation, True)


def dual_and_derivative(activation: ActivationFunction, pair: Covariance) -> tuple[Array, Array]:
    """Both at once. Tail probabilities of shared kinks are computed once, since XLA does not merge equal loops."""
    shared = None
    if activation.kinks:
        kinks, others = (kink_splitting.split_kinks(activation, derivative).kinks for derivative in (False, True))
        if kinks and [kink[:2] for kink in kinks] == [kink[:2] for kink in others]:
            shared = step_ramp_duals.tail_probabilities(kinks, pair)
    return _series(activation, False, pair, shared), _series(activation, True, pair, shared)


def has_closed_form(activation: ActivationFunction, derivative: bool = False) -> bool:
    """Whether φ is steps, ramps and a polynomial, so that the expansion terminates."""
    return bool(activation.kinks) and kink_splitting.split_kinks(activation, derivative).rest is not None


def _series(
    activation: ActivationFunction, derivative: bool, pair: Covariance, tails: list[Array] | None = None
) -> Array:
    """The expansion of one dual, plus the closed form of its kinks."""
    whole = kink_splitting.split_kinks(activation, derivative) if activation.kinks else KinkSplit((), None)
    if derivative and activation.kinks:
        require_continuous(activation)
    if whole.rest == (0.0, 0.0, 0.0):
        return step_ramp_duals.expectation(whole.kinks, pair, tails)
    r1, r2 = safe_sqrt(pair.q11), safe_sqrt(pair.q22)
    (a1, rest1), (a2, rest2) = (coefficients(activation, r, derivative, whole) for r in (r1, r2))
    rho = 1 - pair.gap
    start = jnp.broadcast_to(rest1 * rest2, rho.shape)
    if not whole.kinks:
        return _sum(lambda c: c[0] * c[1], start, rho, (a1, a2))
    p1, p2 = (kink_splitting.kink_coefficients(whole.kinks, r, a1.shape[-1]) for r in (r1, r2))
    # a a' + a p' + p a': the product of the kinks is in the closed form
    mixed = _sum(lambda c: c[0] * (c[1] + c[3]) + c[2] * c[1], start, rho, (a1, a2, p1, p2))
    return mixed + step_ramp_duals.expectation(whole.kinks, pair, tails)


def _sum(term: Callable, start: Array, rho: Array, coefficients: tuple[Array, ...]) -> Array:
    """Σ_k term(c_k) ρ^k by a scan, started from the last power."""

    def add(total: Array, c: tuple[Array, ...]) -> tuple[Array, None]:
        return total * rho + term(c), None

    return jax.lax.scan(add, start, tuple(jnp.moveaxis(c, -1, 0) for c in coefficients), reverse=True)[0]


def require_continuous(activation: ActivationFunction) -> None:
    """Raise ValueError if φ jumps: E φ'φ' is then infinite."""
    jumps = [kink.side * kink.level for kink in kink_splitting.split_kinks(activation).kinks if kink.jump]
    if jumps:
        raise ValueError(
            f"activation {activation.name!r} jumps at {', '.join(f'{x:g}' for x in jumps)}: it has no derivative, so "
            "no NTK; use its NNGP, or a smooth activation such as erf"
        )


def coefficients(
    activation: ActivationFunction, root: Array, derivative: bool, whole: KinkSplit
) -> tuple[Array, Array]:
    """Hermite coefficients of the smooth part on a last axis, and the square root of the mass they omit."""
    if whole.rest is not None:
        constant, linear, quadratic = whole.rest
        q = root * root
        few = [constant + quadratic * q, linear * root, math.sqrt(2) * quadratic * q]
        return jnp.stack(few, -1), jnp.zeros_like(root)
    if any(k != 0 for k in activation.kinks):
        x, w = _moving_nodes(activation.kinks, root)
        values = _evaluate(activation, root[..., None] * x, derivative, whole)
        c = _project(values, x, w)
        square = jnp.sum(values * values * w, -1)
    else:
        even, odd, square = coefficients_by_parity(activation, root, derivative, whole)
        c = jnp.stack([even, odd], -1).reshape(*root.shape, TERMS)
    return c, safe_sqrt(square - jnp.sum(c * c, -1))


def coefficients_by_parity(
    activation: ActivationFunction, root: Array, derivative: bool, whole: KinkSplit = SMOOTH
) -> tuple[Array, Array, Array]:
    """c_k of even and of odd k on a last axis, and E φ²; symmetric nodes halve the work of each."""
    nodes, weights, basis = _fixed_nodes()
    x, w = jnp.asarray(nodes, root.dtype), jnp.asarray(weights, root.dtype)
    values = _evaluate(activation, root[..., None] * x, derivative, whole)
    half = nodes.size // 2
    above, below = values[..., half:], values[..., half - 1 :: -1]
    even, odd = (jnp.asarray(basis[half:, p::2], root.dtype) for p in (0, 1))
    return dot(above + below, even), dot(above - below, odd), jnp.sum(values * values * w, -1)


def mean_square(activation: ActivationFunction, root: Array, derivative: bool) -> Array:
    """E φ(a)² of a function without kinks, for a of standard deviation `root`, by direct quadrature."""
    nodes, weights, _ = _fixed_nodes()
    values = _evaluate(activation, root[..., None] * jnp.asarray(nodes, root.dtype), derivative, SMOOTH)
    return jnp.sum(values * values * jnp.asarray(weights, root.dtype), -1)


def _evaluate(activation: ActivationFunction, x: Array, derivative: bool, whole: KinkSplit) -> Array:
    """φ or φ' minus its steps and ramps."""
    values = jax.jvp(activation, (x,), (jnp.ones_like(x),))[1] if derivative else activation(x)
    return values - kink_splitting.kink_sum(whole.kinks, x) if whole.kinks else values


def panel_edges(reach: float) -> np.ndarray:
    """Panel edges: panels halve toward 0, where activations bend, and have unit length further out."""
    inner = 2.0 ** -np.arange(7, 0, -1)
    outer = np.linspace(1, reach, math.ceil(reach))
    return np.concatenate([-outer[::-1], -inner[::-1], [0.0], inner, outer])


@functools.cache
def _edges() -> np.ndarray:
    """Panel edges up to REACH."""
    return panel_edges(REACH)


@functools.cache
def _fixed_nodes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, weights, and weights times h_k of the fixed panels."""
    t, weight = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    edges = _edges()
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = (middle[:, None] + half[:, None] * t).ravel()
    w = (half[:, None] * weight).ravel() * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    basis = [w, w * x]  # weights times h_k, since h_k alone overflows float32
    for k in range(1, TERMS - 1):
        basis.append((x * basis[-1] - math.sqrt(k) * basis[-2]) / math.sqrt(k + 1))
    return x, w, np.stack(basis, 1)


def _moving_nodes(kinks: tuple[float, ...], root: Array) -> tuple[Array, Array]:
    """Nodes and weights with the kinks of φ(s x) as additional edges; one set per s, on a last axis."""
    t, weight = (jnp.asarray(v, root.dtype) for v in np.polynomial.legendre.leggauss(NODES_PER_PANEL))
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
