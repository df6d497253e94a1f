"""What a fitted function depends on: directions (average gradient outer product [D11]) and inputs (permutation)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

STEP = 0.1
"""Central differences, in units of a standardized column."""
PREDICTIONS = 25_000
"""What finite differences and shuffling may ask of a model together."""
WORK = 3e9
"""The same in predictions × training rows × columns, which is what a kernel's cost."""
BATCH = 4096
"""Rows of one prediction: a call has a price of its own."""
KEPT = 8
"""Directions that are kept."""

Outputs = Callable[[np.ndarray], np.ndarray]


def outputs(model: Any) -> Outputs:
    """Predictions, or the probabilities of the classes, as (rows, outputs)."""
    if hasattr(model, "predict_proba"):
        return lambda X: np.asarray(model.predict_proba(X), dtype=np.float64)
    return lambda X: np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), -1)


class Look(NamedTuple):
    """How closely a model of so many rows and columns is looked at: columns, rows of gradients, rows and repeats of
    shuffling."""

    columns: int
    gradients: int
    rows: int
    repeats: int


def affordable(rows: int, columns: int) -> Look:
    """A look that keeps to PREDICTIONS and WORK: a fifth for gradients, the rest for shuffling."""
    asked = float(np.clip(WORK / (rows * columns), 1500, PREDICTIONS))
    seen = int(min(columns, np.clip(asked // 100, 16, 256)))
    repeats = 3 if seen <= 30 else 1
    gradients = int(np.clip(0.2 * asked / (2 * seen), 8, 128))
    return Look(seen, gradients, int(np.clip(0.8 * asked / (repeats * seen), 60, 400)), repeats)


def gradients(f: Outputs, X: Float[np.ndarray, "n d"], columns: Sequence[int]) -> Float[np.ndarray, "n c d"]:
    """∇f at the rows of X by central differences along these columns; zero along the others."""
    n, d = X.shape
    found = np.zeros((n, f(X[:1]).shape[1], d))
    some = max(1, BATCH // (2 * n))
    for i in range(0, len(columns), some):
        part = np.asarray(columns[i : i + some])
        moved = np.repeat(X[None], 2 * len(part), 0)
        moved[np.arange(len(part)), :, part] += STEP
        moved[len(part) + np.arange(len(part)), :, part] -= STEP
        both = f(moved.reshape(-1, d)).reshape(2, len(part), n, -1)
        found[:, :, part] = np.transpose(both[0] - both[1], (1, 2, 0)) / (2 * STEP)
    return found


def gradient_outer_product(f: Outputs, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d d"]:
    """Mean of ∇f∇fᵀ, summed over outputs, over (up to 128) rows of X."""
    G = gradients(f, X[:128], range(X.shape[1]))
    return np.einsum("nci,ncj->ij", G, G) / len(G)


def directions_of(G: Float[np.ndarray, "n c d"]) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "k d"]]:
    """`directions` of the mean of ∇f∇fᵀ, summed over outputs; the smaller side of the gradients is what it costs."""
    n, c, d = G.shape
    _, lengths, vectors = np.linalg.svd(G.reshape(n * c, d), full_matrices=False)
    values = np.zeros(d)
    values[: len(lengths)] = lengths**2
    total = values.sum()
    leading = np.zeros((min(KEPT, d), d))
    leading[: min(KEPT, len(vectors))] = vectors[:KEPT]
    return (values / total if total > 0 else values), leading


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


def permutation_rise(
    loss: Callable[[np.ndarray], float], X: Float[np.ndarray, "n d"], source: np.ndarray, seed: int, repeats: int,
    inputs: Sequence[int] | None = None,
) -> Float[np.ndarray, " columns"]:  # fmt: skip
    """How much the loss rises when the values of an input are shuffled over rows (Breiman 2001), inputs by number.

    `source` says which input each encoded column comes from: all of its parts move together. `inputs` are those that
    are shuffled (all, where None); the others' rise is zero.
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
