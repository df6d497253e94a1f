"""One kernel and its metrics, update after update."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.stages import kept
from unlazy.kernels.base import Kernel
from unlazy.training.rfm.bandwidth_and_ridge import Place
from unlazy.training.rfm.iteration import Step, normalized, pruned, raised


@kept
class Candidate(NamedTuple):
    """A kernel of bandwidth one and the kind of metric it learns."""

    kernel: Kernel
    metric: str


@kept
class Judged(NamedTuple):
    """A fit by the predictions of rows it never saw."""

    place: Place
    """Bandwidth and ridge, both relative."""
    error: float
    held_out: Float[np.ndarray, "n c"]


class Trajectory:
    """A candidate's metrics after 0, 1, 2, … updates, one for every fold, and what each is worth."""

    def __init__(self, candidate: Candidate, plain: Judged, metrics: list[np.ndarray]):
        self.candidate = candidate
        self.steps: list[Step] = []
        """The fits whose gradients made the metrics, those of a kernel before this one included."""
        self.judged, self.metrics = [plain], [metrics]
        self.before = 0
        """Updates made by another kernel."""
        self.power = 1.0
        """Power of the AGOP in its updates."""
        self.turn = 0.0
        """Share of the metric whose directions its updates turn by residuals, instead of gradients."""
        self.views: tuple[int, list[Any]] | None = None
        """The folds' rows under their metrics after so many updates, the latest that were asked for."""

    @property
    def errors(self) -> list[float]:
        return [judged.error for judged in self.judged]

    @property
    def best(self) -> int:
        """The number of updates with the smallest error."""
        return int(np.argmin(self.errors))

    @property
    def smallest(self) -> float:
        return min(self.errors)

    @property
    def reach(self) -> float:
        """The error after one more update, if that is worth what the last one was."""
        before, now = min(self.errors[:-1]), self.errors[-1]
        return min(self.smallest, now * (now / before) if before > 0 else 0.0)

    def next_step(self) -> Step:
        """The fit whose gradients make the next metric."""
        h, rho = self.judged[-1].place
        return Step(self.candidate.kernel, h, min(rho, thresholds.LEARNING_RIDGE), self.power, turn=self.turn)

    def waited_for(self, best: float) -> bool:
        """Whether it explains nothing yet, and no other explains much."""
        return self.errors[0] > thresholds.EXPLAINS_NOTHING and best > thresholds.EXPLAINS_MUCH

    def promising(self, best: float) -> bool:
        """Whether one more update may pay: the last one did, and another like it would come near the best of all."""
        errors = self.errors
        before, now = min(errors[:-1]), errors[-1]
        slow = thresholds.SLOW_PATIENCE if self.power != 1 else 0
        if len(errors) <= (thresholds.PATIENCE if self.waited_for(best) else slow):
            return True
        return now < thresholds.WORTH_ANOTHER * before and self.reach < thresholds.WITHIN_REACH * best

    def turning(self, share: float) -> "Trajectory":
        """The best metrics here, whose directions are turned from now on."""
        t = self.best
        other = Trajectory(self.candidate, self.judged[t], self.metrics[t])
        other.steps, other.before, other.power = self.steps[: self.before + t], self.before + t, self.power
        other.turn = share
        return other

    def handed_to(
        self, kernel: Kernel, power: float = 1.0, floor: float = 0.0, update: int | None = None
    ) -> "Trajectory":
        """A kernel that goes on from the best metrics here, or those of another update, raised to a power and pruned;
        not yet judged."""
        t, kind = self.best if update is None else update, self.candidate.metric
        metrics = [M if power == 1 else normalized(raised(M, power), kind) for M in self.metrics[t]]
        start = self.judged[t]._replace(error=math.inf)
        other = Trajectory(Candidate(kernel, kind), start, [pruned(M, floor) for M in metrics])
        other.steps, other.before, other.power = self.steps[: self.before + t], self.before + t, power
        if other.steps:
            other.steps[-1] = other.steps[-1]._replace(power=power * other.steps[-1].power, floor=floor)
        return other


def surely_worse(new: Judged, old: Judged, judging: Training, by: float = 1.0) -> bool:
    """Whether the new one is worse on the rows that judge, by more than so many standard errors; what is not finite
    is."""
    return not difference(new.held_out, old.held_out, judging) <= by


def difference(new: Float[np.ndarray, "r c"], old: Float[np.ndarray, "r c"], judging: Training) -> float:
    """By how many standard errors the new predictions are worse: of the difference of squared errors, row by row."""
    more = np.sum((new - judging.Y) ** 2 - (old - judging.Y) ** 2, 1)
    w = np.ones(len(more)) if judging.weights is None else judging.weights
    mean = float(w @ more / w.sum())
    error = float(np.sqrt(w**2 @ (more - mean) ** 2) / w.sum())
    if not (math.isfinite(mean) and math.isfinite(error)):
        return math.inf
    return mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
