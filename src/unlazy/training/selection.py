"""Which kernel, which metric, how many updates: chosen by leave-one-out, the metric of every fold learnt without its
labels.

A metric has seen the labels it was learnt from, so leave-one-out over coefficients alone is too hopeful: for every fold
R the trajectory is run with the coefficients that never saw R (closed form, no refit), and the rows of R are predicted
with that metric by coefficients that never saw them. What an update promises is then what it keeps.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.kernels.base import Kernel
from unlazy.training.geometry import Geometry, geometry
from unlazy.training.leave_one_out import Place, descend, error_of, fit, invert, leave_one_out
from unlazy.training.recursive_features import FIRST_RIDGE, isotropic, normalised, root, updated

Begin = Callable[[np.ndarray], np.ndarray]
PATIENCE = 0.99
"""An update is worth a further one if it brings the error below this share of the best before it."""
RACE = 1.5
"""A kernel whose first update leaves it this far behind the best of all is given up."""
BLIND = 0.9
"""A plain kernel that explains less than a tenth gets four updates before it is given up: metrics start slowly."""
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
    learning: Place
    """Bandwidth (in units of the usual one) and ridge of the fits whose gradients make the metric."""
    final: Place
    """Bandwidth and ridge of the last fit."""
    held_out: Float[np.ndarray, "n c"]
    error: float
    table: tuple[tuple[int, int, float], ...]
    """(candidate, updates, error) of all that was tried."""


class _State:
    """One candidate in the race: its folds' metrics, its errors."""

    def __init__(self, candidate: Candidate, place: Place, error: float, held_out: np.ndarray, first: list[np.ndarray]):
        self.candidate, self.place = candidate, place
        self.learning = (place[0], min(place[1], LEARNING_RIDGE))
        self.matrices = [first]
        self.errors, self.held_out = [error], [held_out]

    @property
    def best(self) -> int:
        return int(np.argmin(self.errors))


def select(
    candidates: Sequence[Candidate],
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    *,
    weights: Float[np.ndarray, " n"] | None = None,
    updates: int = 8,
    folds: int | None = None,
    bandwidth: float | None = None,
    ridge: float | None = None,
    rank: int | None = None,
    begin: Begin | None = None,
    last: bool = False,
    seed: int = 0,
    advance: Callable[[str], None] = lambda note: None,
) -> Selected:
    """The best of all candidates after 0 to `updates` updates, with its bandwidth and ridge.

    `bandwidth` and `ridge` fix what is otherwise searched, in the units of `recursive_features.learn`. `begin` gives
    the first metric from the rows whose labels it may use (W¹ᵀW¹ of Algorithm 1, say) instead of the identity.
    `last` makes all updates, and chooses the rest.
    """
    n = len(X)
    folds = min(n, folds or (3 if n < 600 else 2))
    fold = np.random.default_rng(seed).permutation(n) % folds
    race = _Race(X, Y, weights, fold, folds, rank)
    states = race.start(candidates, bandwidth, ridge, begin)
    top = min(s.errors[0] for s in states)
    for s in states:
        while folds > 1 and len(s.errors) <= updates:
            race.advance(s)
            advance(type(s.candidate.kernel).__name__)
            top = min(top, s.errors[-1])
            if last:
                continue
            hopeless = s.errors[0] > BLIND and len(s.errors) <= 4
            if s.errors[-1] > RACE * top or (s.errors[-1] > PATIENCE * min(s.errors[:-1]) and not hopeless):
                break
    winner = min(states, key=lambda s: s.errors[-1] if last else min(s.errors))
    table = tuple((i, t, e) for i, s in enumerate(states) for t, e in enumerate(s.errors))
    t = len(winner.errors) - 1 if last else winner.best
    if t == 0 and begin is None:
        return Selected(winner.candidate, 0, winner.learning, winner.place, winner.held_out[0], winner.errors[0], table)
    place, error, held_out = race.refine(winner, t, bandwidth is None, ridge is None)
    return Selected(winner.candidate, t, winner.learning, place, held_out, error, table)


class _Race:
    def __init__(self, X, Y, weights, fold, folds, rank):  # type: ignore[no-untyped-def]
        self.X, self.Y, self.weights, self.rank = X, Y, weights, rank
        self.rows = [np.flatnonzero(fold == k) for k in range(folds)]
        self.others = [np.flatnonzero(fold != k) for k in range(folds)]

    def start(
        self, candidates: Sequence[Candidate], bandwidth: float | None, ridge: float | None, begin: Begin | None
    ) -> list[_State]:
        """The plain kernels, bandwidth and ridge by leave-one-out: nothing but coefficients has seen a label."""
        done: dict[int, tuple] = {}
        for c in candidates:
            if id(c.kernel) in done:
                continue
            usual = place = ((bandwidth or 1.0), FIRST_RIDGE if ridge is None else ridge)
            for rows in self._stages():
                X, Y, w = self.X[rows], self.Y[rows], None if self.weights is None else self.weights[rows]
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
            states.append(_State(c, *done[id(c.kernel)], first))
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
        factor, rho = s.learning
        matrices = []
        for k, M in enumerate(s.matrices[-1]):
            seen = self._seen(s, M)
            h = factor * seen.usual
            inverse = invert(seen.gram(h), rho, self.weights)
            if inverse is None:  # not positive to rounding: no further update
                matrices = list(s.matrices[-1])
                break
            alpha = inverse.without(inverse.fit(self.Y, self.weights).alpha, self.rows[k])
            matrices.append(updated(seen, h, alpha, s.candidate.metric, M, self.others[k]))
        s.matrices.append(matrices)
        s.held_out.append(self.Y)
        s.errors.append(math.inf)
        self._judge(s, -1)

    def refine(self, s: _State, t: int, bandwidth: bool, ridge: bool) -> tuple[Place, float, np.ndarray]:
        """Bandwidth and ridge of the last fit, by the same held-out predictions."""
        seen = [self._seen(s, M) for M in s.matrices[t]]

        place, value = descend(
            lambda h, rho: self._error(self._predicted(seen, (h, rho))), s.place, ridge=ridge, bandwidth=bandwidth,
            steps=((2.0, 10.0**0.5),),
        )  # fmt: skip
        return place, value, self._predicted(seen, place)

    def _seen(self, s: _State, M: np.ndarray) -> Geometry:
        return geometry(s.candidate.kernel, self.X, root(M, self.rank if s.candidate.metric == "low_rank" else None))

    def _judge(self, s: _State, t: int) -> None:
        """Error and held-out predictions with the folds' metrics after t updates; with the plain kernel's ridge, and
        with the one the metric was learnt with, where that is smaller: a better metric needs less."""
        seen = [self._seen(s, M) for M in s.matrices[t]]
        found = [self._predicted(seen, place) for place in dict.fromkeys((s.place, s.learning))]
        errors = [self._error(predicted) for predicted in found]
        best = int(np.argmin(errors))
        s.held_out[t], s.errors[t] = found[best], errors[best]
        if best:
            s.place = s.learning

    def _predicted(self, seen: list[Geometry], place: Place) -> np.ndarray:
        found = np.full_like(self.Y, np.nan)
        for rows, g in zip(self.rows, seen):
            got = fit(g.gram(place[0] * g.usual), self.Y, place[1], self.weights)
            if got is not None:
                found[rows] = got.held_out[rows]
        return found

    def _error(self, predicted: np.ndarray) -> float:
        found = error_of(predicted - self.Y, self.Y, self.weights)
        return found if math.isfinite(found) else math.inf
