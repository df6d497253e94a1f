"""What is done in every position alone: activations, normalization, dropout [C1, C3]."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core import devices
from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.state import State, look, of_blocks, propagate, survey, variances
from unlazy.layers.description import Activation, Dropout, LayerNorm
from unlazy.theory.activations import duals
from unlazy.theory.infinite_width.covariance import covariance
from unlazy.theory.numerics.angles import safe_reciprocal, safe_sqrt
from unlazy.theory.numerics.near_duplicates import coincident, rounding_floor

SLICE = 2**17
"""Bytes of a covariance whose dual is evaluated at once on the CPU."""
SUMMED = 64
"""Terms of Σ whose roundings may make a pair of equal positions look different: channels times a window, and more."""


@look.register(Activation)
@look.register(LayerNorm)
def _variances(layer: Activation | LayerNorm, state: State) -> Array:
    return variances(state)


@propagate.register
@of_blocks
def _activation(layer: Activation, state: State, left: Array, right: Array) -> State:
    """Σ → E φφ, Θ → Θ E φ'φ', entry by entry."""
    if not state.normal:
        raise ValueError(
            f"{layer.title} must follow weights (Dense, Conv, …), perhaps normalized or added: only there are channels "
            "Gaussian"
        )
    q11, q22 = position_pairs.of_left(left, state.grid), position_pairs.of_right(right, state.grid)
    theta = state.theta if state.theta is None else jnp.broadcast_to(state.theta, state.sigma.shape)
    sigma, theta = sliced(functools.partial(_dual, layer), state.sigma, theta, q11, q22)
    return state._replace(sigma=sigma, theta=theta, normal=False)


def _dual(layer: Activation, sigma: Array, theta: Any, q11: Array, q22: Array) -> tuple[Array, Any]:
    middle = 0.5 * (q11 + q22)
    close = coincident(middle - sigma, middle, rounding_floor(SUMMED, sigma.dtype))
    q12 = sigma + jax.lax.stop_gradient(jnp.where(close, middle - sigma, 0))
    pair = covariance(q12, q11, q22)
    if theta is None:
        return duals.of(layer.phi)[0](pair), None
    value, slope = duals.both(layer.phi, pair)
    return value, theta * slope


def sliced(of: Callable, sigma: Array, theta: Any, q11: Array, q22: Array) -> Any:
    """of(Σ, Θ, q11, q22), some positions of the first axis at a time on the CPU, all at once elsewhere.

    XLA joins what is done to every entry with the sums over windows that follow, and would evaluate the dual again for
    each point of a window. On the CPU it heeds no barrier, but results of a loop it keeps; and slices stay in the cache
    from one step of the dual to the next.
    """
    some = _at_once(sigma) if sigma.ndim and devices.is_host() else None
    if some is None or some == len(sigma):
        return jax.lax.optimization_barrier(of(sigma, theta, q11, q22))
    first = (sigma, theta, q11) if len(q22) == 1 else (sigma, theta, q11, q22)
    first = jax.tree.map(lambda a: a.reshape(len(a) // some, some, *a.shape[1:]), first)
    found = jax.lax.map(lambda part: of(*part, *((q22,) if len(part) == 3 else ())), first)
    return jax.tree.map(lambda a: a.reshape(sigma.shape), found)


def _at_once(sigma: Array) -> int:
    """Positions of the first axis to take at once: a divisor of their number, so that one program serves all."""
    n = len(sigma)
    room = max(1, SLICE * n // max(1, sigma.size * sigma.dtype.itemsize))
    return max(d for d in range(1, n + 1) if n % d == 0 and d <= room)


@propagate.register
@of_blocks
def _normalized(layer: LayerNorm, state: State, left: Array, right: Array) -> State:
    """Σ_pq/√(Σ_pp(x,x) Σ_qq(z,z)) [C3]."""
    if not state.normal:
        raise ValueError(f"{layer.title} must follow weights (Dense, Conv, …): only there is the mean over channels 0")
    if layer.over == "all":
        axes = tuple(range(len(state.grid)))
        left, right = (jnp.broadcast_to(jnp.mean(v, axes, keepdims=True), v.shape) for v in (left, right))
    first, second = (safe_reciprocal(safe_sqrt(v + layer.epsilon)) for v in (left, right))
    return state.each(
        lambda A: A * position_pairs.of_left(first, state.grid) * position_pairs.of_right(second, state.grid)
    )


@propagate.register
@of_blocks
def _kept(layer: Dropout, state: State, left: Any, right: Any) -> State:
    """Two points are thinned independently: their covariance stays."""
    return state._replace(normal=False)


@survey.register
def _kept_alone(layer: Dropout, state: State) -> tuple[State, None]:
    """The variances are divided by the probability to be kept [C3]."""
    same = position_pairs.is_diagonal(state.grid, state.sigma)
    return state.each(lambda A: A + A * same * (1 / layer.keep - 1), normal=False), None
