"""`load_predictor`: a saved model that predicts without JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from unlazy.core.errors import UnlazyError
from unlazy.core.model_files import read_model_file
from unlazy.estimators.preprocessing.fitted_columns import FittedColumns
from unlazy.estimators.preprocessing.frames import as_array, as_frame
from unlazy.serving import models
from unlazy.serving.saved_objects import SavedObject, decode

if TYPE_CHECKING:
    import pandas as pd


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
        encoder, model = _split(model)
        self._model, self._scores, self._encoder = model, models.scores_of(model), encoder
        self.kind: str = model.kind
        self.classes_: np.ndarray | None = model.get("classes_")
        self.feature_names_in_: np.ndarray | None = model.get("feature_names_in_")
        if encoder is not None:
            self.feature_names_in_ = np.array(encoder.columns_, dtype=object)
        names = self.feature_names_in_
        self.n_features_in_: int = int(model["n_features_in_"]) if names is None else len(names)

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
        """Rows of finite float64 numbers, encoded if the model has an encoder."""
        if isinstance(X, Mapping):
            X = {name: [cells] if np.ndim(cells) == 0 else cells for name, cells in X.items()}
        elif hasattr(X, "column_names"):  # Arrow
            X = {name: X[name] for name in X.column_names}
        if self._encoder is not None:
            return self._encoder.encode_frame(self._frame(X))
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

    def _frame(self, X: Any) -> "pd.DataFrame":
        """X as a data frame; the columns of an array have the names of the fit."""
        import pandas as pd

        frame = pd.DataFrame(X) if isinstance(X, Mapping) else as_frame(X)
        if frame is not None:
            return frame
        rows = as_array(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have shape (rows, {self.n_features_in_}), got {rows.shape}")
        return pd.DataFrame(rows, columns=list(self.feature_names_in_))  # type: ignore[arg-type]

    def _matched(self, X: Any) -> np.ndarray:
        """Columns by name, in the order of the fit; by position if the model knows no names."""
        names = [str(n) for n in (X.keys() if isinstance(X, Mapping) else X.columns)]
        columns = list(X.values()) if isinstance(X, Mapping) else [X[name] for name in X.columns]
        if self.feature_names_in_ is not None:
            missing = [str(name) for name in self.feature_names_in_ if name not in names]
            if missing:
                raise ValueError(f"columns that the model was fitted to are missing: {', '.join(missing)}; add them")
            columns = [columns[names.index(str(name))] for name in self.feature_names_in_]
        return np.stack([np.asarray(column) for column in columns], 1)


def _split(model: SavedObject) -> tuple[FittedColumns | None, SavedObject]:
    """Encoder of the columns, if there is one, and estimator of a saved model."""
    saved = model.get("encoder_")
    if model.kind == "Pipeline":
        steps = [step for _, step in model["steps"]]
        if len(steps) != 2 or getattr(steps[0], "kind", "") != "TableEncoder":
            raise UnlazyError("only pipelines of a TableEncoder and an estimator can be served: use unlazy.load")
        saved, model = steps
    if saved is None:
        return None, model
    encoder = FittedColumns()
    vars(encoder).update(saved.values)
    return encoder, model


def load_predictor(path: str | Path) -> Predictor:
    """Load a saved model for predictions with NumPy and SciPy alone.

    Neither JAX nor scikit-learn is imported and nothing is compiled, so a fresh process predicts at once. It serves
    feature machines, `KernelRegressor` and `KernelClassifier` with radial, linear and polynomial kernels on tables,
    with text, dates and missing values (which import pandas); `unlazy.load` loads everything. Predictions are in
    float64 and equal those of the estimator up to rounding.

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
