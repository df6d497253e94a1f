"""Tables of numbers and categories as numbers, learned from the rows it is fitted to and matched by column names.

Numbers are filled in by their median (a column of its own marks where) and standardized; few categories become one
indicator each; many are replaced by the mean target of their rows, shrunk toward the overall mean, and in training by
the mean over other folds, so that no row sees its own label (Micci-Barreca 2001; cross-fitting as in scikit-learn).

By hand, since scikit-learn's own do something else or less: TargetEncoder stratifies its folds and has a column for
every class, not for all but the first; StandardScaler makes a rare indicator the largest column of all (see `columns`);
nothing there matches columns by name. The medians and indicators that it would take over are a line each, and what is
kept here (numbers, texts, arrays) is what a saved file can hold.
"""

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from unlazy.core.errors import UnlazyWarning
from unlazy.estimators.preprocessing.column_scale import Columns, median

if TYPE_CHECKING:
    import pandas as pd


class TableEncoder(TransformerMixin, BaseEstimator):
    """A frame to an array of floats. Text columns are categories, all others numbers.

    `few` is the largest number of categories that get an indicator each; `smoothing` the number of rows that the
    overall mean counts for in a category's mean target. Columns are found by name: their order does not matter, extra
    ones are left aside with a note, missing ones are an error that names them. `target` is remembered for whoever
    loads a saved model.

    >>> make_pipeline(TableEncoder(), FeatureMachineRegressor()).fit(frame, y)
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

    def fit(self, X: "pd.DataFrame", y: Any = None, sample_weight: Any = None) -> "TableEncoder":
        """Weights count rows, in medians, means and deviations alike."""
        self._learn(X, y, sample_weight)
        return self

    def fit_transform(self, X: "pd.DataFrame", y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Training rows: categories by the mean target of the other folds."""
        return self._learn(X, y, sample_weight)

    def transform(self, X: "pd.DataFrame") -> np.ndarray:
        check_is_fitted(self)
        X = self._matched(X)
        parts = [self._encode(X[name].to_numpy(), name) for name in self.columns_]
        return self._scaled(np.hstack(parts))

    def _learn(self, X: "pd.DataFrame", y: Any, sample_weight: Any) -> np.ndarray:
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
        self.offset_, self.scale_ = Columns.of(raw, w, True)
        return self._scaled(raw)

    def _column(
        self, values: np.ndarray, name: str, Y: np.ndarray, fold: np.ndarray, w: np.ndarray | None
    ) -> tuple[np.ndarray, list[str]]:
        """What one column turns into in training, with the names of its parts."""
        if values.dtype.kind != "O":
            gone = np.isnan(values)
            known, counts = values[~gone].astype(np.float64), None if w is None else w[~gone]
            self.kinds_[name] = "marked" if gone.any() else "numeric"
            self.fill_[name] = float(median(known[:, None], counts)[0]) if len(known) else 0.0
            return self._encode(values, name), [name] + [f"{name} missing"] * bool(gone.any())
        words = [category_text(v) for v in values]
        self.categories_[name] = sorted(set(words))
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
        kind = self.kinds_[name]
        if kind in ("numeric", "marked"):
            numbers = values.astype(np.float64)
            gone = np.isnan(numbers)
            filled = np.where(gone, self.fill_[name], numbers)
            return np.stack([filled, gone], 1) if kind == "marked" else filled[:, None]
        codes = self._codes(values, name)
        if kind == "indicators":
            return (codes[:, None] == np.arange(len(self.categories_[name]))).astype(np.float64)
        return np.vstack([self.means_[name], self.prior_])[codes]  # -1, a category never met, is the overall mean

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        number = {c: i for i, c in enumerate(self.categories_[name])}
        return np.array([number.get(category_text(v), -1) for v in values], dtype=int)

    def _scaled(self, raw: np.ndarray) -> np.ndarray:
        return Columns(self.offset_, self.scale_)(raw)

    def _matched(self, X: Any) -> "pd.DataFrame":
        """The fitted columns of X in their order, as numbers or text, or a ValueError that names what is wrong."""
        import pandas as pd

        frame = X if isinstance(X, pd.DataFrame) else _by_position(X, self.columns_)
        given = [str(name) for name in frame.columns]
        count, known = Counter(given), set(self.columns_)
        missing = [name for name in self.columns_ if not count[name]]
        if missing:
            raise ValueError(f"columns that the model was fitted to are missing: {', '.join(missing)}; add them")
        twice = [name for name in self.columns_ if count[name] > 1]
        if twice:
            raise ValueError(f"{count[twice[0]]} columns are called {twice[0]!r}; give each its own name")
        extra = [name for name in given if name not in known and name != self.target]
        if extra:
            warnings.warn(
                f"columns unknown to the model were left aside: {', '.join(extra)}", UnlazyWarning, stacklevel=3
            )
        frame = frame.set_axis(given, axis=1)[self.columns_]
        return pd.DataFrame({name: self._typed(frame[name], name) for name in self.columns_})

    def _typed(self, series: "pd.Series", name: str) -> np.ndarray:
        import pandas as pd

        if self.kinds_[name] not in ("numeric", "marked"):
            return np.array(
                [None if gone else category_text(v) for v, gone in zip(series, series.isna())], dtype=object
            )
        plain = isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiu"  # nothing to read
        numbers = series if plain else pd.to_numeric(series, errors="coerce")
        wrong = False if plain else numbers.isna() & series.notna()
        if np.any(wrong):
            raise ValueError(
                f"column {name!r} was numbers in training and holds {series[wrong].iloc[0]!r}; correct it, or leave "
                "the cell empty"
            )
        values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isinf(values).any():
            raise ValueError(f"column {name!r} holds infinity; replace it, or leave the cell empty")
        return values


def _targets(y: Any, n: int) -> np.ndarray:
    """What categories are averaged over: the label, or the indicators of all classes but the first."""
    if y is None:
        return np.zeros((n, 1))
    y = np.asarray(y)
    if y.dtype.kind == "f":
        return y.reshape(n, 1).astype(np.float64)
    classes = np.unique(y)
    return (y[:, None] == classes[None, 1:]).astype(np.float64) if len(classes) > 1 else np.zeros((n, 1))


def _means(codes: np.ndarray, Y: np.ndarray, k: int, smoothing: float, w: np.ndarray | None) -> np.ndarray:
    """(Σ_{i in c} w_i y_i + m·ȳ)/(n_c + m) of every category c, n_c its weight."""
    count = np.bincount(codes, w, minlength=k)[:, None]
    total = np.stack([np.bincount(codes, column if w is None else w * column, minlength=k) for column in Y.T], 1)
    return (total + smoothing * _mean(Y, w)) / (count + smoothing)


def _mean(Y: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    return Y.mean(0) if w is None else w @ Y / w.sum()


def category_text(value: Any) -> str:
    """A category as text: missing is empty, and 3.0 is 3."""
    if value is None or value != value:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _by_position(X: Any, names: list[str]) -> "pd.DataFrame":
    import pandas as pd

    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"the model was fitted to {len(names)} columns ({', '.join(names[:8])}), got shape {array.shape}"
        )
    return pd.DataFrame(array, columns=names)
