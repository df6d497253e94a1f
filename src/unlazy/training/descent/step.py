"""One step of gradient descent and its state: batches, optimizer state, stopping flags."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray, PyTree

from unlazy.core.dataset import Data
from unlazy.training.options import GradientTransformation

RUNNING, STOPPED, DIVERGED = np.int32(0), np.int32(1), np.int32(2)


class DescentState(NamedTuple):
    """State carried from step to step."""

    params: PyTree
    memory: PyTree
    order: Array
    """Order of the training points in the current epoch."""
    status: Array
    steps: Array
    loss: Array


Best = tuple[Array, PyTree, Array]
"""Best value of a measure, its parameters, and the number of records since then."""


class DescentBatches(NamedTuple):
    """Training points in a random order that is drawn anew each epoch; all points if `size` is None."""

    data: Data
    size: int | None
    key: PRNGKeyArray | None
    label_noise: ArrayLike = 0.0
    """Labels are shifted by ± this amount, drawn anew at every step [L11]."""

    def draw(self, order: Array, s: Array) -> tuple[Array, Data]:
        """Return the order of the points and the batch of step s."""
        order, batch = self._rows(order, s)
        if is_zero(self.label_noise):
            return order, batch
        assert self.key is not None
        key = jax.random.fold_in(jax.random.split(self.key)[0], s)
        signs = jax.random.rademacher(key, batch.y.shape, batch.y.dtype)
        return order, Data(batch.X, batch.y + self.label_noise * signs, batch.weights)

    def _rows(self, order: Array, s: Array) -> tuple[Array, Data]:
        """Return the order of the points and the rows of step s, without label noise."""
        if self.size is None:
            return order, self.data
        per_epoch = self.data.n // self.size
        # the condition depends only on the step, so that it stays a branch under vmap over seeds
        order = jax.lax.cond(s % per_epoch == 0, lambda: self._shuffled(s // per_epoch), lambda: order)
        rows = jax.lax.dynamic_slice_in_dim(order, (s % per_epoch) * self.size, self.size)
        return order, jax.tree.map(lambda part: part[rows], self.data)

    def first_order(self) -> Array:
        """Return a placeholder for the order before the first epoch."""
        return jnp.arange(0 if self.size is None else self.data.n)

    def _shuffled(self, epoch: Array) -> Array:
        assert self.key is not None
        return jax.random.permutation(jax.random.fold_in(self.key, epoch), self.data.n)


@dataclass(frozen=True, eq=False)
class Stepper:
    """θ ← θ + r·update(∇L + λθ), unless the loss has diverged or is small enough to stop."""

    objective: Callable[[PyTree, Data], Array]
    rule: GradientTransformation
    rates: PyTree
    decay: PyTree
    limit: Array
    stop_below: ArrayLike | None
    batches: DescentBatches

    def start(self, params: PyTree, loss: Array) -> DescentState:
        """Return the state before the first step."""
        order, status = self.batches.first_order(), jnp.asarray(RUNNING)
        return DescentState(params, self.rule.init(params), order, status, jnp.int32(0), loss)

    def __call__(self, state: DescentState, s: Array) -> tuple[DescentState, Array]:
        """Take step s; return the new state and the loss before the step."""
        order, batch = self.batches.draw(state.order, s)
        loss, gradient = jax.value_and_grad(self.objective)(state.params, batch)
        status = jnp.where(loss <= self.limit, RUNNING, DIVERGED)  # also diverged for NaN
        if self.stop_below is not None:
            status = jnp.where((status == RUNNING) & (loss <= self.stop_below), STOPPED, status)
        status = jnp.where(state.status == RUNNING, status, state.status)
        gradient = jax.tree.map(lambda g, c, p: g if is_zero(c) else g + c * p, gradient, self.decay, state.params)
        updates, memory = self.rule.update(gradient, state.memory, state.params)
        moved = jax.tree.map(lambda p, r, u: p + jnp.asarray(r * u, p.dtype), state.params, self.rates, updates)
        go = status == RUNNING
        loss = jnp.where(state.status == RUNNING, loss, state.loss)
        keep = (_where(go, moved, state.params), _where(go, memory, state.memory))
        return DescentState(*keep, order, status, state.steps + go.astype(jnp.int32), loss), loss

    def run(self, state: DescentState, first: Array, count: int) -> tuple[DescentState, Array]:
        """Take `count` steps and return the loss before each.

        With `stop_below`, a loop that ends early (under vmap when every seed has stopped); otherwise a loop of fixed
        length, which compiles to a smaller program.
        """
        if self.stop_below is None:
            return jax.lax.cond(
                state.status == RUNNING,
                lambda state: jax.lax.scan(self, state, first + jnp.arange(count)),
                lambda state: (state, jnp.full((count,), state.loss)),
                state,
            )

        def unfinished(carry: tuple[DescentState, Array, Array]) -> Array:
            return (carry[2] < count) & (carry[0].status == RUNNING)

        def once(carry: tuple[DescentState, Array, Array]) -> tuple[DescentState, Array, Array]:
            state, losses, i = carry
            state, loss = self(state, first + i)
            return state, losses.at[i].set(loss), i + 1

        losses = jnp.full((count,), state.loss)
        state, losses, i = jax.lax.while_loop(unfinished, once, (state, losses, jnp.int32(0)))
        return state, jnp.where(jnp.arange(count) < i, losses, state.loss)


def track_best(best: Best, state: DescentState, value: Array, patience: int) -> tuple[Best, DescentState]:
    """Update the best value of a measure; the status becomes STOPPED after `patience` records without improvement."""
    low, params, waited = best
    better = value < low
    waited = jnp.where(better, 0, waited + 1).astype(jnp.int32)
    status = jnp.where((waited >= patience) & (state.status == RUNNING), STOPPED, state.status)
    best = (jnp.where(better, value, low), _where(better, state.params, params), waited)
    return best, state._replace(status=status)


def is_zero(value: object) -> bool:
    """Whether a value is known to be zero while tracing: a Python number."""
    return isinstance(value, int | float) and value == 0


def _where(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
