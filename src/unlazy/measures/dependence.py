"""What a fitted function depends on: directions (average gradient outer product [D11]) and inputs (permutation)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

STEP = 0.1
"""Central differences, in units of a standardised column."""
POINTS = 128
PREDICTIONS = 10_000
"""What finite differences, and shuffling, may ask of a model; more columns then see fewer rows."""
KEPT = 8
"""Directions that are kept."""

Outputs = Callable[[np.ndarray], np.ndarray]


def outputs(model: Any) -> Outputs:
    """Predictions, or the probabilities of the classes, as (rows, outputs)."""
    if hasattr(model, "predict_proba"):
        return lambda X: np.asarray(model.predict_proba(X), dtype=np.float64)
    return lambda X: np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), -1)


def gradient_outer_product(f: Outputs, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d d"]:
    """Mean of ∇f∇fᵀ, summed over outputs, by central differences at (up to 128) rows of X; fewer where columns are
    many."""
    X = X[: min(POINTS, max(16, PREDICTIONS // X.shape[1]))]
    n, d = X.shape
    G = np.empty((n, d, f(X[:1]).shape[1]))
    for j in range(d):
        shift = np.zeros(d)
        shift[j] = STEP
        both = f(np.concatenate([X + shift, X - shift]))
        G[:, j] = (both[:n] - both[n:]) / (2 * STEP)
    return np.einsum("nic,njc->ij", G, G) / n


def directions(M: Float[np.ndarray, "d d"]) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "k d"]]:
    """Eigenvalues over the trace, largest first, and the leading eigenvectors as rows."""
    values, vectors = np.linalg.eigh(0.5 * (M + M.T))
    values = np.maximum(values[::-1], 0)
    total = values.sum()
    return (values / total if total > 0 else values), vectors.T[::-1][:KEPT].copy()


def count_directions(values: Float[np.ndarray, " d"], share: float = 0.9) -> int:
    """How many of the leading directions carry this share of the trace."""
    total = float(values.sum())
    if total <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(np.sort(values)[::-1]) / total, share - 1e-12) + 1)


def rows_to_shuffle(inputs: int) -> tuple[int, int]:
    """Rows and repeats with which shuffling `inputs` inputs keeps to a few times PREDICTIONS."""
    repeats = 3 if inputs <= 30 else 1
    return int(np.clip(4 * PREDICTIONS // (repeats * inputs), 60, 400)), repeats


def permutation_rise(
    loss: Callable[[np.ndarray], float], X: Float[np.ndarray, "n d"], source: np.ndarray, seed: int, repeats: int
) -> Float[np.ndarray, " columns"]:
    """How much the loss rises when the values of an input are shuffled over rows (Breiman 2001), inputs by number.

    `source` says which input each encoded column comes from: all of its parts move together.
    """
    rng = np.random.default_rng(seed)
    before = loss(X)
    found = np.zeros(int(source.max()) + 1)
    for j in range(len(found)):
        parts = np.flatnonzero(source == j)
        for _ in range(repeats):
            Z = X.copy()
            Z[:, parts] = X[rng.permutation(len(X))][:, parts]
            found[j] += (loss(Z) - before) / repeats
    return found
