"""Losses of predictions and labels, averaged over points; each knows how curved it can be."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.errors import nearest


class Loss(NamedTuple):
    """`each(f, y)` is the loss of every point; `curvature` bounds its second derivative in f.

    The hinge has no second derivative; 1 is that of its smoothing over a margin of width one.
    """

    name: str
    each: Callable[[Array, Array], Array]
    curvature: float

    def mean(
        self, f: Float[Array, "n *c"], y: Float[Array, "n *b"], weights: Float[Array, " n"] | None = None
    ) -> Float[Array, ""]:
        """Average over points; points of weight zero (padding) do not count."""
        losses = self.each(f, y)
        if weights is None:
            return jnp.mean(losses)
        # a padded row may hold anything: 0·∞ must not enter, and an all-padding batch is zero
        counted = jnp.where(weights > 0, weights * losses, 0)
        return jnp.sum(counted) / jnp.maximum(jnp.sum(weights), jnp.finfo(losses.dtype).tiny)


def _squared(f: Array, y: Array) -> Array:
    """½|f - y|²."""
    return 0.5 * jnp.sum(jnp.square(f - y).reshape(f.shape[0], -1), axis=1)


def _hinge(f: Array, y: Array) -> Array:
    """max(0, 1 - y f), labels ±1."""
    return jnp.maximum(0, 1 - y * f).reshape(f.shape[0], -1).sum(1)


def _logistic(f: Array, y: Array) -> Array:
    """log(1 + e^{-y f}), labels ±1."""
    return jax.nn.softplus(-y * f).reshape(f.shape[0], -1).sum(1)


def _cross_entropy(f: Array, y: Array) -> Array:
    """-Σ_c p_c log softmax(f)_c; labels are probabilities (n, c) or class numbers (n,)."""
    if f.ndim != 2 or f.shape[1] < 2:
        raise ValueError(f"cross_entropy needs one output per class (n, c), got shape {f.shape}; use 'logistic' for ±1")
    p = jax.nn.one_hot(y.astype(int), f.shape[1], dtype=f.dtype) if y.ndim == 1 else y
    return -jnp.sum(p * jax.nn.log_softmax(f), axis=1)


LOSSES = {
    "squared": Loss("squared", _squared, 1.0),
    "hinge": Loss("hinge", _hinge, 1.0),
    "logistic": Loss("logistic", _logistic, 0.25),
    "cross_entropy": Loss("cross_entropy", _cross_entropy, 0.5),
}


def loss_named(what: str | Loss) -> Loss:
    """A loss by name; a `Loss` of one's own passes through."""
    if isinstance(what, Loss):
        return what
    if what not in LOSSES:
        raise ValueError(f"unknown loss {what!r}{nearest(str(what), LOSSES)}")
    return LOSSES[what]
