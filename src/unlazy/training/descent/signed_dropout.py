"""Signed dropout: every step multiplies the displacement of each neuron by a new random sign [L8].

    δ ← δ - η ∇_δ [ L(f(W_0 + zδ)) + penalty(δ) ],   z_r = ±1 with equal probability, one per neuron.

f(W_0 + zδ) has the linear term Σ z_r a_r σ'(w_r·x)(δ_r·x) of mean zero and an unchanged quadratic term, so training
cannot use the linear term: the network leaves the tangent regime. Predict with `even_part`, the mean over signs for a
model that is quadratic in δ. Bai and Lee, Beyond linearization (ICLR 2020), section 3.2.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.errors import check_positive_integer
from unlazy.theory.dynamics.losses import LOSSES

Moves = Float[Array, "w d"]
Apply = Callable[[Moves, Array], Array]


class TrainedMoves(eqx.Module):
    """Trained displacements δ and training losses.

    Attributes
    ----------
    delta : array of shape (w, d)
        Displacements.
    losses : array of shape (steps,)
        Mean loss L (without the penalty, with random signs) before every step.
    """

    delta: Moves
    losses: Float[Array, " steps"]

    @property
    def diverged(self) -> Array:
        """Whether δ is not finite."""
        return ~jnp.all(jnp.isfinite(self.delta))


def train_moves(
    apply: Apply,
    delta: Moves,
    data: Data,
    *,
    steps: int,
    step_size: ArrayLike,
    penalty: Callable[[Moves], Array] = lambda delta: jnp.zeros((), delta.dtype),
    key: PRNGKeyArray | None,
) -> TrainedMoves:
    """Train the displacements of the neurons by Adam with cosine decay on 2L + penalty, L the mean squared loss.

    Parameters
    ----------
    apply : callable
        Function f(δ, X): a network around its start, or its expansion.
    delta : array of shape (w, d)
        Initial displacements.
    data : Data
        Training points and labels.
    steps : int
        Number of steps.
    step_size : float
        Initial step size.
    penalty : callable, optional
        Function of δ added to 2L, the mean squared error.
    key : PRNG key or None
        Draws the signs; None trains without signed dropout.

    Returns
    -------
    TrainedMoves
        Displacements and training losses.
    """
    check_positive_integer("steps", steps)
    rule = optax.adam(optax.cosine_decay_schedule(step_size, steps))

    def objective(delta: Moves, z: Array) -> tuple[Array, Array]:
        loss = LOSSES["squared"].mean(apply(z[:, None] * delta, data.X), data.y, data.weights)
        return 2 * loss + penalty(delta), loss

    def step(carry: tuple, s: Array) -> tuple[tuple, Array]:
        delta, memory = carry
        z = jnp.ones(delta.shape[0], delta.dtype)
        if key is not None:
            z = jax.random.rademacher(jax.random.fold_in(key, s), z.shape, z.dtype)
        gradient, loss = jax.grad(objective, has_aux=True)(delta, z)
        updates, memory = rule.update(gradient, memory, delta)
        return (optax.apply_updates(delta, updates), memory), loss

    (delta, _), losses = jax.lax.scan(step, (delta, rule.init(delta)), jnp.arange(steps))
    return TrainedMoves(delta, losses)


def even_part(apply: Apply, delta: Moves, X: Float[Array, "n d"]) -> Float[Array, " n *c"]:
    """Return ½(f(δ) + f(-δ)): f without its linear term."""
    return (apply(delta, X) + apply(-delta, X)) / 2


def odd_share(apply: Apply, delta: Moves, X: Float[Array, "n d"]) -> Float[Array, ""]:
    """Return the share of the change of f that is odd in δ: E odd²/(E odd² + E (even - f_0)²)."""
    start, plus, minus = apply(jnp.zeros_like(delta), X), apply(delta, X), apply(-delta, X)
    odd, even = jnp.mean((plus - minus) ** 2) / 4, jnp.mean((plus + minus - 2 * start) ** 2) / 4
    return odd / jnp.maximum(odd + even, jnp.finfo(odd.dtype).tiny)
