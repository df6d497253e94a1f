"""Infinitely wide networks that learn features: `rich_limit` and validation of its arguments."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_labels, as_points
from unlazy.core.arrays import precision as in_precision
from unlazy.core.dataset import Data
from unlazy.solvers.path import Values
from unlazy.theory.dynamics.losses import Loss, resolve_loss
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import RichOptions
from unlazy.training.rich.deep_trajectory import DeepTrajectory, deep_limit
from unlazy.training.rich.standard_errors import on_host
from unlazy.training.rich.training_loop import Dynamics, TrainingRun, relative_error, train, training_evidence
from unlazy.training.rich.trajectory import RichTrajectory
from unlazy.training.rich.two_layer import two_layer_limit


def rich_limit(
    network: MLP,
    X: Points,
    y: Labels,
    *,
    richness: float,
    times: Values,
    step_size: float | None = None,
    loss: str | Loss = "squared",
    options: RichOptions | None = None,
    key: PRNGKeyArray | None = None,
) -> RichTrajectory | DeepTrajectory:
    """Train an infinitely wide network in the feature-learning limit [M1–M3].

    f = (1/γ) aᵀφ(h)/√width with γ = γ_0 √width and rates γ²: `richness` is γ_0. γ_0 → 0 is the gradient flow of the NTK
    [K3], in the same time; γ_0 of order 1 moves features.

    Training starts from f = 0 and minimizes L, the mean of the per-point loss ℓ over points; the squared loss is
    ½|f - y|². `step_size` multiplies ∇L, and `losses` and `stop_below` are values of L, as in `descend`. Gradient flow
    runs in the time of [K3], df/dt = -Θ ∂ℓ/∂f: the time t corresponds to step_size·steps/n.

    For networks of more than one hidden layer, the state includes the whole past [M3]: memory grows with draws × points
    × steps, a step of the flow takes three evaluations, and predictions at new points repeat the training. Deep linear
    networks are exact. Others have, besides their standard errors, a bias proportional to 1/draws, since the noise of
    estimated responses accumulates over steps and points: compare with twice the draws. Their checkpoints contain
    finished runs; `keep_states` and `stop_below` apply to two layers only.

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
        Step size of gradient descent on the mean loss; None integrates gradient flow.
    loss : {"squared", "hinge", "logistic", "cross_entropy"} or Loss, default "squared"
        Per-point loss ℓ.
    options : RichOptions, optional
        Number of draws and runs, batches, tolerance, precision, progress and checkpoint.
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
    >>> import numpy as np
    >>> from unlazy import MLP, rich_limit
    >>> from unlazy.training import RichOptions
    >>> X = np.linspace(-1, 1, 5)[:, None]
    >>> options = RichOptions(draws=64, runs=2)  # few, so that this runs in seconds
    >>> rich = rich_limit(MLP(1, "relu"), X, np.abs(X[:, 0]), richness=1.0, times=[0.1, 1.0], options=options)
    >>> rich.predict(X, 1.0).shape, rich.kernel_at(1.0).gram(X).shape
    ((5,), (5, 5))
    """
    chosen, options = check_training(richness, times, step_size), options or RichOptions()
    key = jax.random.key(0) if key is None else key
    with in_precision(options.precision):
        X, y, outputs = validate_data(network, X, y, options.precision)
        if network.depth > 1:
            return deep_limit(
                network, X, y, richness=richness, times=chosen, step_size=step_size, loss=resolve_loss(loss),
                options=options, key=key,
            )  # fmt: skip
        key_start, key_batch = jax.random.split(key)
        system, start = two_layer_limit(network, X, richness, options, key_start)
        dynamics = Dynamics.create(system, Data(system.inputs(X), y), loss, step_size, options, key_batch)
        found = train(dynamics, start, chosen, options, "rich limit")
        sampling = f"{options.runs} × {options.draws} {'quasi-random ' if options.quasi else ''}neurons"
        return trajectory(dynamics, X, chosen, found, outputs, sampling)


def trajectory(
    dynamics: Dynamics, X: Float[Array, "n d"], times: np.ndarray, found: TrainingRun, outputs: tuple[int, ...],
    sampling: str,
) -> RichTrajectory:  # fmt: skip
    """Build the trajectory with its evidence: `residual` is the standard error of f relative to f."""
    records, times = on_host(found.records), times[: len(found.records.loss.value)]
    finite = bool(np.all(np.isfinite(records.fitted.value)))
    error = float(relative_error(records.fitted)) if finite else float("nan")
    evidence = training_evidence(error, sampling, found.steps, dynamics.step_size is None, found.seconds, "M2")
    return RichTrajectory(
        dynamics.system, X, jnp.asarray(times), records.fitted, records.loss, records.features, records.gradients,
        records.tangent, found.states, evidence, outputs,
    )  # fmt: skip


def validate_data(
    network: MLP, X: Points, y: Labels, precision: str
) -> tuple[Float[Array, "n d"], Float[Array, " n *c"], tuple[int, ...]]:
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


def check_richness(richness: float) -> None:
    """Raise ValueError unless γ_0 is positive and finite."""
    if not 0 < richness < np.inf:
        raise ValueError(
            f"richness γ_0 must be positive and finite, got {richness!r}; the lazy limit γ_0 → 0 is "
            "decompose(NTK(network), X).flow(y, times)"
        )


def check_training(richness: float, times: Values, step_size: float | None) -> np.ndarray:
    """Return the times as an array; raise ValueError if an argument is invalid."""
    check_richness(richness)
    found = np.atleast_1d(np.asarray(times, float))
    valid = found.ndim == 1 and found.size and np.all(np.isfinite(found)) and found[0] >= 0
    if not valid or np.any(np.diff(found) <= 0):
        raise ValueError(f"times must be zero or more, finite and increasing, got {times!r}")
    if step_size is None:
        return found
    if not 0 < step_size < np.inf:
        raise ValueError(f"step_size must be positive, got {step_size!r}; None integrates gradient flow")
    if np.any(found != np.round(found)):
        raise ValueError(f"with a step_size, times must be integer numbers of steps, got {times!r}")
    return found.astype(np.int32)
