"""Base classes of classifiers: decisions, probabilities and labels from logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.estimators.calibration import Calibration, calibrate, logits, softmax


class LogitClassifier(ClassifierMixin):
    """Base class: subclasses implement `_logits(X)` with one column per class of `classes_`."""

    classes_: np.ndarray

    def _logits(self, X: Any) -> np.ndarray:
        """Return the logits of X, shape (m, n_classes)."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
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

    def predict_proba(self, X: Any) -> np.ndarray:
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

    def predict(self, X: Any) -> np.ndarray:
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

    _scores: Callable[[Any], np.ndarray]  # defined by the class it is mixed into

    def _calibrate(self, held_out: np.ndarray, Y: np.ndarray, weights: np.ndarray | None) -> None:
        """Fit slope and shift to held-out scores."""
        self.calibration_slope_, self.calibration_shift_ = calibrate(held_out, Y, weights)

    def _logits(self, X: Any) -> np.ndarray:
        return logits(self._scores(X), Calibration(self.calibration_slope_, self.calibration_shift_))
