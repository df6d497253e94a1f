"""Actions after each solver step: stopping rules, progress display, validation and checkpoints."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from unlazy.core.arrays import Matrix
from unlazy.core.progress import Progress, ProgressDisplay, ProgressOption
from unlazy.solvers.checkpoint import Checkpoint, State

QUIET_SECONDS = 3.0
"""No progress is shown for runs shorter than this."""
PATIENCE = 5
"""Validation checks without improvement after which a run stops."""


@dataclass(frozen=True)
class SolverProgress(Progress):
    """Progress of `solve`, passed to a callback after every step.

    Attributes
    ----------
    what, step, total, seconds, note
        As in `Progress`.
    residual : float
        Current residual, relative to the labels.
    seconds_left : float
        Estimated remaining time, from the rate at which the residual decreases.
    validation_error : float
        Mean squared error on the held-out points; NaN without `validation`.
    """

    residual: float = math.nan
    seconds_left: float = math.nan
    validation_error: float = math.nan


@dataclass
class SolverCallback:
    """Decides after every step whether to stop; `validate` maps coefficients to an error on held-out points."""

    tolerance: float
    max_steps: int
    progress: ProgressOption = False
    validate: Callable[[np.ndarray], float] | None = None
    checkpoint: Checkpoint | None = None
    best_error: float = math.inf
    best: np.ndarray | None = None
    best_residual: float = math.inf
    centers: Matrix | None = None
    """The centers, if the method does not use all points: validation needs them."""
    _since_best: int = 0
    _history: list[tuple[float, float]] = field(default_factory=list)
    _display: ProgressDisplay | None = None

    def __post_init__(self) -> None:
        if self.progress:
            self._display = ProgressDisplay("solving", show=not callable(self.progress), delay=QUIET_SECONDS)

    def resume(self) -> State | None:
        """Return the state of an earlier run, or None."""
        return self.checkpoint.load() if self.checkpoint is not None else None

    def after_step(
        self, step: int, residual: float, coefficients: Callable[[], np.ndarray], state: Callable[[], State]
    ) -> str | None:
        """Return the reason to stop now, or None. A NaN residual stops the run as 'stalled'."""
        error = self._validation_error(coefficients, residual) if self.validate is not None else math.nan
        if self._display is not None:
            self._show(self._display, step, residual, error)
        reason = None
        if not math.isfinite(residual):
            return self._close("stalled")
        if residual <= self.tolerance:
            reason = "tolerance"
        elif self._since_best >= PATIENCE:
            reason = "validation"
        elif step >= self.max_steps:
            reason = "steps"
        if self.checkpoint is not None:
            self.checkpoint.save(state, now=reason is not None)
        return self._close(reason) if reason else None

    def during_step(self, state: Callable[[], State]) -> None:
        """Write a checkpoint inside a long step, if one is due."""
        if self.checkpoint is not None:
            self.checkpoint.save(state)

    def _close(self, reason: str) -> str:
        if self._display is not None:
            self._display.close()
        return reason

    def _validation_error(self, coefficients: Callable[[], np.ndarray], residual: float) -> float:
        now = coefficients()
        error = self.validate(now)  # type: ignore[misc]
        if error < 0.999 * self.best_error:
            self.best_error, self.best, self.best_residual, self._since_best = error, now.copy(), residual, 0
        else:
            self._since_best += 1
        return error

    def _show(self, display: ProgressDisplay, step: int, residual: float, error: float) -> None:
        seconds = display.seconds
        self._history.append((seconds, residual))
        left = self._seconds_left(step, seconds)
        note = f"step {step}, residual {residual:.2g} (to reach {self.tolerance:.2g}), about {left:.0f} s left"
        if callable(self.progress):
            self.progress(SolverProgress("solving", step, self.max_steps, seconds, note, residual, left, error))
        display.advance(note)

    def _seconds_left(self, step: int, seconds: float) -> float:
        """Time to reach the tolerance at the recent rate, or to the last step if that is sooner."""
        recent = self._history[-10:]
        (t0, r0), (t1, r1) = recent[0], recent[-1]
        limit = (self.max_steps - step) * seconds / max(step, 1)
        if len(recent) < 3 or not 0 < r1 < r0 or t1 <= t0 or self.tolerance <= 0:
            return limit
        rate = math.log(r0 / r1) / (t1 - t0)
        return min(limit, max(0.0, math.log(r1 / self.tolerance) / rate))
