"""Losses and labels on the probe points, in NumPy, inferred from the kind of targets."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unlazy.models.protocol import Inputs, Outputs

IGNORED = -100
"""The label of positions that PyTorch's cross-entropy leaves out."""


def as_numpy(values: Inputs) -> NDArray[np.generic]:
    """A NumPy copy of an array of any framework."""
    if hasattr(values, "detach"):  # torch
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return np.array(values)


def is_classes(targets: NDArray[np.generic], outputs: Outputs) -> bool:
    """Whether targets are integer labels of the outputs' classes."""
    labels = targets.dtype.kind in "iub"
    return labels and outputs.size % max(targets.size, 1) == 0 and outputs.size > targets.size


def is_values(targets: NDArray[np.generic], outputs: Outputs) -> bool:
    """Whether targets are numbers, one per output."""
    return targets.dtype.kind in "fiub" and targets.size == outputs.size


def probe_loss(outputs: Outputs, targets: NDArray[np.generic]) -> float:
    """Mean cross-entropy of class labels, or mean squared error; NaN if the targets are of another kind."""
    if is_classes(targets, outputs):
        logits, labels = _by_label(outputs, targets)
        return float(np.mean(np.logaddexp.reduce(logits, 1) - logits[np.arange(len(labels)), labels]))
    if is_values(targets, outputs):
        return float(np.mean((outputs.ravel() - targets.ravel().astype(np.float64)) ** 2))
    return float("nan")


def probe_error(outputs: Outputs, targets: NDArray[np.generic]) -> float:
    """Share of wrong labels, or squared error relative to that of the best constant; NaN for other targets."""
    if is_classes(targets, outputs):
        logits, labels = _by_label(outputs, targets)
        return float(np.mean(logits.argmax(1) != labels))
    if is_values(targets, outputs):
        y = targets.reshape(outputs.shape).astype(np.float64)
        return float(np.sum((outputs - y) ** 2) / max(np.sum((y - y.mean(0)) ** 2), np.finfo(np.float64).tiny))
    return float("nan")


def label_matrix(outputs: Outputs, targets: NDArray[np.generic]) -> Float[np.ndarray, "m c"] | None:
    """Targets in the shape of the outputs, classes one-hot; None for targets of another kind."""
    if is_classes(targets, outputs):
        classes = outputs.size // targets.size
        flat = targets.ravel().astype(np.int64)
        hot = np.zeros((flat.size, classes))
        kept = flat != IGNORED
        hot[np.flatnonzero(kept), flat[kept]] = 1
        return hot.reshape(outputs.shape)
    if is_values(targets, outputs):
        return targets.reshape(outputs.shape).astype(np.float64)
    return None


def residual_matrix(outputs: Outputs, targets: NDArray[np.generic]) -> Float[np.ndarray, "m c"] | None:
    """y - f, or one-hot labels - softmax(f): minus the gradient of the loss in the outputs, up to a constant."""
    labels = label_matrix(outputs, targets)
    if labels is None or not is_classes(targets, outputs):
        return None if labels is None else labels - outputs
    logits = outputs.reshape(targets.size, -1).astype(np.float64)
    p = np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None])
    p[targets.ravel() == IGNORED] = 0
    return labels - p.reshape(outputs.shape)


def _by_label(outputs: Outputs, targets: NDArray[np.generic]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One row of logits per label, without ignored labels."""
    labels = targets.ravel().astype(np.int64)
    logits = outputs.reshape(labels.size, -1).astype(np.float64)
    kept = labels != IGNORED
    return logits[kept], labels[kept]
