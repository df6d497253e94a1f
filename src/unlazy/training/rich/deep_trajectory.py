"""A deep network of infinite width along its training [M3], as a trajectory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import Matrix, Points, points
from unlazy.core.fingerprint import fingerprint
from unlazy.core.precision import precision
from unlazy.core.results import Evidence, Words, place
from unlazy.kernels.base import Kernel
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss
from unlazy.training.rich.deep import DeepLimit, Moment
from unlazy.training.rich.deep_schedule import advance, begin, check_memory, flow_plan, steps_plan
from unlazy.training.rich.dynamics import relative_error
from unlazy.training.rich.estimate import Estimate, on_host, over_runs
from unlazy.training.rich.progress import Progress, Teller


class DeepKernel(Kernel):
    """Θ, summed over outputs, at one moment, any points: each block follows both sides along a training of its own."""

    limit: DeepLimit
    moment: int = eqx.field(static=True)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        count, n = self.limit.X.shape[0], left.shape[0]
        both = jnp.concatenate([left, right]).astype(self.limit.X.dtype)
        Theta = jnp.mean(self.limit.follow(both).tangent[:, self.moment], 0)
        return Theta[count : count + n, count + n :].astype(left.dtype)


class DeepTrajectory(eqx.Module):
    """Predictions, losses and moving kernels along flow or steps of descent; estimates as in `RichTrajectory`.

    New points are followed along the whole training, so predictions there cost as much as the training did.
    """

    limit: DeepLimit
    times: Float[Array, " t"] | Int[Array, " t"]
    """Of gradient flow, or numbers of steps."""
    marks: tuple[int, ...] = eqx.field(static=True)
    """Which of the limit's moments the times are."""
    fitted: Estimate
    losses: Estimate
    features: tuple[Estimate, ...]
    gradients: tuple[Estimate, ...]
    tangent: Estimate
    evidence: Evidence
    outputs: tuple[int, ...] = eqx.field(static=True)

    @property
    def X(self) -> Float[Array, "n d"]:
        return self.limit.X

    def predict(self, Z: Points, t: Any = None) -> Float[Matrix, "..."]:
        """f at Z at the last time, or at t, one or several of `times`: shape (*t, m, *outputs)."""
        return self.estimate(Z, t).value

    def estimate(self, Z: Points, t: Any = None) -> Estimate:
        """The same with its standard error."""
        at = np.asarray(self.marks)[-1 if t is None else place(self.times, t)]
        with precision(self.fitted.value.dtype.name):
            found = _followed(self.limit, points(Z, "Z", self.fitted.value.dtype)).f
            f = found[:, at, self.limit.X.shape[0] :]
            return on_host(_over_runs(f.reshape(*f.shape[:-1], *self.outputs)))

    def kernel_at(self, t: Any) -> DeepKernel:
        """The tangent kernel at time t."""
        return DeepKernel(self.limit, self.marks[int(place(self.times, t))])


def deep_limit(
    network: MLP, X: Array, y: Array, *, outputs: tuple[int, ...], richness: float, times: np.ndarray,
    step_size: float | None, batch_size: int | None, loss: Loss, draws: int, runs: int, quasi: bool, tolerance: float,
    progress: Progress, checkpoint: str | Path | Checkpoint | None, key: PRNGKeyArray,
) -> DeepTrajectory:  # fmt: skip
    """Every moment in one pass [M3], one run after the other: a run's past is as large as memory allows."""
    if network.skips:
        raise ValueError("the rich limit has no skips: take residual=0")
    none = jnp.zeros((1, 1), X.dtype), jnp.ones((1, X.shape[0]), X.dtype)
    limit = DeepLimit(network, X, y, richness, *none, loss, draws, runs, quasi, key)
    teller = Teller(progress, "deep rich limit", len(limit.keys) * len(times))
    if step_size is None:
        plan = flow_plan(limit, times, tolerance)
    else:
        plan = steps_plan(times, step_size, X.shape[0], batch_size, jax.random.split(key)[1])
    limit = replace(limit, plan=jnp.asarray(plan.rows, X.dtype), shares=jnp.asarray(plan.shares, X.dtype))
    check_memory(limit, len(plan.rows))
    found = _trained(limit, plan.marks, times, teller, checkpoint)
    steps = int(times[-1]) if step_size is not None else int(plan.marks[-1]) // 3
    f = found.f.reshape(*found.f.shape[:-1], *outputs)
    losses = jax.vmap(jax.vmap(lambda f: loss.mean(f, y)))(f)
    evidence = _evidence(limit, _over_runs(f), steps, "steps" if step_size else "adaptive steps", teller.seconds)
    features, gradients = (on_host(tuple(map(_over_runs, part))) for part in (found.features, found.gradients))
    path = [on_host(_over_runs(part)) for part in (f, losses, found.tangent)]
    marks = tuple(map(int, plan.marks))
    return DeepTrajectory(
        limit, jnp.asarray(times), marks, path[0], path[1], features, gradients, path[2], evidence, outputs
    )


def _evidence(limit: DeepLimit, fitted: Estimate, steps: int, kind: str, seconds: float) -> Evidence:
    finite = bool(jnp.all(jnp.isfinite(fitted.value)))
    error = (0.0 if limit.linear else float(relative_error(fitted))) if finite else float("nan")
    notes = () if finite else ("training diverged: take a smaller step_size, or None for the flow",)
    drawn = f"{limit.runs} × {limit.draws} draws of every layer"
    how = "second moments, exact for a linear network" if limit.linear else drawn
    words = Words("descent on Σ ℓ(f, y) at infinite width [M3]", f"{how}, {steps} {kind}", notes=notes)
    return Evidence(error, steps=steps, seconds=seconds, words=words)


def _trained(limit: DeepLimit, marks: np.ndarray, times: np.ndarray, teller: Teller, checkpoint: Any) -> Moment:
    """What is known at the marks: leading axes are runs and times. Finished runs are kept in the file."""
    file = _file(checkpoint, limit, times)
    earlier = None if file is None else file.load()
    finished: list[Moment] = []
    for r, key in enumerate(limit.keys):
        if earlier is not None and f"{r}.0" in earlier:
            like, shape = jax.tree.flatten(jax.eval_shape(limit.follow))
            leaves = [jnp.asarray(earlier[f"{r}.{j}"]) for j in range(len(like))]
            finished.append(jax.tree.unflatten(shape, leaves))
            continue
        run, start = begin(limit, key)
        seen = []
        for i, mark in enumerate(marks):
            run, moment = advance(limit, run, start, jnp.asarray(mark, jnp.int32))
            seen.append(moment)
            teller.tell(r * len(marks) + i + 1, f"run {r + 1}, t = {times[i]:g}")
        finished.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen))
        if file is not None:
            file.keep(lambda: _leaves(finished), now=True)
    teller.close()
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *finished)


def _leaves(finished: list[Moment]) -> dict[str, np.ndarray]:
    return {
        f"{r}.{j}": np.asarray(leaf) for r, run in enumerate(finished) for j, leaf in enumerate(jax.tree.leaves(run))
    }


def _file(checkpoint: Any, limit: DeepLimit, times: np.ndarray) -> Checkpoint | None:
    if checkpoint is None:
        return None
    given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    key = np.asarray(jax.random.key_data(limit.key))
    problem = {"system": fingerprint(limit.network, limit.richness, limit.draws, limit.runs, limit.quasi, key),
               "data": fingerprint(limit.X, limit.y, limit.loss.name), "times": fingerprint(times),
               "steps": fingerprint(limit.plan, limit.shares)}  # fmt: skip
    return Checkpoint(given.path, given.every, problem)


def _over_runs(values: Array) -> Estimate:
    """A linear network's one run is exact: its error is zero."""
    return Estimate(values[0], jnp.zeros_like(values[0])) if values.shape[0] == 1 else over_runs(values)


@jax.jit
def _followed(limit: DeepLimit, Z: Any) -> Moment:
    return limit.follow(Z)
