"""Few shapes for many row counts: a program is compiled for every shape, which costs more than most fits of it."""

import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from unlazy.estimators.base import Training

LEAST = 16


def bucket(n: int, base: int = 4) -> int:
    """The smallest 16·base^k that holds n rows."""
    size = LEAST
    while size < n:
        size *= base
    return size


def padded(data: Training, size: int) -> Training:
    """With rows of weight zero up to `size`; weights have mean one over the data."""
    more = size - len(data.X)
    weights = _weights(data)
    X, Y, w = (np.concatenate([a, np.zeros((more, *a.shape[1:]), a.dtype)]) for a in (data.X, data.Y, weights))
    return Training(X, Y, w)


def repeated(data: Training, size: int) -> Training:
    """With rows that come again up to `size`: every row keeps its weight, split over its copies."""
    again = np.arange(size) % len(data.X)
    return Training(data.X[again], data.Y[again], (_weights(data) / np.bincount(again))[again].astype(data.X.dtype))


def shuffled(key: PRNGKeyArray, n: int) -> Int[np.ndarray, " n"]:
    """A random order by NumPy: JAX would compile one for every n."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(n)


def _weights(data: Training) -> np.ndarray:
    return np.ones(len(data.X), data.X.dtype) if data.weights is None else data.weights / data.weights.mean()
