"""Losses of a network as a quadratic in its outputs: gradient and curvature at every point [I1, I2].

With Λ = R Rᵀ the curvature of the loss in the outputs of one point and r the negative gradient, r = R q. The softmax
has Λ = diag(p) - p pᵀ, which is singular and vanishes near interpolation; R = diag(√p) - p √pᵀ and
q = e_y/√p_y - √p avoid its inverse.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unlazy.core.errors import did_you_mean

LOSSES = ("squared", "mse", "cross_entropy", "binary_cross_entropy")
"""½ Σ (f - y)² summed over outputs; mean of (f - y)² over outputs; softmax; sigmoid of every output."""
LEAST = 1e-12
"""Smallest probability that is told from 0."""


class Quadratic(NamedTuple):
    """The loss of every point to second order in its outputs.

    Attributes
    ----------
    root : array of shape (n, c, c)
        R with R Rᵀ = Λ, the Hessian of the loss of a point in its outputs.
    coordinates : array of shape (n, c)
        q with R q = -∂loss/∂f.
    losses : array of shape (n,)
        Loss of every point.
    """

    root: Float[np.ndarray, "n c c"]
    coordinates: Float[np.ndarray, "n c"]
    losses: Float[np.ndarray, " n"]

    def weighted(self, weights: Float[np.ndarray, " n"]) -> "Quadratic":
        """The loss of every point times its weight."""
        size = np.sqrt(np.asarray(weights, np.float64))
        return Quadratic(self.root * size[:, None, None], self.coordinates * size[:, None], self.losses * weights)


def infer_loss(outputs: Float[np.ndarray, "n c"], targets: NDArray[np.generic], loss: str | None) -> str:
    """The loss that fits the targets, or the given one.

    Raises
    ------
    ValueError
        If the targets do not fit the outputs or the loss, or could belong to two losses.
    """
    n, c = outputs.shape
    if loss is not None and loss not in LOSSES:
        raise ValueError(f"unknown loss {loss!r}{did_you_mean(loss, LOSSES)}: choose from {', '.join(LOSSES)}")
    if targets.dtype.kind not in "fiub":
        raise ValueError(f"y must hold numbers, got {targets.dtype}")
    if not len(targets) == n:
        raise ValueError(f"y must have one entry per row, got {len(targets)} for {n} rows")
    if targets.dtype.kind == "f" and not np.all(np.isfinite(targets)):
        raise ValueError("y contains NaN or infinity: remove these rows")
    if loss is None:
        if targets.dtype.kind in "iub" and targets.size == n and c > 1:
            loss = "cross_entropy"
        elif targets.dtype.kind in "iub" and set(np.unique(targets)) <= {0, 1}:
            raise ValueError(
                "y holds 0 and 1 for one output: pass loss='binary_cross_entropy' if the network returns a logit, or "
                "loss='mse' if it returns a value"
            )
        else:
            loss = "mse"
    if loss == "cross_entropy":
        if targets.size != n or targets.dtype.kind not in "iub" or c == 1:
            raise ValueError(
                f"the loss 'cross_entropy' needs one class label (an integer) per row and several outputs, got y of "
                f"{targets.dtype} with shape {targets.shape} for {c} output{'s' if c > 1 else ''}"
            )
        if n and (targets.min() < 0 or targets.max() >= c):
            raise ValueError(f"class labels must be 0 to {c - 1}, got {targets.min()} to {targets.max()}")
    elif targets.size != outputs.size:
        raise ValueError(f"y must have the shape {outputs.shape} of the outputs, got {targets.shape}")
    elif loss == "binary_cross_entropy":
        low, high = float(targets.min()), float(targets.max())
        if low < 0 or high > 1:
            raise ValueError(f"binary labels must be 0 or 1, got {low:.4g} to {high:.4g}")
    return loss


def quadratic(outputs: Float[np.ndarray, "n c"], targets: NDArray[np.generic], loss: str) -> Quadratic:
    """The loss of every point to second order at the outputs.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.solvers.tangent.likelihood import quadratic
    >>> quadratic(np.zeros((1, 2)), np.array([0]), "cross_entropy").losses.round(4).tolist()  # log 2
    [0.6931]
    """
    f = np.asarray(outputs, np.float64)
    n, c = f.shape
    if loss == "cross_entropy":
        labels = targets.reshape(n).astype(np.intp)
        log_p = f - np.logaddexp.reduce(f, 1)[:, None]
        p = np.maximum(np.exp(log_p), LEAST)
        size = np.sqrt(p)
        root = size[:, :, None] * np.eye(c) - p[:, :, None] * size[:, None, :]
        coordinates = -size
        coordinates[np.arange(n), labels] += 1 / size[np.arange(n), labels]
        return Quadratic(root, coordinates, -log_p[np.arange(n), labels])
    y = targets.reshape(n, c).astype(np.float64)
    if loss == "binary_cross_entropy":
        p = np.clip(1 / (1 + np.exp(-f)), LEAST, 1 - LEAST)
        size = np.sqrt(p * (1 - p))
        return Quadratic(size[:, :, None] * np.eye(c), (y - p) / size, np.sum(np.logaddexp(0, f) - y * f, 1))
    weight = 1.0 if loss == "squared" else 2 / c
    root = np.broadcast_to(np.sqrt(weight) * np.eye(c), (n, c, c))
    return Quadratic(root, np.sqrt(weight) * (y - f), weight / 2 * np.sum((y - f) ** 2, 1))


def probabilities(outputs: Float[np.ndarray, "n c"], loss: str) -> Float[np.ndarray, "n c"]:
    """Class probabilities of logits."""
    f = np.asarray(outputs, np.float64)
    if loss == "binary_cross_entropy":
        return 1 / (1 + np.exp(-f))
    return np.exp(f - np.logaddexp.reduce(f, 1)[:, None])
