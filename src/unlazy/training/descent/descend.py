"""Gradient descent on all or some parameters of any function f(θ, X), as one compiled loop that `vmap` runs over seeds.

Divergence is detected, and the result reports a step size that would have been stable.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from unlazy.core.arrays import is_concrete
from unlazy.core.dataset import Data
from unlazy.core.pytrees import broadcast_over
from unlazy.core.results import Evidence, FitDescription
from unlazy.theory.dynamics.losses import Loss, resolve_loss
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.descent.step import (
    DIVERGED,
    RUNNING,
    STOPPED,
    Best,
    DescentBatches,
    DescentState,
    Stepper,
    is_zero,
    track_best,
)
from unlazy.training.descent.trained import Apply, TrainedFunction
from unlazy.training.options import DescentOptions, GradientTransformation, Measure, Recording

_BLOW_UP = 1e6
"""Training has diverged once the loss exceeds this multiple of the initial loss plus the loss of predicting zero.

Transients of large steps on wide networks (Lewkowycz et al. 2020) stay orders of magnitude below.
"""


class Descent(eqx.Module):
    """Result of `descend`. Under `vmap` every field has a leading axis of seeds.

    All losses are values of L, the mean of the per-point loss over points, without the weight decay term.

    Attributes
    ----------
    params : pytree
        Trained parameters.
    losses : array of shape (steps,)
        Mean training loss (over the batch) before every step.
    final_loss : scalar array
        Mean loss over all training points at `params`.
    steps : integer array
        Number of steps taken.
    status : integer array
        0: all steps taken; 1: stopped early; 2: diverged.
    stable_step : scalar array
        A stable step size if training diverged, else NaN.
    recorded : dict
        Recorded measures, with a leading axis of times.
    recorded_at : integer array of shape (times,)
        Steps after which the measures were recorded.
    evidence : Evidence
        Training loss relative to the start, and the report.
    diverged : boolean array
        Whether training diverged.
    report : str
        Summary of how training ended.
    """

    params: PyTree
    losses: Float[Array, "*s steps"]
    """Mean training loss of the batch before every step, without decay; constant after an early stop."""
    final_loss: Float[Array, "*s"]
    """Mean loss over all training points at `params`."""
    steps: Int[Array, "*s"]
    """Number of steps taken."""
    status: Int[Array, "*s"]
    stable_step: Float[Array, "*s"]
    """If training diverged: half the largest stable step size of plain gradient descent at the start. Else NaN."""
    recorded: dict[str, PyTree]
    """Arrays, or pytrees of them, with a leading axis of times."""
    recorded_at: Int[Array, "*s times"]
    """Steps after which the measures were recorded; the first is 0, the start."""

    @property
    def evidence(self) -> Evidence:
        """Evidence of the fit; `residual` is the training loss relative to the start, NaN if training diverged."""
        share = jnp.where(self.diverged, jnp.nan, self.final_loss / self.losses[..., 0])
        notes = (self.report,) if is_concrete(share) else ()
        return Evidence(
            share, steps=self.steps, description=FitDescription("min L(θ) by gradient descent", "descent", notes=notes)
        )

    def trained(self, apply: Apply) -> TrainedFunction:
        """Return the trained function.

        Parameters
        ----------
        apply : callable
            The function f(params, X) that was trained.

        Returns
        -------
        TrainedFunction
            f at the trained parameters; also at the recorded ones if `recording.parameters` was recorded as "params".
            For several seeds, vmap over the descents.
        """
        found = self.recorded.get("params")
        if found is None:
            return TrainedFunction(
                apply, self.params, self.evidence, self.steps[None], jax.tree.map(lambda p: p[None], self.params)
            )
        return TrainedFunction(apply, self.params, self.evidence, self.recorded_at, found)

    @property
    def diverged(self) -> Array:
        """Whether training diverged."""
        return self.status == DIVERGED

    @property
    def report(self) -> str:
        """One sentence: finished, stopped early, or diverged with a suggested step size."""
        status, steps = jnp.atleast_1d(self.status), jnp.atleast_1d(self.steps)
        if jnp.any(status == DIVERGED):
            bad = status == DIVERGED
            advice = float(jnp.min(jnp.where(bad, jnp.atleast_1d(self.stable_step), jnp.inf)))
            return (
                f"{int(bad.sum())} of {status.size} runs diverged, the first after {int(jnp.min(steps[bad]))} steps: "
                f"a step size of {advice:.3g} would have been stable for plain gradient descent"
            )
        early = int((status == STOPPED).sum())
        if not early:
            return f"{status.size} runs took all of their {int(steps.max())} steps"
        return f"{early} of {status.size} runs stopped early; they took {int(steps.min())} to {int(steps.max())} steps"


def descend(
    apply: Apply,
    params: PyTree,
    data: Data,
    *,
    steps: int,
    step_size: ArrayLike | None = None,
    loss: str | Loss = "squared",
    options: DescentOptions | None = None,
    recording: Recording | None = None,
    key: PRNGKeyArray | None = None,
) -> Descent:
    """Train any function f(θ, X) by gradient descent: θ ← θ - η r (∇L(θ) + λθ).

    L is the mean of the per-point loss ℓ over the training points (or over a batch); the squared loss is ½|f(x) - y|².
    `losses` and `final_loss` of the result are values of L, without the decay term. The time t of gradient flow [K3]
    corresponds to t = η·steps/n, as in `rich_limit`.

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`, a linearization, or a plain function of any pytree of parameters.
    params : pytree
        Initial parameters.
    data : Data
        Training points X and labels y, with optional weights.
    steps : int
        Number of steps.
    step_size : float, optional
        Step size η of plain gradient descent. Pass either `step_size` or `options.optimizer`.
    loss : {"squared", "hinge", "logistic", "cross_entropy"} or Loss, default "squared"
        Per-point loss ℓ.
    options : DescentOptions, optional
        Optimizer, batches, weight decay, layer-wise rates, label noise and early stopping.
    recording : Recording, optional
        Functions of the parameters, evaluated at the start and after each `every` steps.
    key : PRNG key, optional
        Draws batches and label noise.

    Returns
    -------
    Descent
        Trained parameters, losses and records.

    Raises
    ------
    ValueError
        If the arguments are inconsistent: both or neither of `step_size` and an optimizer, `steps` not a multiple of
        `every`, a missing `key`, an unknown loss, or a batch larger than the data.

    Examples
    --------
    >>> import jax
    >>> from unlazy import MLP, Network, descend
    >>> from unlazy.core.dataset import Data
    >>> X = jax.random.normal(jax.random.key(0), (60, 3))
    >>> network = Network(MLP(1, width=64), 3)
    >>> params = network.init(jax.random.key(1))
    >>> trained = descend(network, params, Data(X, X[:, 0]), steps=100, step_size=0.5)
    """
    options, recording = options or DescentOptions(), recording or Recording()
    measures, every = recording.measures, recording.steps_between(steps)
    _check(options, measures, key, data.n)
    rule, loss, patience = _rule(step_size, options.optimizer), resolve_loss(loss), options.patience
    rates, decay = broadcast_over(options.rates, params), broadcast_over(options.decay, params)

    def objective(theta: PyTree, batch: Data) -> Array:
        # gradients of frozen layers are not computed
        free = jax.tree.map(lambda r, p: jax.lax.stop_gradient(p) if is_zero(r) else p, rates, theta)
        return loss.mean(apply(free, batch.X), batch.y, batch.weights)

    start, zero = objective(params, data), jnp.zeros_like(apply(params, data.X))
    limit = _BLOW_UP * (start + loss.mean(zero, data.y, data.weights))
    batches = DescentBatches(data, options.batch_size, key, options.label_noise)
    step = Stepper(objective, rule, rates, decay, limit, options.stop_below, batches)

    def chunk(carry: tuple[DescentState, Best | None], first: Array) -> tuple[tuple, tuple[Array, dict]]:
        state, best = carry
        state, losses = step.run(state, first, every)
        values = {name: measure(state.params) for name, measure in measures.items()}
        if patience is not None and best is not None:
            best, state = track_best(best, state, values[patience[0]], patience[1])
        return (state, best), (losses, values)

    before = {name: measure(params) for name, measure in measures.items()}
    best = None if patience is None else (before[patience[0]], params, jnp.int32(0))
    carry = (step.start(params, start), best)
    (state, best), (losses, values) = jax.lax.scan(chunk, carry, jnp.arange(0, steps, every))
    found = state.params if best is None else best[1]
    final = objective(found, data)
    status = jnp.where((state.status == RUNNING) & ~(final <= limit), DIVERGED, state.status)
    advice = stable_step_size(apply, params, data, loss=loss, rates=rates, decay=decay, wanted=status == DIVERGED)
    recorded = {name: jax.tree.map(_joined, before[name], later) for name, later in values.items()}
    times = jnp.arange(0, steps + 1, every)
    return Descent(found, losses.ravel(), final, state.steps, status, advice, recorded, times)


def _joined(first: Array, later: Array) -> Array:
    """Prepend the value at the start."""
    return jnp.concatenate([first[None], later])


def _rule(step_size: ArrayLike | None, optimizer: GradientTransformation | None) -> GradientTransformation:
    """Return the optimizer; plain gradient descent for a step size."""
    if (step_size is None) == (optimizer is None):
        raise ValueError(f"pass either a step_size or an optax optimizer, got {step_size=} and {optimizer=}")
    if optimizer is not None:
        return optimizer
    import optax

    return optax.sgd(step_size)


def _check(options: DescentOptions, measures: Mapping[str, Measure], key: PRNGKeyArray | None, n: int) -> None:
    """Raise ValueError if the arguments of `descend` are inconsistent."""
    if options.patience is not None and options.patience[0] not in measures:
        raise ValueError(f"patience needs a recorded measure; {options.patience[0]!r} is not among {sorted(measures)}")
    if options.batch_size is not None and options.batch_size > n:
        raise ValueError(f"batch_size must be at most the {n} training points, got {options.batch_size}")
    if key is None and options.batch_size is not None:
        raise ValueError("batches are random: pass key=jax.random.key(...)")
    if key is None and not is_zero(options.label_noise):
        raise ValueError("label_noise is random: pass key=jax.random.key(...)")
