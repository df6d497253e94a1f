"""Choice of the labels to fit: the original ones, clipped ones if they are heavy-tailed (`heavy_tails`), or both."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.averaging import FitFunction, leave_one_out_predictions
from unlazy.estimators.feature_search.final_fit import KernelModel, predict_rows
from unlazy.estimators.feature_search.heavy_tails import clip_labels, kurtosis, outlier_treatment, residual_tail
from unlazy.estimators.feature_search.search import Selected
from unlazy.estimators.feature_search.trajectory import KernelCandidate

SearchFunction = Callable[[Sequence[KernelCandidate], Training], Selected]
"""Searches these candidates on these rows."""


class LabelChoice(NamedTuple):
    """What to fit to which labels."""

    fits: list[tuple[Selected, Training]]
    outliers: str
    """'kept', 'clipped', or 'averaged': one fit of each."""
    clip: Float[np.ndarray, " c"]
    """Largest distance of clipped labels from predictions; inf if none was clipped."""


def choose_labels(
    found: Selected, data: Training, rows: np.ndarray, find: SearchFunction, learn: FitFunction
) -> LabelChoice:
    """Choose the labels; `found` is the result of the search on these `rows` of the data."""
    part = data.rows(rows)
    seen = residual_tail(found.held_out, part)
    kept = LabelChoice([(found, data)], "kept", np.full_like(seen.limit, np.inf))
    if np.isinf(seen.limit).all():
        return kept
    around = found.held_out
    if data.n > part.n:
        around = leave_one_out_predictions(found, data, learn)
        around[rows] = found.held_out
    clipped_data = clip_labels(data, around, seen.limit)
    other = find([one.candidate for one in (found, *found.ties)], clipped_data.rows(rows))
    treatment = outlier_treatment(found.held_out, other.held_out, part)
    if treatment == "kept":
        return kept
    fits = [(other, clipped_data)] if treatment == "clipped" else [(found, data), (other, clipped_data)]
    return LabelChoice(fits, treatment, seen.limit)


def choose_labels_large(
    candidate: KernelCandidate, data: Training, rows: np.ndarray, find: SearchFunction, learn: FitFunction
) -> LabelChoice:
    """Choose the labels for many rows, with one candidate on a sample, if the target itself is heavy-tailed.

    Fits are not averaged; `fits` holds the labels of all rows.
    """
    kept = LabelChoice([], "kept", np.full(data.Y.shape[1], np.inf))
    if not (kurtosis(data.Y, data.weights) > thresholds.HEAVY_KURTOSIS).any():
        return kept
    part = data.rows(rows)
    found = find([candidate], part)
    chosen = choose_labels(found, part, np.arange(part.n), find, learn)
    if chosen.outliers != "clipped":
        return kept
    fit = learn(found, part)
    model = KernelModel(part.X, fit.dual_coef, fit.intercept, None, "cholesky", fit.ridge)
    around = predict_rows(fit.kernel, fit.map, fit.bandwidth, model, data.X)
    labels = clip_labels(data, around, chosen.clip)
    labels.Y[rows] = chosen.fits[0][1].Y
    return LabelChoice([(found, labels)], "clipped", chosen.clip)
