"""Training with records at given times: steps or flow, several runs in parallel, progress and checkpoints."""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import is_concrete
from unlazy.core.data import Data
from unlazy.core.fingerprint import fingerprint
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.training.descent.losses import Loss
from unlazy.training.descent.steps import DescentBatches
from unlazy.training.rich import flow
from unlazy.training.rich.estimate import SampledQuantity, over_runs
from unlazy.training.rich.progress import Progress, ProgressReporter


class TrainingRecord(NamedTuple):
    """Record of one time: means over runs with their standard errors."""

    fitted: SampledQuantity
    loss: SampledQuantity
    features: tuple[SampledQuantity, ...]
    gradients: tuple[SampledQuantity, ...]
    tangent: SampledQuantity


class Dynamics(eqx.Module):
    """A system (state and velocity), data in its coordinates, a loss, and the time discretization.

    Gradient descent or flow on the sum Σ_μ ℓ(f_μ, y_μ) over points, in the time of [K3]. With batches, the sum over a
    batch is scaled to all points. Records contain the mean of ℓ over points.
    """

    system: Any
    data: Data
    loss: Loss = eqx.field(static=True)
    step_size: Any
    """None: gradient flow."""
    tolerance: Any
    batch_size: int | None = eqx.field(static=True)
    key: PRNGKeyArray

    def outputs(self, state: Any, X: Array) -> Array:
        """Return f with the shape of the labels."""
        f = self.system.outputs(state, X)
        return f[:, 0] if f.shape[-1] == 1 else f

    def velocity(self, states: Any, batch: Data | None = None) -> Any:
        """Return dθ/dt of every run."""
        some = self.data if batch is None else batch
        share = self.data.n / some.n

        def one(state: Any) -> Any:
            f = self.outputs(state, some.X)
            pull = -jax.grad(lambda f: share * jnp.sum(self.loss.per_point(f, some.y)))(f)
            return self.system.move(state, some.X, pull.reshape(some.n, -1))

        return jax.vmap(one)(states)

    def error_size(self, errors: Any, states: Any) -> Array:
        """Return the error of a step relative to the tolerance, the largest over all runs."""
        zero = jnp.zeros_like(self.outputs(jax.tree.map(lambda leaf: leaf[0], states), self.data.X))
        pull = jax.grad(lambda f: jnp.sum(self.loss.per_point(f, self.data.y)))(zero)
        label = jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(pull))), jnp.finfo(pull.dtype).tiny)
        each = jax.vmap(lambda e, s: self.system.error_size(e, s, self.data.X, label))(errors, states)
        return jnp.max(each) / self.tolerance

    def record(self, states: Any) -> TrainingRecord:
        """Record predictions at the training points, mean loss and kernels."""
        f = jax.vmap(lambda state: self.outputs(state, self.data.X))(states)
        losses = jax.vmap(lambda f: self.loss.mean(f, self.data.y))(f)
        features, gradients, tangent = jax.vmap(lambda state: self.system.kernels(state, self.data.X))(states)
        layers = [tuple(map(over_runs, part)) for part in (features, gradients)]
        return TrainingRecord(over_runs(f), over_runs(losses), layers[0], layers[1], over_runs(tangent))


class DescentClock(NamedTuple):
    """State of plain gradient descent."""

    state: Any
    order: Array
    taken: Array


class TrainingRun(NamedTuple):
    """Result of `train`: records and states at every time, and the number of steps."""

    records: TrainingRecord
    states: Any
    steps: int
    seconds: float


def train(
    dynamics: Dynamics, states: Any, times: np.ndarray, *, keep: bool,
    progress: Progress, checkpoint: str | Path | Checkpoint | None, what: str,
    until_loss: float | None = None,
) -> TrainingRun:  # fmt: skip
    """Train to every recorded time in order, stopping at the first with a mean loss of at most `until_loss`."""
    reporter = ProgressReporter(progress, what, len(times))
    now = _begin(dynamics, states, jnp.asarray(times[1] if len(times) > 1 else times[0] or 1.0, float))
    records: list[TrainingRecord] = []
    kept: list[Any] = []
    first = 0
    file = _file(checkpoint, dynamics, states, times)
    if file is not None and (earlier := file.load()) is not None:
        first, now, records, kept = _restored(earlier, now, dynamics, keep)
    for i in range(first, len(times)):
        if _ended(records, until_loss):
            break
        now = _advance(dynamics, now, jnp.asarray(times[i], float if dynamics.step_size is None else jnp.int32))
        records.append(_record(dynamics, now.state))
        kept.append(now.state if keep else None)
        reporter.report(i + 1, f"t = {times[i]:g}")
        if file is not None:
            last = i == len(times) - 1 or _ended(records, until_loss)
            file.save(lambda: _state(i, now, records, kept), now=last)  # noqa: B023
    reporter.close()
    # on the host, so that another number of times needs no compilation
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves) if is_concrete(leaves) else jnp.stack(leaves), *records)
    path = jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept) if keep else None
    return TrainingRun(stacked, path, int(now.taken), reporter.seconds)


def _ended(records: list[TrainingRecord], until_loss: float | None) -> bool:
    """Whether the last recorded mean loss is at most `until_loss`."""
    return until_loss is not None and bool(records) and bool(records[-1].loss.value <= until_loss)


def _begin(dynamics: Dynamics, states: Any, first: Array) -> Any:
    """Return the clock before the first step."""
    if dynamics.step_size is None:
        return jax.jit(lambda d, s: flow.begin(d.velocity, s, first))(dynamics, states)
    batches = DescentBatches(dynamics.data, dynamics.batch_size, dynamics.key)
    return DescentClock(states, batches.first_order(), jnp.zeros((), jnp.int32))


@jax.jit
def _advance(dynamics: Dynamics, now: Any, until: Array) -> Any:
    """Advance the clock to a time or number of steps."""
    if dynamics.step_size is None:
        return flow.flow(dynamics.velocity, dynamics.error_size, now, until)
    batches = DescentBatches(dynamics.data, dynamics.batch_size, dynamics.key)

    def once(now: DescentClock) -> DescentClock:
        order, batch = batches.draw(now.order, now.taken)
        slope = dynamics.velocity(now.state, batch)
        moved = jax.tree.map(lambda s, v: s + dynamics.step_size * v, now.state, slope)
        return DescentClock(moved, order, now.taken + 1)

    return jax.lax.while_loop(lambda now: now.taken < until, once, now)


@jax.jit
def _record(dynamics: Dynamics, states: Any) -> TrainingRecord:
    """Record the state, compiled."""
    return dynamics.record(states)


def _file(checkpoint: Any, dynamics: Dynamics, states: Any, times: np.ndarray) -> Checkpoint | None:
    """Return the checkpoint with the fingerprint of this problem."""
    if checkpoint is None:
        return None
    given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    problem = {"system": fingerprint(dynamics.system, dynamics.tolerance, dynamics.step_size, dynamics.batch_size),
               "data": fingerprint(dynamics.data, dynamics.loss.name), "start": fingerprint(jax.tree.leaves(states)),
               "times": fingerprint(times)}  # fmt: skip
    return Checkpoint(given.path, given.every, problem)


def _state(i: int, now: Any, records: list, kept: list) -> dict[str, np.ndarray]:
    """Return the arrays of the checkpoint by name."""
    leaves = {f"now.{j}": np.asarray(leaf) for j, leaf in enumerate(jax.tree.leaves(now))}
    for name, rows in (("record", records), ("kept", kept)):
        for j, row in enumerate(rows):
            leaves |= {f"{name}.{j}.{l}": np.asarray(leaf) for l, leaf in enumerate(jax.tree.leaves(row))}
    return leaves | {"done": np.asarray(i + 1)}


def _restored(earlier: dict[str, np.ndarray], now: Any, dynamics: Dynamics, keep: bool) -> tuple:
    """Restore index, clock, records and states from a checkpoint."""
    done = int(earlier["done"].item())

    def rebuilt(prefix: str, like: Any) -> Any:
        leaves, shape = jax.tree.flatten(like)
        kept = [jnp.asarray(earlier[f"{prefix}.{j}"]).reshape(leaf.shape) for j, leaf in enumerate(leaves)]
        return jax.tree.unflatten(shape, kept)

    like = jax.eval_shape(dynamics.record, now.state)
    records = [rebuilt(f"record.{i}", like) for i in range(done)]
    kept = [rebuilt(f"kept.{i}", now.state) if keep else None for i in range(done)]
    return done, rebuilt("now", now), records, kept


def relative_error(estimate: SampledQuantity) -> Float[Array, ""]:
    """Return the root mean square of the standard errors relative to that of the values, over all times."""
    size = jnp.sqrt(jnp.mean(jnp.square(estimate.value)))
    return jnp.sqrt(jnp.mean(jnp.square(estimate.error))) / jnp.where(size > 0, size, 1)
