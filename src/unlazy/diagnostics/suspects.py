"""Training rows whose targets look wrong: what the other rows say of each, by the network and by their neighbors [I2].

Neither a network's loss on its own training rows nor its influence finds wrong labels as well as similar rows do: a
network that was trained long enough fits them, and its features with it. Rows are therefore ranked by kernel regression
on the inputs, each row left out, and also by the tangent model without the row unless the network fits its training
targets much better than they can be predicted.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from unlazy.core.arrays import dot

MAX_ROWS = 4096
"""Rows whose neighbors are looked for among each other; more are split at random."""
FITTED = 0.5
"""A network whose training error is below this share of the error of kernel regression has fitted noise."""
RIDGES = np.logspace(-3, 1, 9)
"""Ridges, of which leave-one-out chooses; the kernel is 1 on the diagonal."""


class Suspects(NamedTuple):
    """Training rows in the order of suspicion.

    Attributes
    ----------
    rows : array of shape (n,)
        All training rows, the most suspicious first.
    scores : array of shape (n,)
        Suspicion of the same rows, from 1 down to 0: mean rank by the methods that were used.
    by_neighbors, by_network : float
        Share of rows whose given target is predicted wrong without the row, by kernel regression on the inputs and by
        the tangent model; of numbers, the squared error relative to the mean. NaN if there is no such prediction.
    """

    rows: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, " n"]
    by_neighbors: float
    by_network: float


def rank_suspects(
    table: NDArray[np.floating] | None,
    labels: Float[np.ndarray, "n c"],
    fitted: Float[np.ndarray, "n c"],
    left_out: Float[np.ndarray, "n c"],
    classes: bool,
) -> Suspects:
    """Combine both methods.

    Parameters
    ----------
    table : array of shape (n, d), optional
        The inputs as numbers, or None.
    labels : array of shape (n, c)
        Targets, classes one-hot.
    fitted, left_out : arrays of shape (n, c)
        Predictions of the network, and of the tangent model without each row, in the units of the labels
        (probabilities for classes).
    classes : bool
        Whether labels are classes.

    Returns
    -------
    Suspects
    """
    by_network, by_neighbors = _error(left_out, labels, classes), float("nan")
    used = [left_out]
    if table is not None:
        neighbors = left_out_by_neighbors(table, labels)
        by_neighbors = _error(neighbors, labels, classes)
        used = [neighbors]
        if _error(fitted, labels, classes) >= FITTED * by_neighbors:
            used.append(left_out)
    suspicion = np.mean([rankdata(np.sum((p - labels) ** 2, 1)) for p in used], 0)
    order = np.argsort(-suspicion, kind="stable")
    return Suspects(order, (suspicion[order] - 1) / max(len(order) - 1, 1), by_neighbors, by_network)


def left_out_by_neighbors(table: NDArray[np.floating], labels: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"]:
    """Kernel regression of every label on all other rows, with the Laplace kernel of standardized columns."""
    X = table.reshape(len(table), -1).astype(np.float64)
    X = X - X.mean(0)
    if table.ndim == 2:
        spread = X.std(0)
        X = X / np.where(spread > 0, spread, 1)
    parts = np.array_split(np.random.default_rng(0).permutation(len(X)), -(-len(X) // MAX_ROWS))
    found = np.empty_like(labels)
    for rows in parts:
        found[rows] = _left_out(X[rows], labels[rows])
    return found


def _left_out(X: Float[np.ndarray, "n d"], labels: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"]:
    distances = cdist(X, X)
    scale = np.median(distances)
    values, vectors = eigh(np.exp(-distances / (scale if scale > 0 else 1)), check_finite=False)
    offset = labels.mean(0)
    rotated = dot(vectors.T, labels - offset)
    best: tuple[float, np.ndarray] = (np.inf, labels)
    for ridge in RIDGES:
        inverse = 1 / (np.maximum(values, 0) + ridge)
        residual = dot(vectors, inverse[:, None] * rotated) / dot(vectors**2, inverse)[:, None]
        best = min(best, (float(np.sum(residual**2)), labels - residual), key=lambda pair: pair[0])
    return best[1]


def _error(prediction: Float[np.ndarray, "n c"], labels: Float[np.ndarray, "n c"], classes: bool) -> float:
    if classes and labels.shape[1] > 1:
        return float(np.mean(prediction.argmax(1) != labels.argmax(1)))
    if classes:
        return float(np.mean((prediction > 0.5) != (labels > 0.5)))
    spread = float(np.sum((labels - labels.mean(0)) ** 2))
    return float(np.sum((prediction - labels) ** 2)) / spread if spread > 0 else 0.0
