"""Trajectory of a deep network of infinite width during training [M3]."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import Matrix, Points, as_points
from unlazy.core.fingerprint import fingerprint
from unlazy.core.precision import precision
from unlazy.core.results import Evidence, FitDescription, time_index
from unlazy.kernels.base import Kernel
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss
from unlazy.training.rich.deep import DeepLimit, Moment
from unlazy.training.rich.deep_schedule import advance, begin, check_memory, flow_schedule, step_schedule
from unlazy.training.rich.dynamics import relative_error
from unlazy.training.rich.estimate import SampledQuantity, on_host, over_runs
from unlazy.training.rich.progress import Progress, ProgressReporter


class DeepKernel(Kernel):
    """Θ, summed over outputs, at one moment and at any points; each block repeats the training for its points."""

    limit: DeepLimit
    moment: int = eqx.field(static=True)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return Θ between two sets of points."""
        count, n = self.limit.X.shape[0], left.shape[0]
        both = jnp.concatenate([left, right]).astype(self.limit.X.dtype)
        Theta = jnp.mean(self.limit.follow(both).tangent[:, self.moment], 0)
        return Theta[count : count + n, count + n :].astype(left.dtype)


class DeepTrajectory(eqx.Module):
    """Predictions, losses and kernels of a deep rich limit during gradient flow or descent [M3].

    Estimates have a `value` and an `error`, as in `RichTrajectory`. New points are followed through the whole training,
    so predictions there cost as much as the training itself.

    Attributes
    ----------
    limit : DeepLimit
        The training problem.
    times : array of shape (t,)
        Times of gradient flow, or numbers of steps.
    marks : tuple of int
        Indices of the moments at these times.
    fitted : SampledQuantity
        f at the training points: (t, n, *outputs).
    losses : SampledQuantity
        Mean of the per-point loss over training points: (t,). The squared loss is ½|f - y|². Training minimizes the
        sum.
    features, gradients : tuple of SampledQuantity
        Φ^l and G^l at the training points, one for each hidden layer: (t, n, n).
    tangent : SampledQuantity
        Θ, summed over outputs: (t, n, n).
    evidence : Evidence
        Statistical error and cost.
    outputs : tuple of int
        Shape of one prediction.
    """

    limit: DeepLimit
    times: Float[Array, " t"] | Int[Array, " t"]
    """Times of gradient flow, or numbers of steps."""
    marks: tuple[int, ...] = eqx.field(static=True)
    """Indices of the moments at these times."""
    fitted: SampledQuantity
    losses: SampledQuantity
    features: tuple[SampledQuantity, ...]
    gradients: tuple[SampledQuantity, ...]
    tangent: SampledQuantity
    evidence: Evidence
    outputs: tuple[int, ...] = eqx.field(static=True)

    @property
    def X(self) -> Float[Array, "n d"]:
        """Training points."""
        return self.limit.X

    def predict(self, Z: Points, t: Any = None) -> Float[Matrix, "..."]:
        """Evaluate f.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : float or array of float, optional
            One or several of `times`; the last by default.

        Returns
        -------
        array of shape (*t, m, *outputs)
            Predictions.
        """
        return self.estimate(Z, t).value

    def estimate(self, Z: Points, t: Any = None) -> SampledQuantity:
        """Evaluate f with its standard error.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : float or array of float, optional
            One or several of `times`; the last by default.

        Returns
        -------
        SampledQuantity
            Value and standard error, each of shape (*t, m, *outputs).
        """
        at = np.asarray(self.marks)[-1 if t is None else time_index(self.times, t)]
        with precision(self.fitted.value.dtype.name):
            found = _followed(self.limit, as_points(Z, "Z", self.fitted.value.dtype)).f
            f = found[:, at, self.limit.X.shape[0] :]
            return on_host(_over_runs(f.reshape(*f.shape[:-1], *self.outputs)))

    def kernel_at(self, t: Any) -> DeepKernel:
        """Return the tangent kernel at time t.

        Parameters
        ----------
        t : float
            One of `times`.

        Returns
        -------
        DeepKernel
            The kernel at any points.
        """
        return DeepKernel(self.limit, self.marks[int(time_index(self.times, t))])


def deep_limit(
    network: MLP, X: Array, y: Array, *, outputs: tuple[int, ...], richness: float, times: np.ndarray,
    step_size: float | None, batch_size: int | None, loss: Loss, draws: int, runs: int, quasi: bool, tolerance: float,
    progress: Progress, checkpoint: str | Path | Checkpoint | None, key: PRNGKeyArray,
) -> DeepTrajectory:  # fmt: skip
    """Train a deep network of infinite width and return its trajectory [M3].

    Called by `rich_limit` for depth > 1, with validated arguments. Runs are sequential, since the past of one run may
    fill the memory. Training minimizes Σ_μ ℓ(f_μ, y_μ); `losses` reports the mean of ℓ over points.

    Parameters
    ----------
    network : MLP
        Architecture of depth > 1 without skips.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    outputs : tuple of int
        Shape of one prediction.
    richness, times, step_size, batch_size, loss, draws, runs, quasi, tolerance, progress, checkpoint, key
        As in `rich_limit`.

    Returns
    -------
    DeepTrajectory
        Predictions, losses and kernels at the recorded times.

    Raises
    ------
    ValueError
        If the network has skips or the run does not fit in memory.
    """
    if network.skips:
        raise ValueError("the rich limit does not support skip connections: use residual=0")
    none = jnp.zeros((1, 1), X.dtype), jnp.ones((1, X.shape[0]), X.dtype)
    limit = DeepLimit(network, X, y, richness, *none, loss, draws, runs, quasi, key)
    reporter = ProgressReporter(progress, "deep rich limit", len(limit.keys) * len(times))
    if step_size is None:
        plan = flow_schedule(limit, times, tolerance)
    else:
        plan = step_schedule(times, step_size, X.shape[0], batch_size, jax.random.split(key)[1])
    limit = replace(limit, plan=jnp.asarray(plan.rows, X.dtype), shares=jnp.asarray(plan.shares, X.dtype))
    check_memory(limit, len(plan.rows))
    found = _trained(limit, plan.marks, times, reporter, checkpoint)
    steps = int(times[-1]) if step_size is not None else int(plan.marks[-1]) // 3
    f = found.f.reshape(*found.f.shape[:-1], *outputs)
    losses = jax.vmap(jax.vmap(lambda f: loss.mean(f, y)))(f)
    evidence = _evidence(limit, _over_runs(f), steps, "steps" if step_size else "adaptive steps", reporter.seconds)
    features, gradients = (on_host(tuple(map(_over_runs, part))) for part in (found.features, found.gradients))
    path = [on_host(_over_runs(part)) for part in (f, losses, found.tangent)]
    marks = tuple(map(int, plan.marks))
    return DeepTrajectory(
        limit, jnp.asarray(times), marks, path[0], path[1], features, gradients, path[2], evidence, outputs
    )


def _evidence(limit: DeepLimit, fitted: SampledQuantity, steps: int, kind: str, seconds: float) -> Evidence:
    """Return the evidence; `residual` is the relative standard error of f."""
    finite = bool(jnp.all(jnp.isfinite(fitted.value)))
    error = (0.0 if limit.linear else float(relative_error(fitted))) if finite else float("nan")
    notes = () if finite else ("training diverged: use a smaller step_size, or None for gradient flow",)
    drawn = f"{limit.runs} × {limit.draws} draws of every layer"
    how = "second moments, exact for a linear network" if limit.linear else drawn
    words = FitDescription("descent on Σ ℓ(f, y) at infinite width [M3]", f"{how}, {steps} {kind}", notes=notes)
    return Evidence(error, steps=steps, seconds=seconds, description=words)


def _trained(
    limit: DeepLimit, marks: np.ndarray, times: np.ndarray, reporter: ProgressReporter, checkpoint: Any
) -> Moment:
    """Return the moments at the marks, with leading axes runs and times. Finished runs are saved to the checkpoint."""
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
            reporter.report(r * len(marks) + i + 1, f"run {r + 1}, t = {times[i]:g}")
        finished.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen))
        if file is not None:
            file.save(lambda: _leaves(finished), now=True)
    reporter.close()
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *finished)


def _leaves(finished: list[Moment]) -> dict[str, np.ndarray]:
    """Return the arrays of finished runs by name."""
    return {
        f"{r}.{j}": np.asarray(leaf) for r, run in enumerate(finished) for j, leaf in enumerate(jax.tree.leaves(run))
    }


def _file(checkpoint: Any, limit: DeepLimit, times: np.ndarray) -> Checkpoint | None:
    """Return the checkpoint with the fingerprint of this problem."""
    if checkpoint is None:
        return None
    given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    key = np.asarray(jax.random.key_data(limit.key))
    problem = {"system": fingerprint(limit.network, limit.richness, limit.draws, limit.runs, limit.quasi, key),
               "data": fingerprint(limit.X, limit.y, limit.loss.name), "times": fingerprint(times),
               "steps": fingerprint(limit.plan, limit.shares)}  # fmt: skip
    return Checkpoint(given.path, given.every, problem)


def _over_runs(values: Array) -> SampledQuantity:
    """Return mean and standard error; the single run of a linear network is exact."""
    return SampledQuantity(values[0], jnp.zeros_like(values[0])) if values.shape[0] == 1 else over_runs(values)


@jax.jit
def _followed(limit: DeepLimit, Z: Any) -> Moment:
    """Follow the training and test points, compiled."""
    return limit.follow(Z)
