"""Gradient descent on all or some parameters of any function f(θ, X), as one compiled loop that `vmap` runs over seeds.

Divergence is detected, and the result reports a step size that would have been stable.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import is_concrete
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.pytrees import broadcast_over
from unlazy.core.results import Evidence, FitDescription
from unlazy.training.descent.losses import Loss, resolve_loss
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.descent.steps import (
    DIVERGED,
    RUNNING,
    STOPPED,
    DescentBatches,
    DescentState,
    Stepper,
    is_zero,
    track_best,
)
from unlazy.training.descent.trained import TrainedFunction

_BLOW_UP = 1e6
"""Training has diverged once the loss exceeds this multiple of the initial loss plus the loss of predicting zero.

Transients of large steps on wide networks (Lewkowycz et al. 2020) stay orders of magnitude below.
"""


class Descent(eqx.Module):
    """Result of `descend`. Under `vmap` every field has a leading axis of seeds.

    All losses are means of the per-point loss over points, without the weight decay term; the squared loss includes the
    factor 1/2: ½|f(x) - y|².

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

    params: Any
    losses: Float[Array, "*s steps"]
    """Mean training loss of the batch before every step, without decay; constant after an early stop."""
    final_loss: Float[Array, "*s"]
    """Mean loss over all training points at `params`."""
    steps: Int[Array, "*s"]
    """Number of steps taken."""
    status: Int[Array, "*s"]
    stable_step: Float[Array, "*s"]
    """If training diverged: half the largest stable step size of plain gradient descent at the start. Else NaN."""
    recorded: dict[str, Any]
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

    def trained(self, apply: Callable[[Any, Array], Array]) -> TrainedFunction:
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
    apply: Callable[[Any, Array], Array],
    params: Any,
    data: Data,
    *,
    steps: int,
    step_size: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    loss: str | Loss = "squared",
    batch_size: int | None = None,
    decay: Any = 0.0,
    rates: Any = 1.0,
    record: Mapping[str, Callable[[Any], Array]] | None = None,
    every: int | None = None,
    stop_below: Any = None,
    patience: tuple[str, int] | None = None,
    label_noise: Any = 0.0,
    key: PRNGKeyArray | None = None,
) -> Descent:
    """Train any function f(θ, X) by gradient descent: θ ← θ - η r (∇L(θ) + λθ).

    L is the mean of the per-point loss over the training points (or over a batch); the squared loss is ½|f(x) - y|²,
    with the factor 1/2. `losses` and `final_loss` of the result report the same mean L, without the decay term. Since L
    is a mean, the time t of gradient flow on the sum ½ Σ (f - y)² [K3] corresponds to t = η·steps/n.

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
        Step size η of plain gradient descent. Pass either `step_size` or `optimizer`.
    optimizer : optax.GradientTransformation, optional
        Optimizer whose updates are multiplied by `rates`.
    loss : {"squared", "hinge", "logistic", "cross_entropy"} or Loss, default "squared"
        Loss of every point.
    batch_size : int, optional
        Points per step; all by default. Batches are reshuffled every epoch and need a `key`.
    decay : float or pytree, default 0.0
        Weight decay λ: a number, one per layer, or shaped like the parameters.
    rates : float or pytree, default 1.0
        Layer-wise learning rates r, in the same three shapes; 0 freezes a layer (see `only_layers`).
    record : mapping of str to callable, optional
        Functions of the parameters, evaluated at the start and after each `every` steps.
    every : int, optional
        Steps between records, a divisor of `steps`; only the end by default.
    stop_below : float, optional
        Stop once the mean training loss is at most this.
    patience : (str, int), optional
        `(name, k)` stops when the recorded measure has not improved k times in a row, and returns the parameters of its
        best value.
    label_noise : float, default 0.0
        Every label is shifted by ± this amount, drawn anew at every step [L11]; needs a `key`.
    key : PRNG key, optional
        Draws batches and label noise.

    Returns
    -------
    Descent
        Trained parameters, losses and records.

    Raises
    ------
    ValueError
        If the arguments are inconsistent: both or neither of `step_size` and `optimizer`, `steps` not a multiple of
        `every`, a missing `key`, an unknown loss, or a batch larger than the data.

    Examples
    --------
    >>> from unlazy.core.data import Data
    >>> net = Network(MLP(1, width=64), 3)
    >>> params = net.init(key)
    >>> trained = descend(net, params, Data(X, y), steps=100, step_size=0.5)
    """
    rule, every = _rule(step_size, optimizer), steps if every is None else every
    measures = dict(record or {})
    _check(steps, every, measures, patience, batch_size, key, data.n)
    if key is None and not is_zero(label_noise):
        raise ValueError("label_noise is random: pass key=jax.random.key(...)")
    loss = resolve_loss(loss)
    rates, decay = broadcast_over(rates, params), broadcast_over(decay, params)

    def objective(theta: Any, batch: Data) -> Array:
        # gradients of frozen layers are not computed
        free = jax.tree.map(lambda r, p: jax.lax.stop_gradient(p) if is_zero(r) else p, rates, theta)
        return loss.mean(apply(free, batch.X), batch.y, batch.weights)

    start, zero = objective(params, data), jnp.zeros_like(apply(params, data.X))
    limit = _BLOW_UP * (start + loss.mean(zero, data.y, data.weights))
    step = Stepper(objective, rule, rates, decay, limit, stop_below, DescentBatches(data, batch_size, key, label_noise))

    def chunk(carry: tuple[DescentState, Any], first: Array) -> tuple[tuple[DescentState, Any], tuple[Array, dict]]:
        state, best = carry
        state, losses = step.run(state, first, every)
        values = {name: measure(state.params) for name, measure in measures.items()}
        if patience is not None:
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


def _rule(step_size: Any, optimizer: optax.GradientTransformation | None) -> optax.GradientTransformation:
    """Return the optimizer; plain gradient descent for a step size."""
    if (step_size is None) == (optimizer is None):
        raise ValueError(f"pass either a step_size or an optax optimizer, got {step_size=} and {optimizer=}")
    return optax.sgd(step_size) if optimizer is None else optimizer


def _check(
    steps: int, every: int, record: dict, patience: tuple[str, int] | None, batch_size: int | None, key: Any, n: int
) -> None:
    """Raise ValueError if the arguments of `descend` are inconsistent."""
    check_positive_integer("steps", steps)
    check_positive_integer("every (steps between records)", every)
    if steps % every:
        raise ValueError(f"steps must be a multiple of every, got steps={steps} and every={every}")
    if patience is not None and patience[0] not in record:
        raise ValueError(f"patience needs a recorded measure; {patience[0]!r} is not in record={sorted(record)}")
    if batch_size is not None:
        if check_positive_integer("batch_size", batch_size) > n:
            raise ValueError(f"batch_size must be at most the {n} training points, got {batch_size}")
        if key is None:
            raise ValueError("batches are random: pass key=jax.random.key(...)")
