"""Gradient descent on the population risk of balanced neurons in closed form, without samples [L11].

Lazy training of the same network is α(f_v - f_{v₀}) with a large α: its risk is α² times that of f_v against f*/α +
f_{v₀}, so it is the same descent with the initial neurons added to the teachers. Chizat, Oyallon and Bach (2019).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.feature_learning.balanced_neurons import risk_and_gradient, unit_directions


class PopulationDescent(NamedTuple):
    """Records every `every` steps, beginning with the start."""

    at: Float[Array, " t"]
    """Steps taken times the step size."""
    risk: Float[Array, " t"]
    second: Float[Array, "t d d"]
    """Σ_j ‖v_j‖² v̂_j v̂_jᵀ, minus its initial value in lazy training.

    This is the degree-2 part of the learned function, up to a constant.
    """


def random_start(key: PRNGKeyArray, width: int, d: int, size: Real[Array, ""] | float) -> Float[Array, "n d"]:
    """Draw neurons with directions uniform on the sphere, equal norms and Σ ‖v‖² = size²."""
    W, _ = unit_directions(jax.random.normal(key, (width, d)))
    return W * size / width**0.5


def descend_population(
    V: Float[Array, "n d"], U: Float[Array, "k d"], heads: Float[Array, " k"], activation: ActivationFunction, *,
    step_size: float, steps: int, every: int = 1, laziness: float | None = None,
) -> PopulationDescent:  # fmt: skip
    """Run gradient descent on E (f - f*)²/2 from V, or on that of α(f - f_{v₀}), in the time of f*.

    Parameters
    ----------
    V : array of shape (n, d)
        Initial balanced neurons.
    U : array of shape (k, d)
        Directions of the teacher.
    heads : array of shape (k,)
        Readout weights of the teacher.
    activation : activation function
        Activation of network and teacher.
    step_size : float
        Step size.
    steps : int
        Number of steps, a multiple of `every`.
    every : int, default 1
        Steps between records.
    laziness : float, optional
        The factor α of lazy training.

    Returns
    -------
    PopulationDescent
        Risk and second moment of the neurons over time.

    Raises
    ------
    ValueError
        If `steps` is not a multiple of `every`.
    """
    steps, every = check_positive_integer("steps", steps), check_positive_integer("every", every)
    if steps % every:
        raise ValueError(f"steps must be a multiple of every, got steps={steps} and every={every}")
    alpha, start = 1.0 if laziness is None else laziness, _second(V) if laziness else 0.0
    if laziness is not None:
        W, norms = unit_directions(V)
        U, heads = jnp.concatenate([U, W]), jnp.concatenate([heads / laziness, norms**2])

    def one(V: Array, _: None) -> tuple[Array, Array]:
        risk, gradient = risk_and_gradient(V, U, heads, activation)
        return V - step_size * gradient, risk

    def some(V: Array, _: None) -> tuple[Array, tuple]:
        seen = alpha * (_second(V) - start)
        V, risks = lax.scan(one, V, None, length=every)
        return V, (alpha**2 * risks[0], seen)

    _, (risk, second) = lax.scan(some, V, None, length=steps // every)
    return PopulationDescent(jnp.arange(0, steps, every) * jnp.asarray(step_size, V.dtype), risk, second)


def _second(V: Array) -> Array:
    """Return VᵀV."""
    return dot(V.T, V)
