"""Padding of row counts to few shapes: each shape is compiled once, and compiling takes longer than most fits."""

import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from unlazy.estimators.base import TrainingData

MIN_SIZE = 16


def padded_size(n: int, base: int = 4) -> int:
    """Smallest 16·base^k that is at least n."""
    size = MIN_SIZE
    while size < n:
        size *= base
    return size


def pad_rows(data: TrainingData, size: int) -> TrainingData:
    """Pad with rows of weight zero up to `size`; weights have mean one over the data."""
    more = size - len(data.X)
    weights = _weights(data)
    X, Y, w = (np.concatenate([a, np.zeros((more, *a.shape[1:]), a.dtype)]) for a in (data.X, data.Y, weights))
    return TrainingData(X, Y, w)


def repeat_rows(data: TrainingData, size: int) -> TrainingData:
    """Repeat rows up to `size`; each row keeps its weight, divided among its copies."""
    again = np.arange(size) % len(data.X)
    return TrainingData(data.X[again], data.Y[again], (_weights(data) / np.bincount(again))[again].astype(data.X.dtype))


def random_permutation(key: PRNGKeyArray, n: int) -> Int[np.ndarray, " n"]:
    """Random permutation by NumPy: JAX would compile one for each n."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(n)


def _weights(data: TrainingData) -> np.ndarray:
    """Weights of mean one."""
    return np.ones(len(data.X), data.X.dtype) if data.weights is None else data.weights / data.weights.mean()
