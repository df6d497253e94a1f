"""Risk, normalized risk and accuracy of predictions."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers


@of_any_numbers
def risk(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Mean of |f(x) - y|², summed over outputs; `weights` (zero on padding) make it a weighted mean."""
    return _mean(_per_row(jnp.square(_difference(predicted, truth))), weights)


@of_any_numbers
def normalized_risk(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Risk over that of the constant mean label: 1 is trivial, 0 exact, 1 - R² in other words.

    Infinite for a constant truth that is missed, 0 for one that is met.
    """
    shape = (-1, *([1] * (truth.ndim - 1)))
    w = jnp.ones(truth.shape[0], truth.dtype) if weights is None else weights
    center = jnp.sum(w.reshape(shape) * truth, 0) / jnp.sum(w)
    spread = _mean(_per_row(jnp.square(truth - center)), weights)
    found = risk(predicted, truth, weights)
    return jnp.where(spread > 0, found / jnp.where(spread > 0, spread, 1), jnp.where(found > 0, jnp.inf, 0.0))


@of_any_numbers
def accuracy(
    predicted: Float[Array, "..."], truth: Float[Array, "n ..."], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Share of rows classified right: by sign for labels ±1, by the largest column for one column per class.

    A prediction of exactly zero decides for nobody and counts one half.
    """
    _difference(predicted, truth)
    if truth.ndim == 1:
        hits = 0.5 * (1 + jnp.sign(predicted) * jnp.sign(truth))
    else:
        hits = (jnp.argmax(predicted, -1) == jnp.argmax(truth, -1)).astype(predicted.dtype)
    return _mean(hits, weights)


def _difference(predicted: Float[Array, "..."], truth: Float[Array, "..."]) -> Float[Array, "..."]:
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions have shape {predicted.shape}, labels {truth.shape}; make them equal")
    return predicted - truth


def _per_row(values: Float[Array, "n ..."]) -> Float[Array, " n"]:
    return values.reshape(values.shape[0], -1).sum(1)


def _mean(values: Float[Array, " n"], weights: Float[Array, " n"] | None) -> Float[Array, ""]:
    return jnp.mean(values) if weights is None else jnp.sum(weights * values) / jnp.sum(weights)
