"""Candidates of the search, their scores, and `MetricTrajectory`: a kernel and its metrics, update by update."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.stage_checkpoints import checkpointable
from unlazy.kernels.base import Kernel
from unlazy.solvers.ridge import BandwidthAndRidge
from unlazy.training.rfm.iteration import RfmStep, metric_power, normalize_metric, prune_metric


@checkpointable
class KernelCandidate(NamedTuple):
    """A kernel of bandwidth one and the kind of metric it learns."""

    kernel: Kernel
    metric: str


@checkpointable
class ScoredCandidate(NamedTuple):
    """A fit, scored by predictions of rows that it never saw."""

    place: BandwidthAndRidge
    """Bandwidth and ridge, both relative."""
    error: float
    held_out: Float[np.ndarray, "n c"]


class MetricTrajectory:
    """Metrics of a candidate after 0, 1, 2, … updates, one for each fold, and their scores."""

    def __init__(self, candidate: KernelCandidate, plain: ScoredCandidate, metrics: list[np.ndarray]):
        self.candidate = candidate
        self.steps: list[RfmStep] = []
        """The fits whose gradients gave the metrics, including those of an earlier kernel."""
        self.scored, self.metrics = [plain], [metrics]
        self.inherited_updates = 0
        """Number of updates made with an earlier kernel."""
        self.power = 1.0
        """Power of the AGOP in the updates."""
        self.turn = 0.0
        """Share of the metric whose directions are rotated by residuals; 0 for updates by gradients."""
        self.chosen: int | None = None
        """Number of updates chosen by other evidence than these errors."""
        self.views: tuple[int, list[Any]] | None = None
        """Number of updates, and the rows of the folds under their metrics after them; the latest ones are cached."""

    @property
    def errors(self) -> list[float]:
        """Errors after 0, 1, 2, … updates."""
        return [scored.error for scored in self.scored]

    @property
    def best(self) -> int:
        """Number of updates with the smallest error, unless another number was chosen."""
        return int(np.argmin(self.errors)) if self.chosen is None else self.chosen

    @property
    def best_error(self) -> float:
        """Error after `best` updates."""
        return self.errors[self.best]

    @property
    def projected_error(self) -> float:
        """Error after one more update that helps as much as the last one."""
        before, now = min(self.errors[:-1]), self.errors[-1]
        return min(self.best_error, now * (now / before) if before > 0 else 0.0)

    def next_step(self) -> RfmStep:
        """The fit whose gradients give the next metric."""
        h, rho = self.scored[-1].place
        return RfmStep(self.candidate.kernel, h, min(rho, constants.MAX_LEARNING_RIDGE), self.power, turn=self.turn)

    def needs_patience(self, best: float) -> bool:
        """Return whether it explains nothing yet, and no other candidate explains much."""
        return self.errors[0] > constants.EXPLAINS_NOTHING and best > constants.EXPLAINS_MUCH

    def is_promising(self, best: float) -> bool:
        """Return whether the last update helped, and another one like it would come near the best."""
        errors = self.errors
        before, now = min(errors[:-1]), errors[-1]
        slow = constants.SLOW_PATIENCE if self.power != 1 else 0
        if len(errors) <= (constants.PATIENCE if self.needs_patience(best) else slow):
            return True
        return now < constants.WORTH_ANOTHER_UPDATE * before and self.projected_error < constants.WITHIN_REACH * best

    def rotate_directions(self, share: float) -> "MetricTrajectory":
        """Trajectory that continues from the best metrics by rotating their directions."""
        t = self.best
        other = MetricTrajectory(self.candidate, self.scored[t], self.metrics[t])
        other.steps, other.inherited_updates, other.power = (
            self.steps[: self.inherited_updates + t],
            self.inherited_updates + t,
            self.power,
        )
        other.turn = share
        return other

    def continue_with(
        self, kernel: Kernel, power: float = 1.0, floor: float = 0.0, update: int | None = None
    ) -> "MetricTrajectory":
        """Trajectory of a kernel that continues from the best metrics, or from those of another update.

        The metrics are raised to a power and pruned; the result is not scored yet.
        """
        t, kind = self.best if update is None else update, self.candidate.metric
        metrics = [M if power == 1 else normalize_metric(metric_power(M, power), kind) for M in self.metrics[t]]
        start = self.scored[t]._replace(error=math.inf)
        other = MetricTrajectory(KernelCandidate(kernel, kind), start, [prune_metric(M, floor) for M in metrics])
        other.steps, other.inherited_updates, other.power = (
            self.steps[: self.inherited_updates + t],
            self.inherited_updates + t,
            power,
        )
        if other.steps:
            other.steps[-1] = other.steps[-1]._replace(power=power * other.steps[-1].power, floor=floor)
        return other
