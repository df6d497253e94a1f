"""Trajectory of a deep network of infinite width during training [M3]."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import Matrix, Points, as_points, precision
from unlazy.core.fingerprint import fingerprint
from unlazy.core.progress import ProgressDisplay
from unlazy.core.results import Evidence, time_index
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Values
from unlazy.theory.dynamics.losses import Loss
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import RichOptions
from unlazy.training.rich.deep import DeepLimit, Moment
from unlazy.training.rich.deep_schedule import advance, begin, check_memory, flow_schedule, step_schedule
from unlazy.training.rich.standard_errors import SampledQuantity, on_host, over_runs
from unlazy.training.rich.training_loop import (
    QUIET_SECONDS,
    check_batch,
    checkpoint_of,
    relative_error,
    training_evidence,
)


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
        Mean loss L over training points: (t,).
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

    def predict(self, Z: Points, t: Values | None = None) -> Float[Matrix, "..."]:
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

    def estimate(self, Z: Points, t: Values | None = None) -> SampledQuantity:
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

    def kernel_at(self, t: Values) -> DeepKernel:
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
    network: MLP, X: Float[Array, "n d"], y: Float[Array, " n *c"], *, richness: float, times: np.ndarray,
    step_size: float | None, loss: Loss, options: RichOptions, key: PRNGKeyArray,
) -> DeepTrajectory:  # fmt: skip
    """Train a deep network of infinite width and return its trajectory [M3].

    Called by `rich_limit` for depth > 1, with validated arguments. Runs are sequential, since the past of one run may
    fill the memory.

    Parameters
    ----------
    network : MLP
        Architecture of depth > 1 without skips.
    X, y, richness, times, step_size, loss, options, key
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
    if options.stop_below is not None:
        raise ValueError(
            f"deep networks train their runs one after another, so stop_below is not supported; got "
            f"stop_below={options.stop_below}: use times"
        )
    n, batch_size = X.shape[0], check_batch(options.batch_size, step_size, X.shape[0])
    none = jnp.zeros((1, 1), X.dtype), jnp.ones((1, n), X.dtype)
    limit = DeepLimit(network, X, y, richness, *none, loss, options.draws, options.runs, options.quasi, key)
    total = len(limit.keys) * len(times)
    with ProgressDisplay("deep rich limit", total, show=options.progress, delay=QUIET_SECONDS) as shown:
        if step_size is None:
            plan = flow_schedule(limit, times, options.tolerance)
        else:
            plan = step_schedule(times, step_size / n, n, batch_size, jax.random.split(key)[1])
        limit = replace(limit, plan=jnp.asarray(plan.rows, X.dtype), shares=jnp.asarray(plan.shares, X.dtype))
        check_memory(limit, len(plan.rows))
        found = _trained(limit, plan.marks, times, shown, options)
    steps = int(plan.marks[-1]) // 3 if step_size is None else int(times[-1])
    outputs = () if network.outputs == 1 else (network.outputs,)
    f = found.f.reshape(*found.f.shape[:-1], *outputs)
    features, gradients = (on_host(tuple(map(_over_runs, part))) for part in (found.features, found.gradients))
    fitted, losses, tangent = (
        on_host(_over_runs(part)) for part in (f, jax.vmap(jax.vmap(lambda f: loss.mean(f, y)))(f), found.tangent)
    )
    error = (0.0 if limit.linear else float(relative_error(fitted))) if np.isfinite(fitted.value).all() else math.nan
    drawn = f"{limit.runs} × {limit.draws} draws of every layer"
    sampling = "second moments, exact for a linear network" if limit.linear else drawn
    evidence = training_evidence(error, sampling, steps, step_size is None, shown.seconds, "M3")
    return DeepTrajectory(
        limit, jnp.asarray(times), tuple(map(int, plan.marks)), fitted, losses, features, gradients, tangent, evidence,
        outputs,
    )  # fmt: skip


def _trained(
    limit: DeepLimit, marks: np.ndarray, times: np.ndarray, shown: ProgressDisplay, options: RichOptions
) -> Moment:
    """Return the moments at the marks, with leading axes runs and times. Finished runs are saved to the checkpoint."""
    key = np.asarray(jax.random.key_data(limit.key))
    problem = {"system": fingerprint(limit.network, limit.richness, limit.draws, limit.runs, limit.quasi, key),
               "data": fingerprint(limit.X, limit.y, limit.loss.name), "times": fingerprint(times),
               "steps": fingerprint(limit.plan, limit.shares)}  # fmt: skip
    file = checkpoint_of(options, problem)
    earlier = None if file is None else file.load()
    finished: list[Moment] = []
    loaded = 0
    for r, key in enumerate(limit.keys):
        if earlier is not None and f"{r}.0" in earlier:
            like, shape = jax.tree.flatten(jax.eval_shape(limit.follow))
            leaves = [jnp.asarray(earlier[f"{r}.{j}"]) for j in range(len(like))]
            finished.append(jax.tree.unflatten(shape, leaves))
            loaded += len(marks)
            continue
        run, start = begin(limit, key)
        seen = []
        for i, mark in enumerate(marks):
            run, moment = advance(limit, run, start, jnp.asarray(mark, jnp.int32))
            seen.append(moment)
            shown.advance(f"run {r + 1}, t = {times[i]:g}", 1 + loaded)
            loaded = 0
        finished.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen))
        if file is not None:
            file.save(lambda: _leaves(finished), now=True)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *finished)


def _leaves(finished: list[Moment]) -> dict[str, np.ndarray]:
    """Return the arrays of finished runs by name."""
    return {
        f"{r}.{j}": np.asarray(leaf) for r, run in enumerate(finished) for j, leaf in enumerate(jax.tree.leaves(run))
    }


def _over_runs(values: Array) -> SampledQuantity:
    """Return mean and standard error; the single run of a linear network is exact."""
    return SampledQuantity(values[0], jnp.zeros_like(values[0])) if values.shape[0] == 1 else over_runs(values)


@jax.jit
def _followed(limit: DeepLimit, Z: Array) -> Moment:
    """Follow the training and test points, compiled."""
    return limit.follow(Z)
