"""Base classes of classifiers: decisions, probabilities and labels from logits, calibrated on held-out scores.

Calibrated probabilities are softmax(a·f + b): Platt (1999) for one score, with his smoothed labels, so that
probabilities of separable classes stay below one; for several scores, one common slope and one shift per class. Guo et
al. (2017) give each class its own slope and call it vector scaling.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Points

Scores = Float[np.ndarray, "n c"]


class Calibration(NamedTuple):
    """Slope a and shifts b of softmax(a·f + b)."""

    slope: float
    shift: np.ndarray


def calibrate(held_out: Scores, Y: Scores, weights: Float[np.ndarray, " n"] | None = None) -> Calibration:
    """Fit a and b by maximum likelihood on held-out scores; Y holds class shares (one-hot) of each point."""
    F, Y = held_out.astype(np.float64), Y.astype(np.float64)
    n, c = F.shape
    w = np.full(n, 1 / n) if weights is None else weights.astype(np.float64) / weights.sum()
    if c == 1:
        return Calibration(1.0, np.zeros(1))
    target = (n * Y + 1) / (n + c)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        a, b = theta[0], theta[1:]
        log_p = log_softmax(a * F + b, axis=1)
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
    return np.exp(log_softmax(f, axis=1))


class LogitClassifier(ClassifierMixin):
    """Base class: subclasses implement `_logits(X)` with one column per class of `classes_`."""

    classes_: np.ndarray

    def _logits(self, X: Points) -> np.ndarray:
        """Return the logits of X, shape (m, n_classes)."""
        raise NotImplementedError

    def decision_function(self, X: Points) -> np.ndarray:
        """Compute the logits of X.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.

        Returns
        -------
        array of shape (m, n_classes), or (m,) for two classes
            Logits; for two classes the logit of the second class minus that of the first.
        """
        check_is_fitted(self)
        found = self._logits(X)
        return found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found

    def predict_proba(self, X: Points) -> np.ndarray:
        """Predict class probabilities: the softmax of the logits.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.

        Returns
        -------
        array of shape (m, n_classes)
            Probabilities; each row sums to one.
        """
        check_is_fitted(self)
        return softmax(self._logits(X))

    def predict(self, X: Points) -> np.ndarray:
        """Predict the most likely class of each row.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.

        Returns
        -------
        array of shape (m,)
            Labels from `classes_`.
        """
        check_is_fitted(self)
        return self.classes_[np.argmax(self._logits(X), axis=1)]


class CalibratedClassifier(LogitClassifier):
    """Least squares on one-hot labels: logits are the `_scores(X)`, calibrated on held-out scores."""

    _scores: Callable[[Points], np.ndarray]  # defined by the class it is mixed into

    def _calibrate(self, held_out: np.ndarray, Y: np.ndarray, weights: np.ndarray | None) -> None:
        """Fit slope and shift to held-out scores."""
        self.calibration_slope_, self.calibration_shift_ = calibrate(held_out, Y, weights)

    def _logits(self, X: Points) -> np.ndarray:
        return logits(self._scores(X), Calibration(self.calibration_slope_, self.calibration_shift_))
