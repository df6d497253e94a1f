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
from unlazy.training.geometry import geometry
from unlazy.training.leave_one_out import descend, error_of, fit, invert, leave_one_out
from unlazy.training.recursive_features import FIRST_RIDGE, isotropic, root, updated

PATIENCE = 0.99
"""An update is worth a further one if it brings the error below this share of the best before it."""
RACE = 1.5
"""A kernel whose first update leaves it this far behind the best of all is given up."""
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
    learning: tuple[float, float]
    """Bandwidth (in units of the usual one) and ridge of the fits whose gradients make the metric."""
    final: tuple[float, float]
    """Bandwidth and ridge of the last fit."""
    held_out: Float[np.ndarray, "n c"]
    error: float
    table: tuple[tuple[int, int, float], ...]
    """(candidate, updates, error) of all that was tried."""


class _State:
    """One candidate in the race: its folds' metrics, its errors."""

    def __init__(self, candidate: Candidate, place: tuple[float, float], error: float, held_out: np.ndarray, d: int, folds: int):
        self.candidate, self.place = candidate, place
        self.learning = (place[0], min(place[1], LEARNING_RIDGE))
        self.matrices = [[isotropic(d, candidate.metric)] * folds]
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
    seed: int = 0,
    advance: Callable[[str], None] = lambda note: None,
) -> Selected:
    """The best of all candidates after 0 to `updates` updates, with its bandwidth and ridge."""
    n = len(X)
    folds = min(n, folds or (3 if n < 600 else 2))
    fold = np.random.default_rng(seed).permutation(n) % folds
    race = _Race(X, Y, weights, fold, folds, rank)
    states = race.start(candidates, bandwidth, ridge)
    top = min(s.errors[0] for s in states)
    for s in states:
        while folds > 1 and len(s.errors) <= updates:
            race.advance(s)
            advance(type(s.candidate.kernel).__name__)
            top = min(top, s.errors[-1])
            if s.errors[-1] > RACE * top or s.errors[-1] > PATIENCE * min(s.errors[:-1]):
                break
    winner = min(states, key=lambda s: min(s.errors))
    table = tuple((i, t, e) for i, s in enumerate(states) for t, e in enumerate(s.errors))
    t = winner.best
    if t == 0:
        return Selected(winner.candidate, 0, winner.learning, winner.place, winner.held_out[0], winner.errors[0], table)
    place, error, held_out = race.refine(winner, t, bandwidth is None, ridge is None)
    return Selected(winner.candidate, t, winner.learning, place, held_out, error, table)


class _Race:
    def __init__(self, X, Y, weights, fold, folds, rank):  # type: ignore[no-untyped-def]
        self.X, self.Y, self.weights, self.rank = X, Y, weights, rank
        self.rows = [np.flatnonzero(fold == k) for k in range(folds)]
        self.others = [np.flatnonzero(fold != k) for k in range(folds)]

    def start(self, candidates: Sequence[Candidate], bandwidth: float | None, ridge: float | None) -> list[_State]:
        """The plain kernels, bandwidth and ridge by leave-one-out: nothing but coefficients has seen a label."""
        done: dict[int, tuple] = {}
        for c in candidates:
            if id(c.kernel) in done:
                continue
            place = ((bandwidth or 1.0), FIRST_RIDGE if ridge is None else ridge)
            for rows, steps in self._stages():
                X, Y, w = self.X[rows], self.Y[rows], None if self.weights is None else self.weights[rows]
                seen = geometry(c.kernel, X, root(isotropic(X.shape[1], "diagonal", X.dtype)))
                (h, rho), error = descend(
                    leave_one_out(seen.gram, Y, w), (place[0] * seen.usual, place[1]), steps=steps,
                    ridge=ridge is None, bandwidth=bandwidth is None,
                )  # fmt: skip
                place = (h / seen.usual, rho)
            got = fit(seen.gram(h), self.Y, rho, self.weights)
            held_out = np.full_like(self.Y, np.nan) if got is None else got.held_out
            done[id(c.kernel)] = (place, error, held_out)
        return [_State(c, *done[id(c.kernel)], self.X.shape[1], len(self.rows)) for c in candidates]

    def _stages(self) -> list[tuple[slice, tuple]]:
        """Where many rows: large steps on a part of them first, which cost little."""
        n = len(self.X)
        coarse, fine = (2.0, 10.0), (2.0**0.5, 10.0**0.5)
        if n <= 1.5 * FIRST:
            return [(slice(None), (coarse, fine))]
        return [(slice(None, None, -(-n // FIRST)), (coarse,)), (slice(None), (fine,))]

    def advance(self, s: _State) -> None:
        """One more update in every fold, without the labels of its rows, and the error it leaves."""
        factor, rho = s.learning
        matrices = []
        for k, M in enumerate(s.matrices[-1]):
            seen = self._seen(s, M)
            h = factor * seen.usual
            inverse = invert(seen.gram(h), rho, self.weights)
            if inverse is None:
                s.errors.append(math.inf)
                s.held_out.append(s.held_out[-1])
                s.matrices.append(s.matrices[-1])
                return
            alpha = inverse.without(inverse.fit(self.Y, self.weights).alpha, self.rows[k])
            matrices.append(updated(seen, h, alpha, s.candidate.metric, M, self.others[k]))
        s.matrices.append(matrices)
        held_out = self._held_out(s, matrices, s.place)
        s.held_out.append(held_out)
        s.errors.append(error_of(held_out - self.Y, self.Y, self.weights))

    def refine(self, s: _State, t: int, bandwidth: bool, ridge: bool):  # type: ignore[no-untyped-def]
        """Bandwidth and ridge of the last fit, by the same held-out predictions."""
        seen = [self._seen(s, M) for M in s.matrices[t]]

        def predicted(factor: float, rho: float) -> np.ndarray:
            found = np.full_like(self.Y, np.nan)
            for k, g in enumerate(seen):
                got = fit(g.gram(factor * g.usual), self.Y, rho, self.weights)
                if got is not None:
                    found[self.rows[k]] = got.held_out[self.rows[k]]
            return found

        def error(factor: float, rho: float) -> float:
            return error_of(predicted(factor, rho) - self.Y, self.Y, self.weights)

        place, value = descend(error, s.place, ridge=ridge, bandwidth=bandwidth, steps=((2.0, 10.0**0.5),))
        return place, value, predicted(*place)

    def _seen(self, s: _State, M: np.ndarray):  # type: ignore[no-untyped-def]
        return geometry(s.candidate.kernel, self.X, root(M, self.rank if s.candidate.metric == "low_rank" else None))

    def _held_out(self, s: _State, matrices: list[np.ndarray], place: tuple[float, float]) -> np.ndarray:
        found = np.full_like(self.Y, np.nan)
        for k, M in enumerate(matrices):
            g = self._seen(s, M)
            got = fit(g.gram(place[0] * g.usual), self.Y, place[1], self.weights)
            if got is not None:
                found[self.rows[k]] = got.held_out[self.rows[k]]
        return found
