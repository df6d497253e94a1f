"""Gradient descent on all or some parameters of any function f(θ, X), as one compiled loop that `vmap` spreads over
seeds. Divergence is recognized and answered with a step size that would have been stable."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import concrete
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.pytrees import spread_over
from unlazy.core.results import Evidence, Words
from unlazy.training.descent.losses import Loss, loss_named
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.descent.steps import DIVERGED, RUNNING, STOPPED, Batches, State, Stepper, is_zero, watch
from unlazy.training.descent.trained import TrainedFunction

_BLOW_UP = 1e6
"""A loss this many times that of the start (or of predicting zero) will not come back: transients of large steps on
wide networks (Lewkowycz et al. 2020) stay orders of magnitude below."""


class Descent(eqx.Module):
    """What descent found and how it went. Under `vmap` every field has a leading axis of seeds."""

    params: Any
    losses: Float[Array, "*s steps"]
    """Training loss (of the batch) before every step, decay left out; after a stop, the last value repeated."""
    final_loss: Float[Array, "*s"]
    """On all training points, at `params`."""
    steps: Int[Array, "*s"]
    """Steps taken."""
    status: Int[Array, "*s"]
    stable_step: Float[Array, "*s"]
    """Where descent diverged: half the largest step size stable at the start (of plain gradient descent); else NaN."""
    recorded: dict[str, Any]
    """Arrays, or trees of them, with a leading axis of times."""
    recorded_at: Int[Array, "*s times"]
    """The steps after which the measures were recorded; the first is 0, the start."""

    @property
    def evidence(self) -> Evidence:
        """`residual` is the training loss over that of the start; NaN where descent diverged."""
        share = jnp.where(self.diverged, jnp.nan, self.final_loss / self.losses[..., 0])
        notes = (self.report,) if concrete(share) else ()
        return Evidence(share, steps=self.steps, words=Words("min L(θ) by gradient descent", "descent", notes=notes))

    def trained(self, apply: Callable[[Any, Array], Array]) -> TrainedFunction:
        """The function with these parameters, of `apply`; a trajectory where `recording.parameters` was recorded as
        "params". Of several seeds: vmap over the descents."""
        found = self.recorded.get("params")
        if found is None:
            return TrainedFunction(
                apply, self.params, self.evidence, self.steps[None], jax.tree.map(lambda p: p[None], self.params)
            )
        return TrainedFunction(apply, self.params, self.evidence, self.recorded_at, found)

    @property
    def diverged(self) -> Array:
        return self.status == DIVERGED

    @property
    def report(self) -> str:
        """One sentence: finished, stopped early, or diverged and what to do."""
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
    key: PRNGKeyArray | None = None,
    decay: Any = 0.0,
    rates: Any = 1.0,
    record: Mapping[str, Callable[[Any], Array]] | None = None,
    every: int | None = None,
    stop_below: Any = None,
    patience: tuple[str, int] | None = None,
    label_noise: Any = 0.0,
) -> Descent:
    """θ ← θ - η r (∇L(θ) + λθ), L the mean loss over the training points (or over a batch).

    Plain steps of `step_size`, or any optax `optimizer`, whose updates are multiplied by the layer-wise `rates`
    (a number, one per layer, or shaped like the parameters; 0 freezes a layer, `only_layers` picks). `decay` is λ, in
    the same three shapes. [K3]'s time on ½Σ(f - y)² is t = η·steps/n here, since L is a mean.

    `record` maps names to functions of the parameters (arrays or trees), evaluated at the start and after each `every`
    steps.
    `stop_below` stops at a training loss; `patience=(name, k)` stops when the recorded measure has not improved k times
    in a row and returns the parameters of its best value. `batch_size` needs a `key`; batches reshuffle every epoch.
    `label_noise` moves every label of a step by so much up or down, drawn anew each step [L11]; it needs a `key` too.

    >>> from unlazy.core.data import Data
    >>> net = Network(MLP(1, width=64), 3)
    >>> params = net.init(key)
    >>> trained = descend(net, params, Data(X, y), steps=100, step_size=0.5)
    """
    rule, every = _rule(step_size, optimizer), steps if every is None else every
    measures = dict(record or {})
    _check(steps, every, measures, patience, batch_size, key, data.n)
    if key is None and not is_zero(label_noise):
        raise ValueError("label noise is drawn at random: pass key=jax.random.key(...)")
    loss = loss_named(loss)
    rates, decay = spread_over(rates, params), spread_over(decay, params)

    def objective(theta: Any, batch: Data) -> Array:
        # a frozen layer's gradient is never computed
        free = jax.tree.map(lambda r, p: jax.lax.stop_gradient(p) if is_zero(r) else p, rates, theta)
        return loss.mean(apply(free, batch.X), batch.y, batch.weights)

    start, zero = objective(params, data), jnp.zeros_like(apply(params, data.X))
    limit = _BLOW_UP * (start + loss.mean(zero, data.y, data.weights))
    step = Stepper(objective, rule, rates, decay, limit, stop_below, Batches(data, batch_size, key, label_noise))

    def chunk(carry: tuple[State, Any], first: Array) -> tuple[tuple[State, Any], tuple[Array, dict]]:
        state, best = carry
        state, losses = step.many(state, first, every)
        values = {name: measure(state.params) for name, measure in measures.items()}
        if patience is not None:
            best, state = watch(best, state, values[patience[0]], patience[1])
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
    return jnp.concatenate([first[None], later])


def _rule(step_size: Any, optimizer: optax.GradientTransformation | None) -> optax.GradientTransformation:
    if (step_size is None) == (optimizer is None):
        raise ValueError(f"give either a step_size or an optax optimizer, got {step_size=} and {optimizer=}")
    return optax.sgd(step_size) if optimizer is None else optimizer


def _check(
    steps: int, every: int, record: dict, patience: tuple[str, int] | None, batch_size: int | None, key: Any, n: int
) -> None:
    check_positive_integer("steps", steps)
    check_positive_integer("every (steps between records)", every)
    if steps % every:
        raise ValueError(f"steps must be a multiple of every, got steps={steps} and every={every}")
    if patience is not None and patience[0] not in record:
        raise ValueError(f"patience watches a recorded measure, and {patience[0]!r} is not in record={sorted(record)}")
    if batch_size is not None:
        if check_positive_integer("batch_size", batch_size) > n:
            raise ValueError(f"batch_size must be at most the {n} training points, got {batch_size}")
        if key is None:
            raise ValueError("batches are drawn at random: pass key=jax.random.key(...)")
