"""Which kernel, which metric, how many updates: chosen by leave-one-out, the metric of every fold learnt without its
labels.

A metric has seen the labels it was learnt from, so leave-one-out over coefficients alone is too hopeful: for every fold
R the trajectory is run on the other rows, and the rows of R are predicted with that metric by coefficients that never
saw them. What an update promises is then what it keeps.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.kernels.base import Kernel
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.solvers.intercept import coefficients, fit, unexplained
from unlazy.training.bandwidth_and_ridge import LARGEST, SMALLEST, Place, descend, leave_one_out
from unlazy.training.geometry import Geometry, geometry
from unlazy.training.recursive_features import FIRST_RIDGE, Step, isotropic, normalised, pruned, raised, root, updated

Begin = Callable[[np.ndarray], np.ndarray]
PATIENCE = 0.99
"""An update is worth a further one if it brings the error below this share of the best before it."""
RACE = 1.25
"""A kernel is given up where its error, falling once more as it just fell, would be this far behind the best of all."""
BLIND = 0.9
"""A plain kernel that explains less than a tenth gets four updates before it may be given up: metrics start slowly."""
RELAY = 0.98
"""Another kernel, or slow updates, take over a metric if their error is below this share."""
FLOOR = 2.0
"""Multiple of the median that is taken off what slow updates have found: inputs that do not matter go at last."""
HOPE = 1.1
"""Slow updates are tried where the metric they start from is not worse than this."""
SLOW = 0.6
"""Power of the AGOP in slow updates."""
FIRST = 400
"""Rows of the first look at bandwidths and ridges."""
LEARNING_RIDGE = 0.1
"""The largest ridge with which gradients are taken: a fit shrunk to nothing has none."""


class Candidate(NamedTuple):
    """A kernel of bandwidth one and the kind of metric it learns."""

    kernel: Kernel
    metric: str


class Selected(NamedTuple):
    """What to fit, and the evidence: predictions of every row by fits and metrics that never saw it."""

    candidate: Candidate
    updates: int
    steps: tuple[Step, ...]
    """The fits whose gradients make the metric (`recursive_features.follow`)."""
    final: Place
    """Bandwidth and ridge of the last fit, both relative."""
    held_out: Float[np.ndarray, "n c"]
    error: float
    table: tuple[tuple[int, int, float], ...]
    """(candidate, updates, error) of all that was tried."""


class _State:
    """One candidate in the race: its folds' metrics, its errors."""

    def __init__(self, candidate: Candidate, place: Place, error: float, held_out: np.ndarray, first: list[np.ndarray]):
        self.candidate = candidate
        self.steps: list[Step] = []
        self.places = [place]
        self.matrices = [first]
        self.errors, self.held_out = [error], [held_out]
        self.before = 0
        """Updates made by another kernel."""
        self.power = 1.0
        self.seen: tuple[int, list[Geometry]] | None = None
        """The folds' rows under their latest metrics, after so many updates."""

    def step(self) -> Step:
        """The fit whose gradients make the next metric."""
        h, rho = self.places[-1]
        return Step(self.candidate.kernel, h, min(rho, LEARNING_RIDGE), self.power)

    def handed_to(self, kernel: Kernel, power: float = 1.0, floor: float = 0.0) -> "_State":
        """A kernel with the metrics of this one's best iterate, those and later ones to a power; not yet judged."""
        t, metric = self.best, self.candidate.metric
        first = [M if power == 1 else normalised(raised(M, power), metric) for M in self.matrices[t]]
        first = [pruned(M, floor) for M in first]
        other = _State(Candidate(kernel, metric), self.places[t], math.inf, self.held_out[t], first)
        other.steps, other.before, other.power = self.steps[: self.before + t], self.before + t, power
        if other.steps:
            other.steps[-1] = other.steps[-1]._replace(power=power * other.steps[-1].power, floor=floor)
        return other

    @property
    def best(self) -> int:
        return int(np.argmin(self.errors))

    def promising(self, top: float) -> bool:
        """Whether one more update may pay: the last one did, and another like it would come near the best of all.
        Slow updates get two before they are judged."""
        before, now = min(self.errors[:-1]), self.errors[-1]
        if len(self.errors) <= (4 if self.errors[0] > BLIND else 2 if self.power != 1 else 0):
            return True
        return now < PATIENCE * before and now * (now / before) < RACE * top


def select(
    candidates: Sequence[Candidate],
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    *,
    weights: Float[np.ndarray, " n"] | None = None,
    updates: int = 8,
    folds: int | None = None,
    relative_bandwidth: float | None = None,
    relative_ridge: float | None = None,
    rank: int | None = None,
    begin: Begin | None = None,
    last: bool = False,
    seed: int = 0,
    advance: Callable[[str], None] = lambda note: None,
) -> Selected:
    """The best of all candidates after 0 to `updates` updates, with its bandwidth and ridge.

    `relative_bandwidth` and `relative_ridge` fix what is otherwise searched (`recursive_features.learn`). `begin` gives
    the first metric from the rows whose labels it may use (W¹ᵀW¹ of Algorithm 1, say) instead of the identity.
    `last` makes all updates, and chooses the rest.
    """
    n = len(X)
    folds = min(n, folds or (3 if n < 600 else 2))
    fold = np.random.default_rng(seed).permutation(n) % folds
    race = _Race(X, Y, weights, fold, folds, rank, (relative_bandwidth is None, relative_ridge is None))
    states = race.start(candidates, relative_bandwidth, relative_ridge, begin)
    race.run(states, updates if folds > 1 else 0, last, advance)
    table = tuple((i, t, e) for i, s in enumerate(states) for t, e in enumerate(s.errors))
    winner = min(states, key=lambda s: s.errors[-1] if last else min(s.errors))
    if folds > 1 and updates and not last:
        winner = race.relay(winner, candidates, updates, advance)
    t = len(winner.errors) - 1 if last else winner.best
    place, error, held_out = winner.places[t], winner.errors[t], winner.held_out[t]
    count = winner.before + t
    if count or begin is not None:
        place, error, held_out = race.refine(winner, t, relative_bandwidth is None, relative_ridge is None)
    return Selected(winner.candidate, count, tuple(winner.steps[:count]), place, held_out, error, table)


class _Race:
    def __init__(self, X, Y, weights, fold, folds, rank, free):  # type: ignore[no-untyped-def]
        self.X, self.Y, self.weights, self.rank, self.free = X, Y, weights, rank, free
        self.rows = [np.flatnonzero(fold == k) for k in range(folds)]
        self.others = [np.flatnonzero(fold != k) for k in range(folds)]
        self.folds = [self._part(np.concatenate([first, last])) for first, last in zip(self.others, self.rows)]
        """X, Y, weights with the rows of a fold at the end."""

    def start(
        self, candidates: Sequence[Candidate], bandwidth: float | None, ridge: float | None, begin: Begin | None
    ) -> list[_State]:
        """The plain kernels, bandwidth and ridge by leave-one-out: nothing but coefficients has seen a label."""
        done: dict[int, tuple[Place, float, np.ndarray]] = {}
        for c in candidates:
            if id(c.kernel) in done:
                continue
            usual = place = ((bandwidth or 1.0), FIRST_RIDGE if ridge is None else ridge)
            for rows in self._stages():
                X, Y, w = self._part(rows)
                seen = geometry(c.kernel, X, root(isotropic(X.shape[1], "diagonal", X.dtype)))
                loss = leave_one_out(seen.gram, Y, w)
                options = [(p[0] * seen.usual, p[1]) for p in dict.fromkeys((place, usual))]
                # what fewer rows chose may be a corner: the usual place is looked at again
                (h, rho), error = descend(
                    loss, min(options, key=lambda p: loss(*p)), ridge=ridge is None, bandwidth=bandwidth is None
                )
                place = (h / seen.usual, rho)
            got = fit(seen.gram(h), self.Y, rho, self.weights)
            held_out = np.full_like(self.Y, np.nan) if got is None else got.held_out
            done[id(c.kernel)] = (place, error, held_out)
        states = []
        for c in candidates:
            first = [isotropic(self.X.shape[1], c.metric, self.X.dtype)] * len(self.rows)
            place, error, held_out = done[id(c.kernel)]
            states.append(_State(c, place, error, held_out, first))
            if begin is not None:  # a metric that has seen labels: once a fold, without those of its rows
                states[-1].matrices = [[normalised(begin(rows), c.metric) for rows in self.others]]
                self._judge(states[-1], 0)
        return states

    def _stages(self) -> list[slice]:
        """Where there are many rows, a part of them first: it costs little and the search begins near its end."""
        n = len(self.X)
        return [slice(None)] if n <= 1.5 * FIRST else [slice(None, None, -(-n // FIRST)), slice(None)]

    def advance(self, s: _State) -> None:
        """One more update in every fold, without the labels of its rows, and the error it leaves."""
        step, matrices = s.step(), []
        for seen, M, (_, Y, w), others in zip(self._seen(s, -1), s.matrices[-1], self.folds, self.others):
            h, m = step.relative_bandwidth * seen.usual, len(others)
            try:
                alpha, _ = coefficients(seen.gram(h, m), Y[:m], step.relative_ridge, None if w is None else w[:m])
            except ValueError:  # not positive to rounding: no further update
                matrices = list(s.matrices[-1])
                break
            matrices.append(updated(seen, h, alpha, s.candidate.metric, M, self.rank, s.power))
        s.steps.append(step)
        s.matrices.append(matrices)
        s.held_out.append(self.Y)
        s.errors.append(math.inf)
        s.places.append(s.places[-1])
        self._judge(s, len(s.errors) - 1)

    def run(self, states: list[_State], updates: int, last: bool, advance: Callable[[str], None]) -> None:
        """Updates, round by round, of all that promise something (of all, where `last`)."""
        running = list(states)
        for _ in range(updates):
            for s in running:
                self.advance(s)
                advance(type(s.candidate.kernel).__name__)
            top = min(min(s.errors) for s in states)
            running = [s for s in running if last or s.promising(top)]
            for s in states:
                if s not in running:
                    s.seen = None

    def relay(
        self, winner: _State, candidates: Sequence[Candidate], updates: int, advance: Callable[[str], None]
    ) -> _State:
        """The winner, or one that goes on from its metric with slow updates, which keep inputs of little influence, and
        does better: the same kernel or another, since a rough one may be the first to find what a smooth one then uses
        best."""
        first, metric = winner, winner.candidate.metric
        if first.best:
            for kernel in {id(c.kernel): c.kernel for c in candidates}.values():
                if metric == "diagonal" or not isinstance(kernel, ProductLaplace):
                    winner = self._better(winner, first.handed_to(kernel, SLOW), updates, advance)
            if winner is not first:  # a better metric may suit another kernel
                for kernel in {id(c.kernel): c.kernel for c in candidates}.values():
                    if kernel is not winner.candidate.kernel and (
                        metric == "diagonal" or not isinstance(kernel, ProductLaplace)
                    ):
                        winner = self._better(winner, winner.handed_to(kernel), 0, advance)
                winner = self._better(winner, winner.handed_to(winner.candidate.kernel, floor=FLOOR), 0, advance)
            return winner
        for candidate in candidates:
            if candidate.kernel is winner.candidate.kernel:
                slow = winner.handed_to(candidate.kernel, SLOW)
                slow.candidate = candidate
                slow.matrices = [[isotropic(self.X.shape[1], candidate.metric, self.X.dtype)] * len(self.rows)]
                slow.errors[0] = winner.errors[0]
                self.run([slow], updates, False, advance)
                winner = slow if min(slow.errors) < RELAY * min(winner.errors) else winner
        return winner

    def _better(self, winner: _State, other: _State, updates: int, advance: Callable[[str], None]) -> _State:
        """`other` where it beats the winner, after as many updates of its own as pay."""
        if other.candidate.kernel is not winner.candidate.kernel:
            other.places[0] = (1.0, min(other.places[0][1], LEARNING_RIDGE))
        other.places[0], other.errors[0], other.held_out[0] = self.refine(other, 0, *self.free)
        if other.errors[0] < HOPE * min(winner.errors):
            self.run([other], updates, False, advance)
        return other if min(other.errors) < RELAY * min(winner.errors) else winner

    def refine(self, s: _State, t: int, bandwidth: bool, ridge: bool) -> tuple[Place, float, np.ndarray]:
        """Bandwidth and ridge of the last fit, by the same held-out predictions."""
        seen = self._seen(s, t)

        place, value = descend(
            lambda h, rho: self._error(self._predicted(seen, (h, rho))), s.places[t], ridge=ridge, bandwidth=bandwidth,
            steps=((2.0, 10.0**0.5),),
        )  # fmt: skip
        return place, value, self._predicted(seen, place)

    def _seen(self, s: _State, t: int) -> list[Geometry]:
        """Every fold's rows under its metric after t updates."""
        t = t % len(s.matrices)
        if s.seen is None or s.seen[0] != t:
            s.seen = (t, [geometry(s.candidate.kernel, X, root(M)) for (X, _, _), M in zip(self.folds, s.matrices[t])])
        return s.seen[1]

    def _part(self, rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return self.X[rows], self.Y[rows], None if self.weights is None else self.weights[rows]

    def _judge(self, s: _State, t: int) -> None:
        """Error and held-out predictions with the folds' metrics after t updates: at the place of the update before,
        and at a smaller ridge and a larger bandwidth by turns: what a better metric wants."""
        seen, (h, rho) = self._seen(s, t), s.places[t]
        options = [(h, rho)]
        if t % 2 and self.free[1]:
            options += [(h, min(rho, LEARNING_RIDGE)), (h, rho / 10)]
        elif self.free[0] and t:
            options.append((2 * h, rho))
        options = [p for p in dict.fromkeys(options) if SMALLEST <= p[1] <= LARGEST]
        found = [self._predicted(seen, place) for place in options]
        errors = [self._error(predicted) for predicted in found]
        for g in seen:
            g.forget()
        best = int(np.argmin(errors)) if min(errors) < PATIENCE * errors[0] else 0
        s.places[t], s.held_out[t], s.errors[t] = options[best], found[best], errors[best]

    def _predicted(self, seen: list[Geometry], place: Place) -> np.ndarray:
        found = np.full_like(self.Y, np.nan)
        for rows, (_, Y, w), g in zip(self.rows, self.folds, seen):
            got = fit(g.gram(place[0] * g.usual), Y, place[1], w, len(rows))
            if got is not None:
                found[rows] = got.held_out
        return found

    def _error(self, predicted: np.ndarray) -> float:
        found = unexplained(predicted - self.Y, self.Y, self.weights)
        return found if math.isfinite(found) else math.inf
