"""What is done in every position alone: activations, normalisation, dropout [C1, C3]."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.layers import Activation, Dropout, LayerNorm
from unlazy.theory import duals
from unlazy.theory.angles import safe_reciprocal, safe_sqrt
from unlazy.theory.coincidence import coincident, rounding_floor
from unlazy.theory.covariance import covariance
from unlazy.theory.propagate import paired
from unlazy.theory.propagate.state import State, look, propagate, survey, variances

SUMMED = 64
"""Terms of Σ whose roundings may make a pair of equal positions look different: channels times a window, and more."""


@look.register(Activation)
@look.register(LayerNorm)
def _variances(layer: Activation | LayerNorm, state: State) -> Array:
    return variances(state)


@propagate.register
def _activation(layer: Activation, state: State, left: Array, right: Array) -> State:
    """Σ → E φφ, Θ → Θ E φ'φ', entry by entry."""
    if not state.normal:
        raise ValueError(
            f"{layer.title} must follow weights (Dense, Conv, …), perhaps normalised or added: only there are channels "
            "Gaussian"
        )
    q11, q22 = paired.of_left(left, state.grid), paired.of_right(right, state.grid)
    middle = 0.5 * (q11 + q22)
    floor = rounding_floor(SUMMED, state.sigma.dtype)
    close = coincident(middle - state.sigma, middle, floor)
    q12 = state.sigma + jax.lax.stop_gradient(jnp.where(close, middle - state.sigma, 0))
    pair = covariance(q12, q11, q22)
    if state.theta is None:
        value, theta = duals.of(layer.phi)[0](pair), None
    else:
        value, slope = duals.both(layer.phi, pair)
        theta = state.theta * slope
    # without it XLA would evaluate the dual again for each point of a window
    value, theta = jax.lax.optimization_barrier((value, theta))
    return state._replace(sigma=value, theta=theta, normal=False)


@propagate.register
def _normalised(layer: LayerNorm, state: State, left: Array, right: Array) -> State:
    """Σ_pq/√(Σ_pp(x,x) Σ_qq(z,z)) [C3]."""
    if not state.normal:
        raise ValueError(f"{layer.title} must follow weights (Dense, Conv, …): only there is the mean over channels 0")
    if layer.over == "all":
        left, right = (jnp.broadcast_to(jnp.mean(v), v.shape) for v in (left, right))
    first, second = (safe_reciprocal(safe_sqrt(v + layer.epsilon)) for v in (left, right))
    return state.each(lambda A: A * paired.of_left(first, state.grid) * paired.of_right(second, state.grid))


@propagate.register
def _kept(layer: Dropout, state: State, left: Any, right: Any) -> State:
    """Two points are thinned independently: their covariance stays."""
    return state._replace(normal=False)


@survey.register
def _kept_alone(layer: Dropout, state: State) -> tuple[State, None]:
    """The variances are divided by the probability to be kept [C3]."""
    same = paired.is_diagonal(state.grid, state.sigma.dtype)
    return state.each(lambda A: A + A * same * (1 / layer.keep - 1), normal=False), None
