"""Loss functions of predictions and labels.

One convention everywhere. ℓ(f, y) is the loss of one point, summed over outputs; the squared loss is ½|f - y|². L is
the mean of ℓ over points. Training minimizes L: `step_size` multiplies ∇L. All reported losses are values of L.
Gradient flow runs in the time of [K3], df/dt = -K ∂ℓ/∂f, that is dθ/dt = -n∇L: t = step_size·steps/n.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.errors import did_you_mean


class Loss(NamedTuple):
    """Loss function ℓ of one point and its mean L over points.

    Parameters
    ----------
    name : str
        Name of the loss.
    per_point : callable
        `per_point(f, y)` returns the loss of every point, summed over outputs.
    curvature : float
        Upper bound of the second derivative with respect to f. The hinge has none; 1 is that of its smoothing over a
        margin of width one.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.training import Loss
    >>> huber = Loss("huber", lambda f, y: jnp.where(abs(f - y) < 1, (f - y) ** 2 / 2, abs(f - y) - 0.5), 1.0)
    >>> float(huber.mean(jnp.array([0.0, 3.0]), jnp.array([1.0, 0.0])))
    1.5
    """

    name: str
    per_point: Callable[[Array, Array], Array]
    curvature: float

    def mean(
        self, f: Float[Array, " n *c"], y: Float[Array, " n *b"], weights: Float[Array, " n"] | None = None
    ) -> Float[Array, ""]:
        """Mean loss L over points.

        Parameters
        ----------
        f : array of shape (n,) or (n, c)
            Predictions.
        y : array of shape (n,) or (n, c)
            Labels.
        weights : array of shape (n,), optional
            Weights of the points; points of weight zero are padding and ignored.

        Returns
        -------
        scalar array
            Σ w·loss / Σ w; the squared loss includes the factor 1/2.
        """
        losses = self.per_point(f, y)
        if weights is None:
            return jnp.mean(losses)
        # padded rows may contain NaN or ∞: avoid 0·∞; a batch of padding only has loss 0
        counted = jnp.where(weights > 0, weights * losses, 0)
        return jnp.sum(counted) / jnp.maximum(jnp.sum(weights), jnp.finfo(losses.dtype).tiny)


def _squared(f: Array, y: Array) -> Array:
    """½|f - y|², summed over outputs."""
    return 0.5 * jnp.sum(jnp.square(f - y).reshape(f.shape[0], -1), axis=1)


def _hinge(f: Array, y: Array) -> Array:
    """max(0, 1 - y f), labels ±1."""
    return jnp.maximum(0, 1 - y * f).reshape(f.shape[0], -1).sum(1)


def _logistic(f: Array, y: Array) -> Array:
    """log(1 + e^{-y f}), labels ±1."""
    return jax.nn.softplus(-y * f).reshape(f.shape[0], -1).sum(1)


def _cross_entropy(f: Array, y: Array) -> Array:
    """-Σ_c p_c log softmax(f)_c; labels are probabilities (n, c) or class indices (n,)."""
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


def resolve_loss(what: str | Loss) -> Loss:
    """Return the loss of a name; a `Loss` is returned unchanged."""
    if isinstance(what, Loss):
        return what
    if what not in LOSSES:
        raise ValueError(f"unknown loss {what!r}{did_you_mean(str(what), LOSSES)}")
    return LOSSES[what]
