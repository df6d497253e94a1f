"""`load_predictor`: a saved model that predicts without JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unlazy.core.errors import UnlazyError
from unlazy.core.model_files import read_model_file
from unlazy.serving import models
from unlazy.serving.saved_objects import SavedObject, decode


class Predictor:
    """A saved model as a function of rows; `load_predictor` returns it.

    Attributes
    ----------
    kind : str
        Name of the estimator, such as "FeatureMachineRegressor".
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : array of str or None
        Column names, if the model was fitted to named columns.
    classes_ : array or None
        Class labels; None for a regression.
    """

    def __init__(self, model: SavedObject):
        if model.get("encoder_") is not None:
            raise UnlazyError(f"this {model.kind} encodes text, dates or missing values: load it with unlazy.load")
        self._model, self._scores = model, models.scores_of(model)
        self.kind: str = model.kind
        self.n_features_in_: int = int(model["n_features_in_"])
        self.feature_names_in_: np.ndarray | None = model.get("feature_names_in_")
        self.classes_: np.ndarray | None = model.get("classes_")

    def predict(self, X: "ArrayLike | Mapping[str, ArrayLike]") -> np.ndarray:
        """Predict targets or class labels.

        Parameters
        ----------
        X : array of shape (m, d), data frame, or dict of columns
            Rows. Named columns are matched by name.

        Returns
        -------
        array of shape (m,) or (m, outputs)
            Predictions, as those of the estimator.

        Raises
        ------
        ValueError
            If columns are missing, or values are not finite numbers.
        """
        return models.predict(self._model, self._scores(self._rows(X)))

    def predict_proba(self, X: "ArrayLike | Mapping[str, ArrayLike]") -> np.ndarray:
        """Predict class probabilities.

        Parameters
        ----------
        X : array of shape (m, d), data frame, or dict of columns
            Rows. Named columns are matched by name.

        Returns
        -------
        array of shape (m, classes)
            Probabilities; each row sums to one.

        Raises
        ------
        ValueError
            If the model predicts numbers, columns are missing, or values are not finite numbers.
        """
        return models.probabilities(self._model, self._scores(self._rows(X)))

    def __repr__(self) -> str:
        return f"Predictor of a {self.kind} with {self.n_features_in_} columns"

    def _rows(self, X: Any) -> np.ndarray:
        """Rows of finite float64 numbers."""
        if isinstance(X, Mapping) or hasattr(X, "columns"):
            X = self._matched(X)
        try:
            rows = np.asarray(X, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must hold numbers ({error})") from error
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have shape (rows, {self.n_features_in_}), got {rows.shape}")
        if not np.isfinite(rows).all():
            raise ValueError("X contains NaN or infinity; replace these values, or drop those rows")
        return rows

    def _matched(self, X: Any) -> np.ndarray:
        """Columns by name, in the order of the fit; by position if the model knows no names."""
        names = [str(n) for n in (X.keys() if isinstance(X, Mapping) else X.columns)]
        columns = list(X.values()) if isinstance(X, Mapping) else [X[name] for name in X.columns]
        if self.feature_names_in_ is not None:
            missing = [str(name) for name in self.feature_names_in_ if name not in names]
            if missing:
                raise ValueError(f"columns that the model was fitted to are missing: {', '.join(missing)}")
            columns = [columns[names.index(str(name))] for name in self.feature_names_in_]
        return np.stack([np.asarray(column) for column in columns], 1)


def load_predictor(path: str | Path) -> Predictor:
    """Load a saved model for predictions with NumPy and SciPy alone.

    Neither JAX nor scikit-learn is imported and nothing is compiled, so a fresh process predicts at once. It serves
    feature machines, `KernelRegressor` and `KernelClassifier` with radial, linear and polynomial kernels on tables of
    numbers; `unlazy.load` loads everything. Predictions are in float64 and equal those of the estimator up to
    rounding.

    Parameters
    ----------
    path : str or Path
        File written by `unlazy.save`, `save` of an estimator, `unlazy fit` or `unlazy compare`.

    Returns
    -------
    Predictor
        An object with `predict` and `predict_proba`.

    Raises
    ------
    UnlazyError
        If the file cannot be read, was modified, or holds a model that needs JAX.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import KernelRegressor, load_predictor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> model = KernelRegressor().fit(X, np.sin(X[:, 0]))
    >>> model.save("model.unlazy")
    >>> bool(np.allclose(load_predictor("model.unlazy").predict(X), model.predict(X)))
    True
    """
    return Predictor(decode(read_model_file(path)))
