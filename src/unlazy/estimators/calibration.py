"""Calibrated probabilities from scores: softmax(a·f + b), fitted to held-out scores.

Platt (1999) for one score, with his smoothed labels, so that probabilities of separable classes stay below one; for
several scores, one common slope and one shift per class. Guo et al. (2017) give each class its own slope and call it
vector scaling.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Scores = Float[np.ndarray, "n c"]


class Calibration(NamedTuple):
    """Slope a and shifts b of softmax(a·f + b)."""

    slope: float
    shift: np.ndarray


def calibrate(held_out: Scores, Y: Scores, weights: Float[np.ndarray, " n"] | None = None) -> Calibration:
    """Fit a and b by maximum likelihood on held-out scores; Y holds class shares (one-hot) of each point."""
    from scipy.optimize import minimize

    F, Y = held_out.astype(np.float64), Y.astype(np.float64)
    n, c = F.shape
    w = np.full(n, 1 / n) if weights is None else weights.astype(np.float64) / weights.sum()
    if c == 1:
        return Calibration(1.0, np.zeros(1))
    target = (n * Y + 1) / (n + c)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        a, b = theta[0], theta[1:]
        log_p = _log_softmax(a * F + b)
        miss = w[:, None] * (np.exp(log_p) - target)
        value = -float(w @ np.sum(target * log_p, 1)) + 1e-6 * float(b @ b)
        return value, np.concatenate([[np.sum(miss * F)], miss.sum(0) + 2e-6 * b])

    found = minimize(loss, np.concatenate([[4.0], np.zeros(c)]), jac=True, method="L-BFGS-B").x
    if found[0] <= 0:  # uninformative scores: predict the class frequencies
        return Calibration(0.0, np.log(np.maximum(w @ target, 1e-300)))
    return Calibration(float(found[0]), found[1:])


def logits(scores: Scores, calibration: Calibration) -> Scores:
    """a·f + b."""
    return calibration.slope * scores + calibration.shift


def probabilities(scores: Scores, calibration: Calibration) -> Scores:
    """softmax(a·f + b); rows sum to one."""
    return softmax(logits(scores, calibration))


def softmax(f: Scores) -> Scores:
    """Softmax of each row."""
    return np.exp(_log_softmax(f))


def _log_softmax(f: np.ndarray) -> np.ndarray:
    f = f - f.max(1, keepdims=True)
    return f - np.log(np.exp(f).sum(1, keepdims=True))
