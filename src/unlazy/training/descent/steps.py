"""One step of descent and what it carries: batches, the optimizer's memory, the flags that end it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from unlazy.core.data import Data

RUNNING, STOPPED, DIVERGED = np.int32(0), np.int32(1), np.int32(2)


class State(NamedTuple):
    """What a step reads and writes."""

    params: Any
    memory: Any
    order: Array
    """The epoch's order of the training points."""
    status: Array
    steps: Array
    loss: Array


class Batches(NamedTuple):
    """Training points in a random order that is drawn anew each epoch; all of them where no size is given."""

    data: Data
    size: int | None
    key: Any
    label_noise: Any = 0.0
    """Labels of a step are off by so much, up or down, drawn anew every time [L11]."""

    def draw(self, order: Array, s: Array) -> tuple[Array, Data]:
        order, batch = self._rows(order, s)
        if is_zero(self.label_noise):
            return order, batch
        signs = jax.random.rademacher(
            jax.random.fold_in(jax.random.split(self.key)[0], s), batch.y.shape, batch.y.dtype
        )
        return order, Data(batch.X, batch.y + self.label_noise * signs, batch.weights)

    def _rows(self, order: Array, s: Array) -> tuple[Array, Data]:
        if self.size is None:
            return order, self.data
        per_epoch = self.data.n // self.size
        # the condition depends on the step alone, so that vmap over seeds keeps it a branch
        order = jax.lax.cond(s % per_epoch == 0, lambda: self._shuffled(s // per_epoch), lambda: order)
        rows = jax.lax.dynamic_slice_in_dim(order, (s % per_epoch) * self.size, self.size)
        return order, jax.tree.map(lambda part: part[rows], self.data)

    def first_order(self) -> Array:
        return jnp.arange(0 if self.size is None else self.data.n)

    def _shuffled(self, epoch: Array) -> Array:
        return jax.random.permutation(jax.random.fold_in(self.key, epoch), self.data.n)


@dataclass(frozen=True, eq=False)
class Stepper:
    """θ ← θ + r·update(∇L + λθ), unless the loss says stop."""

    objective: Callable[[Any, Data], Array]
    rule: optax.GradientTransformation
    rates: Any
    decay: Any
    limit: Array
    stop_below: Any
    batches: Batches

    def start(self, params: Any, loss: Array) -> State:
        order, status = self.batches.first_order(), jnp.asarray(RUNNING)
        return State(params, self.rule.init(params), order, status, jnp.int32(0), loss)

    def __call__(self, state: State, s: Array) -> tuple[State, Array]:
        order, batch = self.batches.draw(state.order, s)
        loss, gradient = jax.value_and_grad(self.objective)(state.params, batch)
        status = jnp.where(loss <= self.limit, RUNNING, DIVERGED)  # not a number is not ≤ either
        if self.stop_below is not None:
            status = jnp.where((status == RUNNING) & (loss <= self.stop_below), STOPPED, status)
        status = jnp.where(state.status == RUNNING, status, state.status)
        gradient = jax.tree.map(lambda g, c, p: g if is_zero(c) else g + c * p, gradient, self.decay, state.params)
        updates, memory = self.rule.update(gradient, state.memory, state.params)
        moved = jax.tree.map(lambda p, r, u: p + jnp.asarray(r * u, p.dtype), state.params, self.rates, updates)
        go = status == RUNNING
        loss = jnp.where(state.status == RUNNING, loss, state.loss)
        keep = (_where(go, moved, state.params), _where(go, memory, state.memory))
        return State(*keep, order, status, state.steps + go.astype(jnp.int32), loss), loss

    def many(self, state: State, first: Array, count: int) -> tuple[State, Array]:
        """`count` steps and the loss before each. Where a loss to stop at was given, a loop that ends there (under vmap
        when every seed has stopped), else one of fixed length, which compiles to less."""
        if self.stop_below is None:
            return jax.lax.cond(
                state.status == RUNNING,
                lambda state: jax.lax.scan(self, state, first + jnp.arange(count)),
                lambda state: (state, jnp.full((count,), state.loss)),
                state,
            )

        def unfinished(carry: tuple[State, Array, Array]) -> Array:
            return (carry[2] < count) & (carry[0].status == RUNNING)

        def once(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
            state, losses, i = carry
            state, loss = self(state, first + i)
            return state, losses.at[i].set(loss), i + 1

        losses = jnp.full((count,), state.loss)
        state, losses, i = jax.lax.while_loop(unfinished, once, (state, losses, jnp.int32(0)))
        return state, jnp.where(jnp.arange(count) < i, losses, state.loss)


def watch(best: Any, state: State, value: Array, patience: int) -> tuple[Any, State]:
    """The best value of a measure, its parameters, and how many records ago; stops when that is `patience`."""
    low, params, waited = best
    better = value < low
    waited = jnp.where(better, 0, waited + 1).astype(jnp.int32)
    status = jnp.where((waited >= patience) & (state.status == RUNNING), STOPPED, state.status)
    best = (jnp.where(better, value, low), _where(better, state.params, params), waited)
    return best, state._replace(status=status)


def is_zero(value: object) -> bool:
    """Known to be zero while tracing: a plain number."""
    return isinstance(value, int | float) and value == 0


def _where(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
