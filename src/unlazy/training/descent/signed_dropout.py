"""Signed dropout: every step multiplies each neuron's move by a fresh random sign [L8].

    δ ← δ - η ∇_δ [ L(f(W_0 + zδ)) + penalty(δ) ],   z_r = ±1 with equal chance, one per neuron.

f(W_0 + zδ) has the linear part Σ z_r a_r σ'(w_r·x)(δ_r·x), of mean zero, and the quadratic part unchanged, so training
cannot use the linear part: the network leaves the tangent regime. Predict with `even_part`, the mean over signs for a
model that is quadratic in δ. Bai and Lee, Beyond linearization (ICLR 2020), section 3.2.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.measures.risk import risk

Moves = Float[Array, "w d"]
Apply = Callable[[Moves, Array], Array]


class Trained(eqx.Module):
    """The moves, and the training loss (penalty left out, signs as drawn) before every step."""

    delta: Moves
    losses: Float[Array, " steps"]

    @property
    def diverged(self) -> Array:
        return ~jnp.all(jnp.isfinite(self.delta))


def train_moves(
    apply: Apply,
    delta: Moves,
    data: Data,
    *,
    steps: int,
    rate: Any,
    signs: PRNGKeyArray | None,
    penalty: Callable[[Moves], Array] = lambda delta: jnp.zeros((), delta.dtype),
) -> Trained:
    """Adam with cosine decay on the moves of the neurons; `signs` is the key of signed dropout, None trains plainly.

    `apply(delta, X)` is the function of the moves: a network around its start, or its expansion.
    """
    check_positive_integer("steps", steps)
    rule = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def objective(delta: Moves, z: Array) -> tuple[Array, Array]:
        loss = risk(apply(z[:, None] * delta, data.X), data.y, data.weights)
        return loss + penalty(delta), loss

    def step(carry: tuple, s: Array) -> tuple[tuple, Array]:
        delta, memory = carry
        z = jnp.ones(delta.shape[0], delta.dtype)
        if signs is not None:
            z = jax.random.rademacher(jax.random.fold_in(signs, s), z.shape, z.dtype)
        gradient, loss = jax.grad(objective, has_aux=True)(delta, z)
        updates, memory = rule.update(gradient, memory, delta)
        return (optax.apply_updates(delta, updates), memory), loss

    (delta, _), losses = jax.lax.scan(step, (delta, rule.init(delta)), jnp.arange(steps))
    return Trained(delta, losses)


def even_part(apply: Apply, delta: Moves, X: Float[Array, "n d"]) -> Float[Array, "n *c"]:
    """½(f(δ) + f(-δ)): f without its linear part."""
    return (apply(delta, X) + apply(-delta, X)) / 2


def odd_share(apply: Apply, delta: Moves, X: Float[Array, "n d"]) -> Float[Array, ""]:
    """Share of the change of the function that is odd in δ: E odd²/(E odd² + E (even - f_0)²)."""
    start, plus, minus = apply(jnp.zeros_like(delta), X), apply(delta, X), apply(-delta, X)
    odd, even = jnp.mean((plus - minus) ** 2) / 4, jnp.mean((plus + minus - 2 * start) ** 2) / 4
    return odd / jnp.maximum(odd + even, jnp.finfo(odd.dtype).tiny)
