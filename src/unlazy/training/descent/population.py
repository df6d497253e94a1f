"""Gradient descent on the population risk of balanced neurons, in closed form: no samples, any size of the start [L11].

The lazy side of the same network is α(f_v - f_{v₀}) with a large α: its risk is α² times that of f_v against
f*/α + f_{v₀}, so it is the same descent with the starting neurons among the teachers. Chizat, Oyallon and Bach (2019).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.theory.activations.functions import Activation
from unlazy.theory.feature_learning.balanced_neurons import directions, risk_and_gradient


class Descent(NamedTuple):
    """Every so many steps, beginning with the start."""

    at: Float[Array, " t"]
    """Steps done, times the step size."""
    risk: Float[Array, " t"]
    second: Float[Array, "t d d"]
    """Σ_j ‖v_j‖² v̂_j v̂_jᵀ, what was added to its start: the degree-2 part of what has been learned, up to a
    constant."""


def random_start(key: PRNGKeyArray, width: int, d: int, size: Real[Array, ""] | float) -> Float[Array, "n d"]:
    """Directions uniform on the sphere, equal norms, Σ ‖v‖² = size²."""
    W, _ = directions(jax.random.normal(key, (width, d)))
    return W * size / width**0.5


def descend_population(
    V: Float[Array, "n d"], U: Float[Array, "k d"], heads: Float[Array, " k"], activation: Activation, *,
    step_size: float, steps: int, every: int = 1, laziness: float | None = None,
) -> Descent:  # fmt: skip
    """Descent on E (f - f*)²/2 from V; with `laziness` α, on that of α(f - f_{v₀}), in the time of f*."""
    steps, every = check_positive_integer("steps", steps), check_positive_integer("every", every)
    if steps % every:
        raise ValueError(f"{steps} steps are not a whole number of {every}: records would stop before the end")
    alpha, start = 1.0 if laziness is None else laziness, _second(V) if laziness else 0.0
    if laziness is not None:
        W, norms = directions(V)
        U, heads = jnp.concatenate([U, W]), jnp.concatenate([heads / laziness, norms**2])

    def one(V: Array, _: None) -> tuple[Array, Array]:
        risk, gradient = risk_and_gradient(V, U, heads, activation)
        return V - step_size * gradient, risk

    def some(V: Array, _: None) -> tuple[Array, tuple]:
        seen = alpha * (_second(V) - start)
        V, risks = lax.scan(one, V, None, length=every)
        return V, (alpha**2 * risks[0], seen)

    _, (risk, second) = lax.scan(some, V, None, length=steps // every)
    return Descent(jnp.arange(0, steps, every) * jnp.asarray(step_size, V.dtype), risk, second)


def _second(V: Array) -> Array:
    return dot(V.T, V)
