"""What every classifier says of its logits: one place for decisions, probabilities and labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.estimators.calibration import Calibration, calibrate, logits, softmax


class LogitClassifier(ClassifierMixin):
    """A classifier whose `_logits(X)` has one column per class; `classes_` are their labels."""

    classes_: np.ndarray

    def _logits(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits: one per class, or for two classes the difference in favor of the second."""
        check_is_fitted(self)
        found = self._logits(X)
        return found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found

    def predict_proba(self, X: Any) -> np.ndarray:
        """The softmax of the logits; rows sum to one."""
        check_is_fitted(self)
        return softmax(self._logits(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of every row."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self._logits(X), axis=1)]


class CalibratedClassifier(LogitClassifier):
    """Least squares on one-hot labels: the logits are `_scores(X)`, calibrated on scores of points held out."""

    _scores: Callable[[Any], np.ndarray]  # of the machine it is mixed with

    def _calibrate(self, held_out: np.ndarray, Y: np.ndarray, weights: np.ndarray | None) -> None:
        self.calibration_slope_, self.calibration_shift_ = calibrate(held_out, Y, weights)

    def _logits(self, X: Any) -> np.ndarray:
        return logits(self._scores(X), Calibration(self.calibration_slope_, self.calibration_shift_))
