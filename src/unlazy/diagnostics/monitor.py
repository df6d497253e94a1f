"""`unlazy.watch`: is a run in the kernel regime or does it learn features, measured while it trains."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.diagnostics import display
from unlazy.diagnostics.advice import Advice
from unlazy.diagnostics.measures.kernel_result import KernelMachine
from unlazy.diagnostics.measuring import Fields, Measuring
from unlazy.diagnostics.options import MEASURES, WatchOptions
from unlazy.diagnostics.probes import Probes
from unlazy.diagnostics.record import Check, Record
from unlazy.diagnostics.rescaling.network import Rescaled, rescale_network, scale_of
from unlazy.diagnostics.schedule import GROWTH, Schedule
from unlazy.diagnostics.verdict import Verdict
from unlazy.models.adapt import as_model
from unlazy.models.protocol import Inputs, Params, Targets

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

T = TypeVar("T")
Log: TypeAlias = Callable[[dict], object]
"""Receives the numbers of every check by name, such as `wandb.log`."""
PREFIX = "unlazy/"
"""Of the names that a log receives."""


def watch(
    model: object,
    probe_inputs: Inputs,
    probe_targets: Targets | None = None,
    *,
    every: int | str = "auto",
    planned_steps: int | None = None,
    step_size: float | None = None,
    log: Log | None = None,
    reference: Params | None = None,
    options: WatchOptions | None = None,
) -> "Monitor":
    """Watch a training run: measure whether it is in the lazy (kernel) regime or learns features.

    Call it before training, then ``monitor.step()`` after every training step (``monitor.update(params)`` in JAX).
    The run itself is not changed: weights, buffers, optimizer and random state stay bit for bit what they were.

    Parameters
    ----------
    model : torch.nn.Module, Equinox or Flax nnx module, pair (apply, params) or Model
        The network at initialization, or before fine-tuning.
    probe_inputs : array, or tuple or dict of arrays
        Some 64 to 1,000 typical inputs, as the network takes them. More than the stated error needs are not used.
    probe_targets : array, optional
        Their targets: class labels or numbers. Without them there is no alignment with labels, and a broken run cannot
        be told from a rich one.
    every : int or {"auto"}, default "auto"
        Steps between checks; "auto" keeps the measured time of the monitor, with compilation and this call, within 3%
        of the training time. A run that is too short for a check is checked when its results are asked for.
    planned_steps : int, optional
        Length of the run. The verdict extrapolates to it; without it, it is about the run so far.
    step_size : float, optional
        Learning rate, for sharpness times step size and for advice.
    log : callable, optional
        Called after every check with a dictionary of numbers, for TensorBoard or Weights & Biases.
    reference : pytree, optional
        Parameters that changes are counted from, such as pretrained weights; those of `model` by default.
    options : WatchOptions, optional
        Measures, accuracy, precision, loss and the place of the reference.

    Returns
    -------
    Monitor
        `print` it for the verdict in words.

    Raises
    ------
    ValueError
        If the network is of no known kind, or an argument is invalid.

    References
    ----------
    Chizat, Oyallon and Bach (2019), On lazy training in differentiable programming.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, unlazy
    >>> X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    >>> params = jnp.ones((3, 1))
    >>> monitor = unlazy.watch((lambda w, X: X @ w, params), X, every=10, planned_steps=20)
    >>> for step in range(20):
    ...     params = 0.9 * params  # the training step
    ...     monitor.update(params)
    >>> monitor.verdict.word
    'lazy'
    """
    options = WatchOptions() if options is None else options
    if step_size is not None and not step_size > 0:
        raise ValueError(f"step_size must be positive, got {step_size!r}")
    if log is not None and not callable(log):
        raise ValueError(f"log must be a function of a dictionary, got {log!r}")
    schedule = Schedule(every, planned_steps)
    with schedule.timed("construction"):
        adapted = as_model(model, output=options.output, dtype=options.dtype)
        probes = Probes(probe_inputs, probe_targets, seed=options.seed)
        measuring = Measuring(adapted, probes, options, reference, step_size)
        if every != "auto":
            measuring.prepare()
    record = Record(planned_steps=planned_steps, step_size=step_size, scale=scale_of(model))
    monitor = Monitor(record)
    monitor._attach(measuring, schedule, log)
    return monitor


class Monitor:
    """The measures of a training run so far, and the verdict; made by `unlazy.watch` or `Monitor.load`.

    Parameters
    ----------
    record : Record
        Checks of the run.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, unlazy
    >>> monitor = unlazy.watch((lambda w, X: X @ w, jnp.ones((2, 1))), np.ones((8, 2), "float32"))
    >>> monitor.verdict.word
    'too early'
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._measuring: Measuring | None = None
        self._schedule: Schedule | None = None
        self._log: Log | None = None
        self._params: Params | None = None
        self._failed: dict[str, str] = {}

    def _attach(self, measuring: Measuring, schedule: Schedule, log: Log | None) -> None:
        """Watch a living network."""
        self._measuring, self._schedule, self._log = measuring, schedule, log

    # while training

    def step(self) -> None:
        """Count one training step, and check if one is due; call it after the optimizer's step."""
        if self._live()[1].step():
            self._check(forced=False)

    def update(self, params: Params) -> None:
        """Count one training step of a JAX network and take its new parameters, and check if one is due.

        Parameters
        ----------
        params : pytree
            The network's parameters, of the same structure as those that `watch` was given.
        """
        schedule = self._live()[1]
        self._params = params  # the model takes them when it is measured
        if schedule.step():
            self._check(forced=False)

    def check(self) -> Check | None:
        """Take all measures now, whatever they cost.

        Returns
        -------
        Check or None
            None if the network could not be measured, which is warned of once.
        """
        self._live()
        return self._check(forced=True)

    def _current(self) -> Record:
        """The record for a user who asks for results, after a check if the last one is old or there is none."""
        measuring, schedule = self._measuring, self._schedule
        if measuring is None or schedule is None or not schedule.steps:
            return self.record
        last = self._record.checks[-1].step if self._record.checks else 0
        if last < schedule.steps and (schedule.ended or last * GROWTH < schedule.steps) and self._readable():
            self._check(forced=True, measures=("gap", "features"))
        return self.record

    def _readable(self) -> bool:
        """Whether the parameters are still there: a later step may have taken them."""
        if self._attempt("parameters", _returning_true(self._take)) is None:
            return False
        try:
            return self._live()[0].model.params is not None
        except ValueError:
            return False

    def _take(self) -> None:
        """Give the model the latest parameters."""
        if self._params is not None:
            self._live()[0].model.update(self._params)
            self._params = None

    # results

    @property
    def record(self) -> Record:
        """The checks and facts of the run, as plain values."""
        if self._schedule is None:
            return self._record
        return replace(self._record, step=self._schedule.steps, overhead=self._schedule.overhead)

    @property
    def verdict(self) -> Verdict:
        """Lazy, intermediate or rich at the end of the run, from the checks so far.

        Takes a check first if the last one is old.
        """
        return self._current().verdict

    @property
    def advice(self) -> Advice:
        """What would move the run to the nearest other regime, with the laws and costs."""
        return self.advise()

    def advise(self, target_gap: float | None = None, *, earlier: Sequence["Monitor"] = ()) -> Advice:
        """Output scale, initialization, width or learning rate that would move the run to a requested gap [W6].

        Parameters
        ----------
        target_gap : float, optional
            Linearization gap at the end of the run, between 0 and 1. By default that of the nearest other regime.
        earlier : sequence of Monitor, default ()
            Runs of the same network at other scales, such as the one whose advice this run follows. Two runs fix the
            exponent of the law, which small gaps need.

        Returns
        -------
        Advice
        """
        self._current()
        if self._measuring is not None and math.isnan(self._record.degree):
            degree = self._attempt("degree", self._measuring.degree)
            self._record = replace(self._record, degree=0.0 if degree is None or math.isnan(degree) else degree)
        return self.record.advise(target_gap, [other.record for other in earlier])

    def rescale(self, model: object, target_gap: float, *, earlier: Sequence["Monitor"] = ()) -> Rescaled:
        """The network with another output scale, f_0 + α (f - f_0), for a requested gap; at θ_0 again, with its rates.

        Parameters
        ----------
        model : torch.nn.Module, Equinox or Flax nnx module, or pair (apply, params)
            The network that is watched. It is copied, not changed.
        target_gap : float
            Linearization gap at the end of the run, between 0 and 1.
        earlier : sequence of Monitor, default ()
            Runs of the same network at other scales.

        Returns
        -------
        Rescaled
            The network, α and the learning rates.

        Raises
        ------
        ValueError
            If the run is too young or broken, or was loaded from a file.
        """
        measuring, _ = self._live()
        found = self.advise(target_gap, earlier=earlier).scale
        if found is None:
            raise ValueError(f"there is no advice for this run yet: {self.verdict}")
        factor, rate = found.scale / self._record.scale, self._record.step_size
        return Rescaled(
            rescale_network(model, found.scale, measuring.reference),
            found.scale,
            step_size=None if rate is None else rate / factor**2,
            adam_step_size=None if rate is None else rate / factor,
            adam_eps_factor=factor,
            low=found.low,
            high=found.high,
        )

    def compare_with_kernel(self, training_points: int | None = None) -> KernelMachine:
        """Would a fixed kernel do as well? Fits the probe targets by the tangent kernel at initialization.

        Takes two products with the Jacobian per probe point (at most 256) and output (at most 4).

        Parameters
        ----------
        training_points : int, optional
            Number of points that the network is trained on: the error of the kernel is predicted for it.

        Returns
        -------
        KernelMachine
            Also part of `advice` from now on.

        Raises
        ------
        ValueError
            If there are no targets, or the monitor was loaded from a file.
        """
        if training_points is not None:
            check_positive_integer("training_points", training_points)
        found = self._live()[0].kernel_machine(training_points)
        self._record = replace(self._record, kernel_machine=found)
        return found

    def frame(self) -> "pd.DataFrame":
        """Table of all measures: one row per check.

        Returns
        -------
        pandas.DataFrame
            Columns of layers are named "layer/measure".
        """
        return self._current().frame()

    def figure(self) -> "Figure":
        """Plots of the gap, its forecast, kernel, layers and loss over training steps.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from unlazy.diagnostics.figure import draw

        return draw(self._current())

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, for `Monitor.load` and ``unlazy watch``.

        Parameters
        ----------
        path : str or Path
            File to write, such as "run.json".

        Returns
        -------
        Path
            The file.
        """
        return self._current().save(path)

    def page(self, path: str | Path) -> Path:
        """Write the results as a self-contained HTML page.

        Parameters
        ----------
        path : str or Path
            File to write, such as "page.html".

        Returns
        -------
        Path
            The page.

        Raises
        ------
        UnlazyError
            If the file cannot be written.
        """
        from unlazy.diagnostics.report.page import write_page

        return write_page(self.record, path)

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """Read what `save` wrote; the network is not part of the file.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Monitor
            With all results; it cannot take checks.

        Raises
        ------
        UnlazyError
            If the file is of another kind or version.
        """
        return cls(Record.load(path))

    def __str__(self) -> str:
        return str(self.verdict)

    def __repr__(self) -> str:
        return display.text(self._current())

    def _repr_html_(self) -> str:
        return display.html(self._current())

    # checks

    def _live(self) -> tuple[Measuring, Schedule]:
        if self._measuring is None or self._schedule is None:
            raise ValueError("this monitor was loaded from a file and has no network: call unlazy.watch for a new run")
        return self._measuring, self._schedule

    def _check(self, forced: bool, measures: Sequence[str] = MEASURES) -> Check | None:
        """Take the measures that the budget allows, or all of the named ones; never raise."""
        measuring, schedule = self._live()
        if self._attempt("parameters", _returning_true(self._synchronize)) is None or "gap" in self._failed:
            return None
        before = schedule.all_seconds
        if not self._prepared(forced):
            return None
        if measuring.wanted_points > measuring.points and (forced or schedule.allows_more_points()):
            measuring.add_points()
        check = Check(schedule.steps, schedule.training_seconds)
        for name in measuring.available():
            if name not in measures or name in self._failed or not (forced or self._allowed(name)):
                continue
            found = self._measure(name, forced)
            if "gap" in self._failed:
                return None
            check = replace(check, **(found or {}))
            if math.isnan(check.change):  # not finite
                break
        schedule.checked()
        check = replace(check, cost=schedule.all_seconds - before)
        self._record = replace(
            self._record.with_check(check), output_layers=measuring.output_layers, initial_loss=measuring.initial_loss
        )
        self._report(check)
        return check

    def _synchronize(self) -> None:
        """Take the latest parameters and wait for them."""
        self._take()
        measuring, schedule = self._live()
        schedule.synchronize(measuring.model.wait)

    def _prepared(self, forced: bool) -> bool:
        """Whether the gap can be measured now: the initial network was or is evaluated, and the budget allows a gap."""
        if not self._live()[0].ready:
            allowed = forced or self._allowed("start")
            if not allowed or self._measure("start", forced) is None:
                return False
        return forced or self._allowed("gap")

    def _allowed(self, name: str) -> bool:
        """Whether the budget allows a measure now; a gap that is not allowed is postponed."""
        measuring, schedule = self._live()
        startup = measuring.startup if name in ("start", "gap") else 0.0
        allowed = schedule.allows(name, startup)
        if not allowed and name in ("start", "gap"):
            schedule.postpone(name, startup)
        return allowed

    def _measure(self, name: str, forced: bool) -> Fields | None:
        """One measure, timed; None if it failed."""
        measuring, schedule = self._live()
        with schedule.timed(name, forced):
            found = self._attempt("gap" if name == "start" else name, lambda: measuring.measure(name))
        if name == "start" and found is not None:
            schedule.evaluated(measuring.evaluation_seconds)
        return found

    def _report(self, check: Check) -> None:
        if self._log is not None:
            log, verdict = self._log, self.record.verdict
            numbers: dict[str, object] = {PREFIX + name: value for name, value in check.numbers().items()}
            if verdict.forecast is not None:
                numbers[PREFIX + "forecast"] = verdict.forecast.gap
            if self._attempt("log", _returning_true(partial(log, numbers))) is None:
                self._log = None

    def _attempt(self, what: str, action: Callable[[], T]) -> T | None:
        """The result, or None if it failed: warn once, never raise, and do not try again."""
        if what in self._failed:
            return None
        try:
            return action()
        except Exception as error:  # whatever the user's network or log raises must not end the training
            message = f"{what} failed at step {self._live()[1].steps}: {type(error).__name__}: {error}"
            if not self._failed:
                text = f"unlazy.watch: {message}. Training continues; this is no longer measured."
                warnings.warn(text, UnlazyWarning, stacklevel=4)
            self._failed[what] = message
            self._record = replace(self._record, notes=(*self._record.notes, message))
            return None


def _returning_true(action: Callable[[], object]) -> Callable[[], bool]:
    """The action with the result True, which tells it from a failed attempt."""

    def act() -> bool:
        action()
        return True

    return act
