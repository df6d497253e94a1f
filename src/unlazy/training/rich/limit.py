"""Infinitely wide networks that learn features: `rich_limit` and validation of its arguments."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_labels, as_points
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.memory import memory_budget
from unlazy.core.precision import precision as in_precision
from unlazy.core.results import Evidence, FitDescription
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss, resolve_loss
from unlazy.training.rich.deep_trajectory import DeepTrajectory, deep_limit
from unlazy.training.rich.dynamics import Dynamics, TrainingRun, relative_error, train
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
    """Train an infinitely wide network in the feature-learning limit [M1–M3].

    f = (1/γ) aᵀφ(h)/√width with γ = γ_0 √width and rates γ²: `richness` is γ_0. γ_0 → 0 is the gradient flow of the NTK
    [K3], in the same time; γ_0 of order 1 moves features.

    Training starts from f = 0 and minimizes the sum Σ_μ ℓ(f_μ, y_μ) over points; times and step sizes refer to this
    sum. The reported `losses` and the threshold `until_loss` are means of ℓ over points. The squared loss is ℓ = ½|f -
    y|², with the factor 1/2 in both.

    For networks of more than one hidden layer, the state includes the whole past [M3]: memory grows with draws × points
    × steps, a step of the flow takes three evaluations, and predictions at new points repeat the training. Deep linear
    networks are exact. Others have, besides their standard errors, a bias proportional to 1/draws, since the noise of
    estimated responses accumulates over steps and points: compare with twice the draws. Their checkpoints contain
    finished runs; `keep` and `until_loss` apply to two layers only.

    Parameters
    ----------
    network : MLP
        Architecture; the width is ignored.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels; c must equal the number of outputs of the network.
    richness : float
        γ_0 > 0.
    times : array of shape (t,)
        Increasing times of gradient flow; numbers of steps if `step_size` is given.
    step_size : float, optional
        Step size of gradient descent on the sum of the losses; None integrates gradient flow.
    batch_size : int, optional
        Points per step; all by default. The sum over a batch is scaled by n/batch_size.
    loss : str or Loss, default "squared"
        Per-point loss ℓ, as in `descend`.
    draws : int, default 4096
        Number of neurons that are drawn, a multiple of 4 (symmetric sets).
    runs : int, default 4
        Number of independent runs, from which the standard errors are computed.
    quasi : bool, default True
        Whether the draws are quasi-random.
    tolerance : float, default 1e-3
        Error of f in one step of the flow, relative to the labels.
    until_loss : float, optional
        Stop at the first time with a mean loss of at most this.
    keep : bool, default True
        Whether to store the neurons at every time, which predictions at new points need.
    precision : {"float32", "float64"}, default "float64"
        Precision of the computation.
    progress : bool or callable, optional
        Whether to show progress, or a function of (times done, seconds). None shows it on a terminal.
    checkpoint : path or Checkpoint, optional
        File from which an interrupted training resumes.
    key : PRNG key, optional
        Source of randomness; `jax.random.key(0)` by default.

    Returns
    -------
    RichTrajectory or DeepTrajectory
        Predictions, losses and kernels at the recorded times.

    Raises
    ------
    ValueError
        If an argument is invalid, the network has skips, or memory does not suffice.

    Examples
    --------
    >>> rich = rich_limit(MLP(1, "relu"), X, y, richness=1.0, times=[0.1, 1.0, 10.0])
    >>> rich.losses.value, rich.losses.error, rich.predict(Z, 10.0), rich.kernel_at(10.0).gram(Z)
    """
    check_draws(draws, runs)
    chosen = check_training(richness, times, step_size, tolerance)
    with in_precision(precision):
        X, y, described = validate_data(network, X, y, precision)
        key = jax.random.key(0) if key is None else key
        size = check_batch(batch_size, step_size, X)
        if network.depth > 1:
            if until_loss is not None:
                raise ValueError(
                    f"deep networks train their runs one after another, so until_loss is not supported; got "
                    f"until_loss={until_loss}: use times"
                )
            return deep_limit(
                network, X, y, outputs=described, richness=richness, times=chosen, step_size=step_size,
                batch_size=size, loss=resolve_loss(loss), draws=draws, runs=runs, quasi=quasi, tolerance=tolerance,
                progress=progress, checkpoint=checkpoint, key=key,
            )  # fmt: skip
        key_start, key_batch = jax.random.split(key)
        system, start = two_layer_limit(network, X, richness, draws, runs, quasi, key_start)
        data = Data(system.inputs(X), y)
        dynamics = Dynamics(system, data, resolve_loss(loss), step_size, tolerance, size, key_batch)
        check_memory(start, len(chosen), keep)
        found = train(dynamics, start, chosen, keep=keep, progress=progress, checkpoint=checkpoint, what="rich limit",
                       until_loss=until_loss)  # fmt: skip
        sampling = f"{runs} × {draws} {'quasi-random ' if quasi else ''}neurons"
        return trajectory(system, X, chosen, found, described, sampling, step_size)


def trajectory(
    system: Any, X: Any, times: np.ndarray, found: TrainingRun, outputs: tuple[int, ...], sampling: str, step_size: Any
) -> RichTrajectory:
    """Build the trajectory with its evidence: `residual` is the standard error of f relative to f."""
    records, times = on_host(found.records), times[: len(found.records.loss.value)]
    finite = bool(np.all(np.isfinite(records.fitted.value)))
    error = float(relative_error(records.fitted)) if finite else float("nan")
    notes = () if finite else ("training diverged: use a smaller step_size, or None for gradient flow",)
    way = f"{found.steps} {'adaptive steps' if step_size is None else 'steps'}"
    words = FitDescription("gradient flow on Σ ℓ(f, y) at infinite width [M2]", f"{sampling}, {way}", notes=notes)
    evidence = Evidence(error, steps=found.steps, seconds=found.seconds, description=words)
    return RichTrajectory(
        system, X, jnp.asarray(times), records.fitted, records.loss, records.features, records.gradients,
        records.tangent, found.states, evidence, outputs,
    )  # fmt: skip


def validate_data(network: MLP, X: Points, y: Labels, precision: str) -> tuple[Any, Any, tuple[int, ...]]:
    """Return points and labels in the given precision, and the shape of one prediction."""
    X = as_points(X, "X", precision)
    y = as_labels(y, X.shape[0], dtype=precision)
    c = network.outputs
    if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != c):
        raise ValueError(
            f"labels of shape {y.shape} need a network with matching outputs: MLP(…, outputs={y.shape[1]})"
        )
    if y.ndim == 2 and c == 1:
        y = y[:, 0]
    return X, y, () if c == 1 else (c,)


def check_training(richness: float, times: Any, step_size: float | None, tolerance: float) -> np.ndarray:
    """Return the times as an array; raise ValueError if an argument is invalid."""
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
        raise ValueError(f"step_size must be positive, got {step_size!r}; None integrates gradient flow")
    if np.any(found != np.round(found)):
        raise ValueError(f"with a step_size, times must be integer numbers of steps, got {times!r}")
    return found.astype(np.int32)


def check_batch(batch_size: int | None, step_size: float | None, X: Any) -> int | None:
    """Return the validated batch size; batches need plain steps."""
    if batch_size is None:
        return None
    if step_size is None:
        raise ValueError(f"batches need plain steps: pass a step_size, or no batch_size; got batch_size={batch_size}")
    if check_positive_integer("batch_size", batch_size) > X.shape[0]:
        raise ValueError(f"batch_size must be at most the {X.shape[0]} training points, got {batch_size}")
    return batch_size


def check_memory(start: Any, times: int, keep: bool) -> None:
    """Raise ValueError if the stored states do not fit in the memory budget."""
    need = times * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(start))
    if keep and need > memory_budget():
        raise ValueError(
            f"the states of {times} times take {need / 2**30:.2g} GiB and the memory budget is "
            f"{memory_budget() / 2**30:.2g} GiB: use fewer times or draws, or keep=False (no predictions at new points)"
        )
