"""Gradient flow with adaptive steps, for any pytree of states.

The flow is integrated by the third-order method of Bogacki and Shampine (1989), whose embedded second-order method
measures the error; its last slope is the first of the next step.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

SAFETY, SMALLEST_FACTOR, LARGEST_FACTOR = 0.9, 0.2, 5.0
"""The next step is 0.9 err^{-1/3} times this one, within the factors SMALLEST_FACTOR and LARGEST_FACTOR."""
MOST_STEPS = 100_000
"""Largest number of steps between two recorded times; more mean divergence or a too small tolerance."""


class FlowClock(NamedTuple):
    """State of the flow: time, length of the next step, state, its slope, steps taken and tried."""

    time: Array
    step: Array
    state: PyTree
    slope: PyTree
    taken: Array
    tried: Array


def begin(velocity: Callable[[PyTree], PyTree], state: PyTree, step: Array) -> FlowClock:
    """Return a clock at time 0 whose first step has the given length."""
    zero = jnp.zeros((), jnp.int32)
    return FlowClock(jnp.zeros_like(step), step, state, velocity(state), zero, zero)


def flow(
    velocity: Callable[[PyTree], PyTree], error_size: Callable[[PyTree, PyTree], Array], clock: FlowClock, until: Array
) -> FlowClock:
    """Return the clock at time `until`; `error_size(error, state)` is 1 if a step's error equals the tolerance."""

    def unfinished(now: tuple[FlowClock, Array]) -> Array:
        return (now[0].time < until) & (now[1] < MOST_STEPS)

    def once(now: tuple[FlowClock, Array]) -> tuple[FlowClock, Array]:
        return _step(velocity, error_size, now[0], until), now[1] + 1

    return jax.lax.while_loop(unfinished, once, (clock, jnp.zeros((), jnp.int32)))[0]


def _step(velocity: Callable, error_size: Callable, now: FlowClock, until: Array) -> FlowClock:
    """Try one step."""
    last = now.time + now.step * (1 + 1e-6) >= until  # avoids a tiny last step
    h = jnp.where(last, until - now.time, now.step)
    k1 = now.slope
    k2 = velocity(_moved(now.state, h, (0.5, k1)))
    k3 = velocity(_moved(now.state, h, (0.75, k2)))
    state = _moved(now.state, h, (2 / 9, k1), (1 / 3, k2), (4 / 9, k3))
    k4 = velocity(state)
    error = _moved(jax.tree.map(jnp.zeros_like, state), h, (-5 / 72, k1), (1 / 12, k2), (1 / 9, k3), (-1 / 8, k4))
    size = error_size(error, state)
    fine = size <= 1  # false for NaN
    factor = jnp.clip(
        SAFETY * jnp.maximum(jnp.where(jnp.isfinite(size), size, jnp.inf), 1e-6) ** (-1 / 3),
        SMALLEST_FACTOR,
        LARGEST_FACTOR,
    )
    time = jnp.where(fine, jnp.where(last, until, now.time + h), now.time)
    # a step shortened to end at `until` does not rule out the longer one
    step = jnp.where(fine & last, jnp.maximum(now.step, h * factor), h * factor)
    state, slope = _where(fine, state, now.state), _where(fine, k4, k1)
    return FlowClock(time, step, state, slope, now.taken + fine, now.tried + 1)


def _moved(state: PyTree, h: Array, *slopes: tuple[float, PyTree]) -> PyTree:
    """Return state + h Σ w_i k_i."""
    weights, trees = zip(*slopes)
    return jax.tree.map(lambda s, *ks: s + h * sum(w * k for w, k in zip(weights, ks)), state, *trees)


def _where(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """Select one of two pytrees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
