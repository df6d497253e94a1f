"""Risk, normalized risk and accuracy of predictions."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import accepts_array_likes


@accepts_array_likes
def risk(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Mean of |f(x) - y|², summed over outputs.

    Parameters
    ----------
    predicted : array of shape (n,) or (n, c)
    truth : array of the same shape
    weights : array of shape (n,), optional
        Weights of the mean; zero on padded rows.

    Returns
    -------
    scalar array

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    return _mean(_per_row(jnp.square(_difference(predicted, truth))), weights)


@accepts_array_likes
def normalized_risk(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Risk divided by that of predicting the mean label, 1 - R².

    Parameters
    ----------
    predicted : array of shape (n,) or (n, c)
        Predictions.
    truth : array of the same shape
        Labels.
    weights : array of shape (n,), optional
        Weights of the mean; zero on padded rows.

    Returns
    -------
    scalar array
        0 is exact, 1 is no better than the mean. If the truth is constant: 0 for an exact prediction, else infinity.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> from unlazy.measures import normalized_risk
    >>> float(normalized_risk([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]))
    0.0
    >>> float(normalized_risk([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]))
    1.0
    """
    shape = (-1, *([1] * (truth.ndim - 1)))
    w = jnp.ones(truth.shape[0], truth.dtype) if weights is None else weights
    center = jnp.sum(w.reshape(shape) * truth, 0) / jnp.sum(w)
    spread = _mean(_per_row(jnp.square(truth - center)), weights)
    found = risk(predicted, truth, weights)
    return jnp.where(spread > 0, found / jnp.where(spread > 0, spread, 1), jnp.where(found > 0, jnp.inf, 0.0))


@accepts_array_likes
def accuracy(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Fraction of correctly classified rows: by sign for labels ±1, by the largest column for one-hot labels.

    A prediction of exactly zero for labels ±1 counts as one half.

    Parameters
    ----------
    predicted : array of shape (n,) or (n, classes)
        Predictions, one column per class for one-hot labels.
    truth : array of the same shape
        Labels.
    weights : array of shape (n,), optional
        Weights of the mean; zero on padded rows.

    Returns
    -------
    scalar array

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> from unlazy.measures import accuracy
    >>> float(accuracy([0.5, -2.0, 0.1, 0.3], [1.0, -1.0, -1.0, 1.0]))
    0.75
    >>> float(accuracy([[0.9, 0.1], [0.4, 0.6]], [[1.0, 0.0], [1.0, 0.0]]))
    0.5
    """
    _difference(predicted, truth)
    if truth.ndim == 1:
        hits = 0.5 * (1 + jnp.sign(predicted) * jnp.sign(truth))
    else:
        hits = (jnp.argmax(predicted, -1) == jnp.argmax(truth, -1)).astype(predicted.dtype)
    return _mean(hits, weights)


def _difference(predicted: Float[Array, "..."], truth: Float[Array, "..."]) -> Float[Array, "..."]:
    """predicted - truth; raise ValueError if the shapes differ."""
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions have shape {predicted.shape} and labels {truth.shape}; the shapes must be equal")
    return predicted - truth


def _per_row(values: Float[Array, "n ..."]) -> Float[Array, " n"]:
    """Sum over all axes but the first."""
    return values.reshape(values.shape[0], -1).sum(1)


def _mean(values: Float[Array, " n"], weights: Float[Array, " n"] | None) -> Float[Array, ""]:
    """Mean over rows, weighted if weights are given."""
    return jnp.mean(values) if weights is None else jnp.sum(weights * values) / jnp.sum(weights)
