"""Encoding of tables with numbers and categories as floats, with columns matched by name.

Missing numbers are replaced by the median (with an indicator column) and numbers are standardized. Categories of
columns with few of them become one indicator each; otherwise they are replaced by the mean target of their rows, shrunk
toward the overall mean, and in training by the mean over other folds, so that no row sees its own label (Micci-Barreca
2001; cross-fitting as in scikit-learn).

The encoders of scikit-learn differ: TargetEncoder stratifies its folds and has a column for each class instead of all
but the first; StandardScaler makes a rare indicator the largest column (see `ColumnScale`); none of them matches
columns by name. All fitted attributes are numbers, strings and arrays, which a saved file can hold.
"""

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from unlazy.core.arrays import Labels, Points
from unlazy.core.errors import UnlazyWarning
from unlazy.estimators.preprocessing.columns import ColumnScale, weighted_median

if TYPE_CHECKING:
    import pandas as pd


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode a data frame with numbers and categories as an array of floats.

    Text columns are categories, all others numbers. Columns are matched by name: their order does not matter, extra
    columns are ignored with a warning, and missing columns raise an error that names them.

    Parameters
    ----------
    few : int, default 12
        Largest number of categories that are encoded by indicators; columns with more use the mean target.
    smoothing : float, default 10.0
        Number of rows that the overall mean counts for in the mean target of a category.
    folds : int, default 5
        Number of folds for the mean targets of training rows.
    target : str, default "y"
        Name of the target column, stored with a saved model.

    Attributes
    ----------
    columns_ : list of str
        Column names.
    kinds_ : dict of str
        Encoding of each column: "numeric", "marked" (numeric with missing values), "indicators" or "means".
    fill_ : dict of float
        Median of each numeric column.
    categories_ : dict of list
        Categories of each text column.
    means_ : dict of arrays
        Mean targets of the categories.
    prior_ : array
        Overall mean target.
    names_ : list of str
        Names of the encoded columns.
    source_ : array of int
        Index of the original column of each encoded column.
    offset_, scale_ : arrays
        Offset and scale of the encoded columns.

    References
    ----------
    Micci-Barreca (2001), A preprocessing scheme for high-cardinality categorical attributes in classification and
    prediction problems.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from unlazy.estimators.preprocessing.table_encoder import TableEncoder
    >>> frame = pd.DataFrame({"size": [1.0, np.nan, 3.0], "color": ["red", "green", "red"]})
    >>> np.isfinite(TableEncoder().fit_transform(frame)).all()
    np.True_
    """

    few: int
    smoothing: float
    folds: int
    target: str

    def __init__(self, few=12, *, smoothing=10.0, folds=5, target="y"):
        self.few = few
        self.smoothing = smoothing
        self.folds = folds
        self.target = target

    def fit(self, X: "pd.DataFrame", y: Labels | None = None, sample_weight: ArrayLike | None = None) -> "TableEncoder":
        """Learn the encoding.

        Parameters
        ----------
        X : DataFrame
            Training rows.
        y : array of shape (n,), optional
            Targets; floats for regression, otherwise class labels.
        sample_weight : array of shape (n,), optional
            Weights of the rows, used in medians, means and standard deviations.

        Returns
        -------
        TableEncoder
            The fitted encoder.
        """
        self._fit_table(X, y, sample_weight)
        return self

    def fit_transform(
        self, X: "pd.DataFrame", y: Labels | None = None, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Learn the encoding and encode the training rows, using mean targets of other folds.

        Parameters
        ----------
        X : DataFrame
            Training rows.
        y : array of shape (n,), optional
            Targets; floats for regression, otherwise class labels.
        sample_weight : array of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        array of shape (n, n_encoded)
            Encoded rows.
        """
        return self._fit_table(X, y, sample_weight)

    def transform(self, X: "pd.DataFrame") -> np.ndarray:
        """Encode new rows.

        Parameters
        ----------
        X : DataFrame, or array with the columns of `fit` in their order
            Rows to encode.

        Returns
        -------
        array of shape (m, n_encoded)
            Encoded rows.

        Raises
        ------
        ValueError
            If a column is missing, appears twice, or holds text or infinity instead of numbers.
        """
        check_is_fitted(self)
        X = self._matched(X)
        parts = [self._encode(X[name].to_numpy(), name) for name in self.columns_]
        return self._scaled(np.hstack(parts))

    def _fit_table(self, X: "pd.DataFrame", y: Labels, sample_weight: Any) -> np.ndarray:
        """Learn the encoding; return the encoded training rows."""
        Y = _targets(y, len(X))
        w = None if sample_weight is None else _check_sample_weight(sample_weight, Y, ensure_non_negative=True)
        self.columns_ = [str(name) for name in X.columns]
        self.prior_ = _mean(Y, w)
        self.kinds_: dict[str, str] = {}
        self.fill_: dict[str, float] = {}
        self.categories_: dict[str, list[str]] = {}
        self.means_: dict[str, np.ndarray] = {}
        fold = np.random.default_rng(0).permutation(len(X)) % max(2, int(self.folds))
        parts, names, source = [], [], []
        for j, name in enumerate(self.columns_):
            values = X[name].to_numpy()
            part, labels = self._column(values, name, Y, fold, w)
            parts.append(part)
            names += labels
            source += [j] * len(labels)
        self.names_, self.source_ = names, np.array(source)
        raw = np.hstack(parts)
        self.offset_, self.scale_ = ColumnScale.from_data(raw, w, True)
        return self._scaled(raw)

    def _column(
        self, values: np.ndarray, name: str, Y: np.ndarray, fold: np.ndarray, w: np.ndarray | None
    ) -> tuple[np.ndarray, list[str]]:
        """Encode one column of the training rows; return it with the names of its parts."""
        if values.dtype.kind != "O":
            gone = np.isnan(values)
            known, counts = values[~gone].astype(np.float64), None if w is None else w[~gone]
            self.kinds_[name] = "marked" if gone.any() else "numeric"
            self.fill_[name] = float(weighted_median(known[:, None], counts)[0]) if len(known) else 0.0
            return self._encode(values, name), [name] + [f"{name} missing"] * bool(gone.any())
        strings = [category_text(v) for v in values]
        self.categories_[name] = sorted(set(strings))
        codes = self._codes(values, name)
        if len(self.categories_[name]) <= self.few:
            self.kinds_[name] = "indicators"
            return self._encode(values, name), [f"{name} = {c or '(missing)'}" for c in self.categories_[name]]
        self.kinds_[name] = "means"
        k = len(self.categories_[name])
        self.means_[name] = _means(codes, Y, k, self.smoothing, w)
        part = np.empty_like(Y)
        for f in range(int(fold.max()) + 1):
            others = fold != f
            counts = None if w is None else w[others]
            part[~others] = _means(codes[others], Y[others], k, self.smoothing, counts)[codes[~others]]
        many = Y.shape[1] > 1
        return part, [f"{name} (mean target{f' {c}' if many else ''})" for c in range(Y.shape[1])]

    def _encode(self, values: np.ndarray, name: str) -> np.ndarray:
        """Encode one column with the learned encoding."""
        kind = self.kinds_[name]
        if kind in ("numeric", "marked"):
            numbers = values.astype(np.float64)
            gone = np.isnan(numbers)
            filled = np.where(gone, self.fill_[name], numbers)
            return np.stack([filled, gone], 1) if kind == "marked" else filled[:, None]
        codes = self._codes(values, name)
        if kind == "indicators":
            return (codes[:, None] == np.arange(len(self.categories_[name]))).astype(np.float64)
        return np.vstack([self.means_[name], self.prior_])[codes]  # -1, an unseen category, is the overall mean

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        """Index of the category of each value; -1 if it is unknown."""
        number = {c: i for i, c in enumerate(self.categories_[name])}
        return np.array([number.get(category_text(v), -1) for v in values], dtype=int)

    def _scaled(self, raw: np.ndarray) -> np.ndarray:
        return ColumnScale(self.offset_, self.scale_)(raw)

    def _matched(self, X: Points) -> "pd.DataFrame":
        """Return the fitted columns of X in their order, as numbers or text; raise ValueError if they do not match."""
        import pandas as pd

        frame = X if isinstance(X, pd.DataFrame) else _by_position(X, self.columns_)
        given = [str(name) for name in frame.columns]
        count, known = Counter(given), set(self.columns_)
        missing = [name for name in self.columns_ if not count[name]]
        if missing:
            raise ValueError(f"columns that the model was fitted to are missing: {', '.join(missing)}")
        twice = [name for name in self.columns_ if count[name] > 1]
        if twice:
            raise ValueError(f"{count[twice[0]]} columns are named {twice[0]!r}; column names must be unique")
        extra = [name for name in given if name not in known and name != self.target]
        if extra:
            warnings.warn(f"columns unknown to the model were ignored: {', '.join(extra)}", UnlazyWarning, stacklevel=3)
        frame = frame.set_axis(given, axis=1)[self.columns_]
        return pd.DataFrame({name: self._typed(frame[name], name) for name in self.columns_})

    def _typed(self, series: "pd.Series", name: str) -> np.ndarray:
        """Return a column as numbers or text."""
        import pandas as pd

        if self.kinds_[name] not in ("numeric", "marked"):
            return np.array(
                [None if gone else category_text(v) for v, gone in zip(series, series.isna())], dtype=object
            )
        plain = isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiu"  # already numeric
        numbers = series if plain else pd.to_numeric(series, errors="coerce")
        wrong = False if plain else numbers.isna() & series.notna()
        if np.any(wrong):
            raise ValueError(
                f"column {name!r} was numeric in training but holds {series[wrong].iloc[0]!r}; correct it, or leave "
                "the cell empty"
            )
        values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isinf(values).any():
            raise ValueError(f"column {name!r} holds infinity; replace it, or leave the cell empty")
        return values


def _targets(y: Labels, n: int) -> np.ndarray:
    """Targets that are averaged over categories: y, or the indicators of all classes but the first."""
    if y is None:
        return np.zeros((n, 1))
    y = np.asarray(y)
    if y.dtype.kind == "f":
        return y.reshape(n, 1).astype(np.float64)
    classes = np.unique(y)
    return (y[:, None] == classes[None, 1:]).astype(np.float64) if len(classes) > 1 else np.zeros((n, 1))


def _means(codes: np.ndarray, Y: np.ndarray, k: int, smoothing: float, w: np.ndarray | None) -> np.ndarray:
    """(Σ_{i in c} w_i y_i + m·ȳ)/(n_c + m) for each category c of weight n_c."""
    count = np.bincount(codes, w, minlength=k)[:, None]
    total = np.stack([np.bincount(codes, column if w is None else w * column, minlength=k) for column in Y.T], 1)
    return (total + smoothing * _mean(Y, w)) / (count + smoothing)


def _mean(Y: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    return Y.mean(0) if w is None else w @ Y / w.sum()


def category_text(value: object) -> str:
    """A category as a string: missing values are empty, and 3.0 is "3"."""
    if value is None or value != value:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _by_position(X: Points, names: list[str]) -> "pd.DataFrame":
    import pandas as pd

    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"the model was fitted to {len(names)} columns ({', '.join(names[:8])}), got shape {array.shape}"
        )
    return pd.DataFrame(array, columns=names)
