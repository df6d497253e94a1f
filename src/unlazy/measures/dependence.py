"""Which inputs and directions a fitted function depends on: gradient outer product [D11] and permutation importance."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

DIFFERENCE_STEP = 0.1
"""Step of the central differences, in units of a standardized column."""
MAX_PREDICTIONS = 25_000
"""Limit on the predictions used by finite differences and permutations together."""
MAX_WORK = 3e9
"""Limit on predictions × training rows × columns, which is proportional to the cost of a kernel."""
BATCH_ROWS = 4096
"""Rows per prediction call: each call has a fixed overhead."""
MAX_DIRECTIONS = 8
"""Number of leading directions that are returned."""

OutputFunction = Callable[[np.ndarray], np.ndarray]


@runtime_checkable
class PredictingModel(Protocol):
    """A fitted model, for example a scikit-learn estimator; classifiers also have `predict_proba`."""

    def predict(self, X: np.ndarray, /) -> np.ndarray:
        """Labels or class names of rows."""


def output_function(model: PredictingModel) -> OutputFunction:
    """Return the function that maps rows to outputs: class probabilities if available, else predictions.

    Parameters
    ----------
    model : fitted estimator
        Anything with `predict_proba` or `predict`.

    Returns
    -------
    callable
        Maps an array of shape (n, d) to float64 outputs of shape (n, c).
    """
    probabilities = getattr(model, "predict_proba", None)
    if probabilities is not None:
        return lambda X: np.asarray(probabilities(X), dtype=np.float64)
    return lambda X: np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), -1)


class DependenceBudget(NamedTuple):
    """Number of columns, rows and repeats used to analyze one model.

    `columns` are examined, gradients are taken at `gradients` rows, and each column of `rows` rows is shuffled
    `repeats` times.
    """

    columns: int
    gradients: int
    rows: int
    repeats: int


def dependence_budget(rows: int, columns: int) -> DependenceBudget:
    """Return the budget that stays within MAX_PREDICTIONS and MAX_WORK.

    A fifth of the predictions is spent on gradients, the rest on permutations.

    Parameters
    ----------
    rows, columns : int
        Size of the training table.

    Returns
    -------
    DependenceBudget
    """
    asked = float(np.clip(MAX_WORK / (rows * columns), 1500, MAX_PREDICTIONS))
    seen = int(min(columns, np.clip(asked // 100, 16, 256)))
    repeats = 3 if seen <= 30 else 1
    gradients = int(np.clip(0.2 * asked / (2 * seen), 8, 128))
    return DependenceBudget(seen, gradients, int(np.clip(0.8 * asked / (repeats * seen), 60, 400)), repeats)


def finite_difference_gradients(
    f: OutputFunction, X: Float[np.ndarray, "n d"], columns: Sequence[int]
) -> Float[np.ndarray, "n c d"]:
    """∇f at the rows of X by central differences.

    Parameters
    ----------
    f : callable
        Maps (n, d) to (n, c).
    X : array of shape (n, d)
    columns : sequence of int
        Coordinates to differentiate; the gradient along the others is zero.

    Returns
    -------
    array of shape (n, c, d)
    """
    n, d = X.shape
    found = np.zeros((n, f(X[:1]).shape[1], d))
    some = max(1, BATCH_ROWS // (2 * n))
    for i in range(0, len(columns), some):
        part = np.asarray(columns[i : i + some])
        moved = np.repeat(X[None], 2 * len(part), 0)
        moved[np.arange(len(part)), :, part] += DIFFERENCE_STEP
        moved[len(part) + np.arange(len(part)), :, part] -= DIFFERENCE_STEP
        both = f(moved.reshape(-1, d)).reshape(2, len(part), n, -1)
        found[:, :, part] = np.transpose(both[0] - both[1], (1, 2, 0)) / (2 * DIFFERENCE_STEP)
    return found


def gradient_directions(G: Float[np.ndarray, "n c d"]) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "k d"]]:
    """`leading_directions` of the mean of ∇f∇fᵀ, from gradients instead of the matrix.

    The cost is that of an SVD of the n·c × d gradients.

    Parameters
    ----------
    G : array of shape (n, c, d)
        Gradients of c outputs at n points.

    Returns
    -------
    values : array of shape (d,)
        Eigenvalues divided by the trace, in descending order.
    directions : array of shape (k, d)
        The leading eigenvectors as rows, at most MAX_DIRECTIONS.
    """
    n, c, d = G.shape
    _, lengths, vectors = np.linalg.svd(G.reshape(n * c, d), full_matrices=False)
    values = np.zeros(d)
    values[: len(lengths)] = lengths**2
    total = values.sum()
    leading = np.zeros((min(MAX_DIRECTIONS, d), d))
    leading[: min(MAX_DIRECTIONS, len(vectors))] = vectors[:MAX_DIRECTIONS]
    return (values / total if total > 0 else values), leading


def leading_directions(M: Float[np.ndarray, "d d"]) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "k d"]]:
    """Eigenvalues divided by the trace, and the leading eigenvectors.

    Parameters
    ----------
    M : array of shape (d, d)
        Symmetric matrix, such as an average gradient outer product.

    Returns
    -------
    values : array of shape (d,)
        In descending order.
    directions : array of shape (k, d)
        The leading eigenvectors as rows, at most MAX_DIRECTIONS.
    """
    values, vectors = np.linalg.eigh(0.5 * (M + M.T))
    values = np.maximum(values[::-1], 0)
    total = values.sum()
    return (values / total if total > 0 else values), vectors.T[::-1][:MAX_DIRECTIONS].copy()


def count_directions(values: Float[np.ndarray, " d"], share: float = 0.9) -> int:
    """Number of leading directions that carry a given share of the trace.

    Parameters
    ----------
    values : array of shape (d,)
        Eigenvalues, in any order.
    share : float, default 0.9

    Returns
    -------
    int
        0 if the trace is zero.
    """
    total = float(values.sum())
    if total <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(np.sort(values)[::-1]) / total, share - 1e-12) + 1)


def permutation_importance(
    loss: Callable[[np.ndarray], float], X: Float[np.ndarray, "n d"], source: np.ndarray, seed: int, repeats: int,
    inputs: Sequence[int] | None = None,
) -> Float[np.ndarray, " columns"]:  # fmt: skip
    """Increase of the loss when the values of one input are permuted over the rows.

    Parameters
    ----------
    loss : callable
        Maps encoded rows of shape (n, d) to a float.
    X : array of shape (n, d)
        Encoded rows.
    source : array of shape (d,)
        Index of the input that each encoded column comes from; the columns of one input are permuted together.
    seed : int
    repeats : int
        Permutations per input, averaged.
    inputs : sequence of int, optional
        Inputs to permute, by default all; the increase of the others is zero.

    Returns
    -------
    array of shape (number of inputs,)

    References
    ----------
    Breiman (2001), Random forests.
    """
    rng = np.random.default_rng(seed)
    before = loss(X)
    found = np.zeros(int(source.max()) + 1)
    for j in range(len(found)) if inputs is None else inputs:
        parts = np.flatnonzero(source == j)
        for _ in range(repeats):
            Z = X.copy()
            Z[:, parts] = X[rng.permutation(len(X))][:, parts]
            found[j] += (loss(Z) - before) / repeats
    return found
