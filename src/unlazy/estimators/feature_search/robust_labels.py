"""Which labels to fit: those given, clipped ones where the given are heavy-tailed (`heavy_tails`), or both."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.averaging import Learn, left_out
from unlazy.estimators.feature_search.final_fit import Model, predictions
from unlazy.estimators.feature_search.heavy_tails import clipped, kurtosis, tail, verdict
from unlazy.estimators.feature_search.search import Selected
from unlazy.estimators.feature_search.trajectory import Candidate

Find = Callable[[Sequence[Candidate], Training], Selected]
"""A search of these candidates on these rows."""


class Chosen(NamedTuple):
    """What to fit to which labels, and what was done."""

    fits: list[tuple[Selected, Training]]
    outliers: str
    """'kept', 'clipped', or 'averaged': one of each."""
    clip: Float[np.ndarray, " c"]
    """Largest distance of clipped labels from predictions; infinite where none was clipped."""


def robustly(found: Selected, data: Training, rows: np.ndarray, find: Find, learn: Learn) -> Chosen:
    """The choice, where `found` is that of the search on `rows` of the data."""
    part = data.rows(rows)
    seen = tail(found.held_out, part)
    kept = Chosen([(found, data)], "kept", np.full_like(seen.reach, np.inf))
    if np.isinf(seen.reach).all():
        return kept
    around = found.held_out
    if data.n > part.n:
        around = left_out(found, data, learn)
        around[rows] = found.held_out
    milder = clipped(data, around, seen.reach)
    other = find([one.candidate for one in (found, *found.equals)], milder.rows(rows))
    word = verdict(found.held_out, other.held_out, part)
    if word == "kept":
        return kept
    fits = [(other, milder)] if word == "clipped" else [(found, data), (other, milder)]
    return Chosen(fits, word, seen.reach)


def milder(candidate: Candidate, data: Training, rows: np.ndarray, find: Find, learn: Learn) -> Chosen:
    """The same for many rows, with one candidate on some of them, and only where the target itself is heavy-tailed.
    There is no average: `fits` holds the labels of all rows."""
    kept = Chosen([], "kept", np.full(data.Y.shape[1], np.inf))
    if not (kurtosis(data.Y, data.weights) > thresholds.HEAVY).any():
        return kept
    part = data.rows(rows)
    found = find([candidate], part)
    chosen = robustly(found, part, np.arange(part.n), find, learn)
    if chosen.outliers != "clipped":
        return kept
    fit = learn(found, part)
    model = Model(part.X, fit.dual_coef, fit.intercept, None, "cholesky", fit.ridge)
    around = predictions(fit.kernel, fit.map, fit.bandwidth, model, data.X)
    labels = clipped(data, around, chosen.clip)
    labels.Y[rows] = chosen.fits[0][1].Y
    return Chosen([(found, labels)], "clipped", chosen.clip)
