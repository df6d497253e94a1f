"""Training with records at given times: steps or flow, several runs in parallel, progress and checkpoints."""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from unlazy.core.arrays import is_concrete
from unlazy.core.dataset import Data
from unlazy.core.devices import memory_budget
from unlazy.core.fingerprint import fingerprint
from unlazy.core.progress import ProgressDisplay
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers.checkpoint import Checkpoint, as_checkpoint
from unlazy.theory.dynamics.losses import Loss, resolve_loss
from unlazy.training.descent.step import DescentBatches
from unlazy.training.options import RichOptions
from unlazy.training.rich import flow
from unlazy.training.rich.standard_errors import SampledQuantity, over_runs

QUIET_SECONDS = 3.0
"""Runs shorter than this show no progress."""


class TrainingRecord(NamedTuple):
    """Record of one time: means over runs with their standard errors."""

    fitted: SampledQuantity
    loss: SampledQuantity
    features: tuple[SampledQuantity, ...]
    gradients: tuple[SampledQuantity, ...]
    tangent: SampledQuantity


@runtime_checkable
class System(Protocol):
    """A network: two layers of infinite width, or finite."""

    def outputs(self, state: PyTree, X: Array) -> Array:
        """Return f at the inputs."""

    def move(self, state: PyTree, X: Array, pull: Array) -> PyTree:
        """Return the velocities of a state for -∂ℓ/∂f."""

    def kernels(self, state: PyTree, X: Array) -> tuple[tuple, tuple, Array]:
        """Return Φ^l and G^l of every hidden layer, and Θ."""

    def error_size(self, error: PyTree, state: PyTree, X: Array, label: Array) -> Array:
        """Return the size of an error of the state, relative to the labels."""

    def predict(self, states: PyTree, Z: Array) -> Array:
        """Return f of every run at any points."""

    def kernel(self, states: PyTree) -> Kernel:
        """Return the tangent kernel, averaged over runs."""


class Dynamics(eqx.Module):
    """A system (state and velocity), data in its coordinates, a loss ℓ, and the time discretization.

    Gradient descent or flow on the mean loss L, in the time of [K3]: dθ/dt = -n∇L. Records contain L.
    """

    system: System
    data: Data
    loss: Loss = eqx.field(static=True)
    step_size: float | None
    """Time of one step; None: gradient flow."""
    tolerance: float
    batch_size: int | None = eqx.field(static=True)
    key: PRNGKeyArray

    @classmethod
    def create(
        cls, system: System, data: Data, loss: str | Loss, step_size: float | None, options: RichOptions,
        key: PRNGKeyArray,
    ) -> "Dynamics":  # fmt: skip
        """Return the dynamics with a step size on the mean loss."""
        batch_size = check_batch(options.batch_size, step_size, data.n)
        time = None if step_size is None else step_size / data.n
        return cls(system, data, resolve_loss(loss), time, options.tolerance, batch_size, key)

    def outputs(self, state: PyTree, X: Array) -> Array:
        """Return f with the shape of the labels."""
        f = self.system.outputs(state, X)
        return f[:, 0] if f.shape[-1] == 1 else f

    def velocity(self, states: PyTree, batch: Data | None = None) -> PyTree:
        """Return dθ/dt = -n∇L of every run."""
        some = self.data if batch is None else batch

        def one(state: PyTree) -> PyTree:
            f = self.outputs(state, some.X)
            pull = -jax.grad(lambda f: self.data.n * self.loss.mean(f, some.y))(f)
            return self.system.move(state, some.X, pull.reshape(some.n, -1))

        return jax.vmap(one)(states)

    def error_size(self, errors: PyTree, states: PyTree) -> Array:
        """Return the error of a step relative to the tolerance, the largest over all runs."""
        zero = jnp.zeros_like(self.outputs(jax.tree.map(lambda leaf: leaf[0], states), self.data.X))
        pull = jax.grad(lambda f: jnp.sum(self.loss.per_point(f, self.data.y)))(zero)
        label = jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(pull))), jnp.finfo(pull.dtype).tiny)
        each = jax.vmap(lambda e, s: self.system.error_size(e, s, self.data.X, label))(errors, states)
        return jnp.max(each) / self.tolerance

    def record(self, states: PyTree) -> TrainingRecord:
        """Record predictions at the training points, mean loss and kernels."""
        f = jax.vmap(lambda state: self.outputs(state, self.data.X))(states)
        losses = jax.vmap(lambda f: self.loss.mean(f, self.data.y))(f)
        features, gradients, tangent = jax.vmap(lambda state: self.system.kernels(state, self.data.X))(states)
        layers = [tuple(map(over_runs, part)) for part in (features, gradients)]
        return TrainingRecord(over_runs(f), over_runs(losses), layers[0], layers[1], over_runs(tangent))


class DescentClock(NamedTuple):
    """State of plain gradient descent."""

    state: PyTree
    order: Array
    taken: Array


Clock = DescentClock | flow.FlowClock


class TrainingRun(NamedTuple):
    """Result of `train`: records and states at every time, and the number of steps."""

    records: TrainingRecord
    states: PyTree
    steps: int
    seconds: float


def train(dynamics: Dynamics, states: PyTree, times: np.ndarray, options: RichOptions, what: str) -> TrainingRun:
    """Train to every recorded time in order, stopping at the first with a mean loss of at most `stop_below`."""
    keep, stop_below = options.keep_states, options.stop_below
    _check_memory(states, len(times), keep)
    now = _begin(dynamics, states, jnp.asarray(times[1] if len(times) > 1 else times[0] or 1.0, float))
    records: list[TrainingRecord] = []
    kept: list[PyTree] = []
    first = 0
    problem = {"system": fingerprint(dynamics.system, dynamics.tolerance, dynamics.step_size, dynamics.batch_size),
               "data": fingerprint(dynamics.data, dynamics.loss.name), "start": fingerprint(jax.tree.leaves(states)),
               "times": fingerprint(times)}  # fmt: skip
    file = checkpoint_of(options, problem)
    if file is not None and (earlier := file.load()) is not None:
        first, now, records, kept = _restored(earlier, now, dynamics, keep)
    with ProgressDisplay(what, len(times), show=options.progress, delay=QUIET_SECONDS) as shown:
        for i in range(first, len(times)):
            if _ended(records, stop_below):
                break
            now = _advance(dynamics, now, jnp.asarray(times[i], float if dynamics.step_size is None else jnp.int32))
            records.append(_record(dynamics, now.state))
            kept.append(now.state if keep else None)
            shown.advance(f"t = {times[i]:g}", 1 if i > first else i + 1)
            if file is not None:
                last = i == len(times) - 1 or _ended(records, stop_below)
                file.save(lambda: _state(i, now, records, kept), now=last)  # noqa: B023
    # on the host, so that another number of times needs no compilation
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves) if is_concrete(leaves) else jnp.stack(leaves), *records)
    path = jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept) if keep else None
    return TrainingRun(stacked, path, int(now.taken), shown.seconds)


def _ended(records: list[TrainingRecord], stop_below: float | None) -> bool:
    """Whether the last recorded mean loss is at most `stop_below`."""
    return stop_below is not None and bool(records) and bool(records[-1].loss.value <= stop_below)


def _begin(dynamics: Dynamics, states: PyTree, first: Array) -> Clock:
    """Return the clock before the first step."""
    if dynamics.step_size is None:
        return jax.jit(lambda d, s: flow.begin(d.velocity, s, first))(dynamics, states)
    batches = DescentBatches(dynamics.data, dynamics.batch_size, dynamics.key)
    return DescentClock(states, batches.first_order(), jnp.zeros((), jnp.int32))


@jax.jit
def _advance(dynamics: Dynamics, now: Clock, until: Array) -> Clock:
    """Advance the clock to a time or number of steps."""
    if isinstance(now, flow.FlowClock):
        return flow.flow(dynamics.velocity, dynamics.error_size, now, until)
    batches = DescentBatches(dynamics.data, dynamics.batch_size, dynamics.key)

    def once(now: DescentClock) -> DescentClock:
        order, batch = batches.draw(now.order, now.taken)
        slope = dynamics.velocity(now.state, batch)
        moved = jax.tree.map(lambda s, v: s + dynamics.step_size * v, now.state, slope)
        return DescentClock(moved, order, now.taken + 1)

    return jax.lax.while_loop(lambda now: now.taken < until, once, now)


@jax.jit
def _record(dynamics: Dynamics, states: PyTree) -> TrainingRecord:
    """Record the state, compiled."""
    return dynamics.record(states)


def checkpoint_of(options: RichOptions, problem: dict[str, str]) -> Checkpoint | None:
    """Return the checkpoint with the fingerprint of this problem."""
    if options.checkpoint is None:
        return None
    given = as_checkpoint(options.checkpoint)
    return Checkpoint(given.path, given.every, problem)


def check_batch(batch_size: int | None, step_size: float | None, n: int) -> int | None:
    """Return the validated batch size; batches need plain steps."""
    if batch_size is not None and step_size is None:
        raise ValueError(f"batches need plain steps: pass a step_size, or no batch_size; got batch_size={batch_size}")
    if batch_size is not None and batch_size > n:
        raise ValueError(f"batch_size must be at most the {n} training points, got {batch_size}")
    return batch_size


def _check_memory(states: PyTree, times: int, keep: bool) -> None:
    """Raise ValueError if the stored states do not fit in the memory budget."""
    need, budget = times * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states)), memory_budget()
    if keep and need > budget:
        raise ValueError(
            f"the states of {times} times take {need / 2**30:.2g} GiB and the memory budget is {budget / 2**30:.2g} "
            "GiB: use fewer times or draws, or keep_states=False (no predictions at new points)"
        )


def _state(i: int, now: Clock, records: list, kept: list) -> dict[str, np.ndarray]:
    """Return the arrays of the checkpoint by name."""
    leaves = {f"now.{j}": np.asarray(leaf) for j, leaf in enumerate(jax.tree.leaves(now))}
    for name, rows in (("record", records), ("kept", kept)):
        for j, row in enumerate(rows):
            leaves |= {f"{name}.{j}.{l}": np.asarray(leaf) for l, leaf in enumerate(jax.tree.leaves(row))}
    return leaves | {"done": np.asarray(i + 1)}


def _restored(earlier: dict[str, np.ndarray], now: Clock, dynamics: Dynamics, keep: bool) -> tuple:
    """Restore index, clock, records and states from a checkpoint."""
    done = int(earlier["done"].item())

    def rebuilt(prefix: str, like: PyTree) -> PyTree:
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


def training_evidence(error: float, sampling: str, steps: int, flow: bool, seconds: float, tag: str) -> Evidence:
    """Return the evidence of a training; `residual` is the relative standard error of f, NaN if it diverged."""
    notes = () if np.isfinite(error) else ("training diverged: use a smaller step_size, or None for gradient flow",)
    solved = f"gradient {'flow' if flow else 'descent'} on the mean of ℓ(f, y) at infinite width [{tag}]"
    method = f"{sampling}, {steps} {'adaptive steps' if flow else 'steps'}"
    return Evidence(error, steps=steps, seconds=seconds, description=FitDescription(solved, method, notes=notes))
