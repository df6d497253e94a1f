"""The front door to infinitely wide networks that learn features."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import Labels, Points, labels, points
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.memory import memory_budget
from unlazy.core.precision import precision as in_precision
from unlazy.core.results import Evidence, Words
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss, loss_named
from unlazy.training.rich.deep_trajectory import DeepTrajectory, deep_limit
from unlazy.training.rich.dynamics import Dynamics, Followed, follow, relative_error
from unlazy.training.rich.estimate import on_host
from unlazy.training.rich.initialization import check_draws
from unlazy.training.rich.progress import Progress
from unlazy.training.rich.trajectory import RichTrajectory
from unlazy.training.rich.two_layer import two_layer_limit


def rich_limit(
    network: MLP,
    X: Points,
    y: Labels,
    *,
    richness: float,
    times: Any,
    step_size: float | None = None,
    batch_size: int | None = None,
    loss: str | Loss = "squared",
    draws: int = 4096,
    runs: int = 4,
    quasi: bool = True,
    tolerance: float = 1e-3,
    until_loss: float | None = None,
    keep: bool = True,
    precision: str = "float64",
    progress: Progress = None,
    checkpoint: str | Path | Checkpoint | None = None,
    key: PRNGKeyArray | None = None,
) -> RichTrajectory | DeepTrajectory:
    """An infinitely wide network that learns features, along its training [M1–M3].

    f = (1/γ) aᵀφ(h)/√width with γ = γ_0 √width and rates γ²: `richness` is γ_0. γ_0 → 0 is the NTK's gradient flow
    [K3], in the same time; γ_0 of order 1 moves features. Training minimizes Σ_μ ℓ(f_μ, y_μ) from f = 0.

    `times` are times of gradient flow, integrated to `tolerance` (error of f in one step, over the size of the labels);
    with a `step_size` they are numbers of plain steps, all points or `batch_size` at a time. Training ends early at the
    first of them with a mean loss of `until_loss` at most. Neurons are `draws` quasi-random normal numbers in symmetric
    sets of four, `runs` times over: standard errors come from the runs.

    Networks of more hidden layers remember all their past [M3]: memory grows with draws × points × steps, a flow takes
    three evaluations a step, and new points are followed along. Deep linear ones are exact. Others have, beside their
    standard errors, a bias in proportion to 1/draws, since the noise of measured responses adds up over steps and
    points: look at twice the draws. Their checkpoints keep finished runs; `keep` and `until_loss` are for two layers.

    >>> rich = rich_limit(MLP(1, "relu"), X, y, richness=1.0, times=[0.1, 1.0, 10.0])
    >>> rich.losses.value, rich.losses.error, rich.predict(Z, 10.0), rich.kernel_at(10.0).gram(Z)
    """
    check_draws(draws, runs)
    chosen = check_training(richness, times, step_size, tolerance)
    with in_precision(precision):
        X, y, described = read(network, X, y, precision)
        key = jax.random.key(0) if key is None else key
        size = check_batch(batch_size, step_size, X)
        if network.depth > 1:
            if until_loss is not None:
                raise ValueError(
                    f"a deep network ends one run before the next begins, so no loss of all ends it early; got "
                    f"until_loss={until_loss}: give times"
                )
            return deep_limit(
                network, X, y, outputs=described, richness=richness, times=chosen, step_size=step_size,
                batch_size=size, loss=loss_named(loss), draws=draws, runs=runs, quasi=quasi, tolerance=tolerance,
                progress=progress, checkpoint=checkpoint, key=key,
            )  # fmt: skip
        key_start, key_batch = jax.random.split(key)
        system, start = two_layer_limit(network, X, richness, draws, runs, quasi, key_start)
        data = Data(system.inputs(X), y)
        dynamics = Dynamics(system, data, loss_named(loss), step_size, tolerance, size, key_batch)
        check_memory(start, len(chosen), keep)
        found = follow(dynamics, start, chosen, keep=keep, progress=progress, checkpoint=checkpoint, what="rich limit",
                       until_loss=until_loss)  # fmt: skip
        said = f"{runs} × {draws} {'quasi-random ' if quasi else ''}neurons"
        return trajectory(system, X, chosen, found, described, said, step_size)


def trajectory(
    system: Any, X: Any, times: np.ndarray, found: Followed, outputs: tuple[int, ...], said: str, step_size: Any
) -> RichTrajectory:
    """What was followed, with its evidence: `residual` is the standard error of f over the size of f."""
    records, times = on_host(found.records), times[: len(found.records.loss.value)]
    finite = bool(np.all(np.isfinite(records.fitted.value)))
    error = float(relative_error(records.fitted)) if finite else float("nan")
    notes = () if finite else ("training diverged: take a smaller step_size, or None for the flow",)
    way = f"{found.steps} {'adaptive steps' if step_size is None else 'steps'}"
    words = Words("gradient flow on Σ ℓ(f, y) at infinite width [M2]", f"{said}, {way}", notes=notes)
    return RichTrajectory(
        system, X, jnp.asarray(times), records.fitted, records.loss, records.features, records.gradients,
        records.tangent, found.states, Evidence(error, steps=found.steps, seconds=found.seconds, words=words), outputs,
    )  # fmt: skip


def read(network: MLP, X: Points, y: Labels, precision: str) -> tuple[Any, Any, tuple[int, ...]]:
    """Points and labels in the precision asked for, and the shape of one prediction."""
    X = points(X, "X", precision)
    y = labels(y, X.shape[0], dtype=precision)
    c = network.outputs
    if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != c):
        raise ValueError(f"labels of shape {y.shape} need a network with as many outputs: MLP(…, outputs={y.shape[1]})")
    if y.ndim == 2 and c == 1:
        y = y[:, 0]
    return X, y, () if c == 1 else (c,)


def check_training(richness: float, times: Any, step_size: float | None, tolerance: float) -> np.ndarray:
    """The times, in order, or a ValueError that says what cannot be."""
    if not 0 < richness < np.inf:
        raise ValueError(
            f"richness γ_0 must be positive and finite, got {richness!r}; the lazy limit γ_0 → 0 is "
            "decompose(NTK(network), X).flow(y, times)"
        )
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    found = np.atleast_1d(np.asarray(times, float))
    if (
        found.ndim != 1
        or not found.size
        or not np.all(np.isfinite(found))
        or found[0] < 0
        or np.any(np.diff(found) <= 0)
    ):
        raise ValueError(f"times must be zero or more, finite and increasing, got {times!r}")
    if step_size is None:
        return found
    if not 0 < step_size < np.inf:
        raise ValueError(f"step_size must be positive, got {step_size!r}; None integrates the flow")
    if np.any(found != np.round(found)):
        raise ValueError(f"with a step_size times are whole numbers of steps, got {times!r}")
    return found.astype(np.int32)


def check_batch(batch_size: int | None, step_size: float | None, X: Any) -> int | None:
    """The batch size, where there is one and steps are plain."""
    if batch_size is None:
        return None
    if step_size is None:
        raise ValueError(
            f"batches are for plain steps: give a step_size, or no batch_size; got batch_size={batch_size}"
        )
    if check_positive_integer("batch_size", batch_size) > X.shape[0]:
        raise ValueError(f"batch_size must be at most the {X.shape[0]} training points, got {batch_size}")
    return batch_size


def check_memory(start: Any, times: int, keep: bool) -> None:
    """Refuses to keep more states than memory holds."""
    need = times * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(start))
    if keep and need > memory_budget():
        raise ValueError(
            f"the states of {times} times take {need / 2**30:.2g} GiB and the memory budget is "
            f"{memory_budget() / 2**30:.2g} GiB: take fewer times or draws, or keep=False, without predictions at "
            "new points"
        )
