"""Validation of tables of numbers: errors name the column and the remedy."""

from collections.abc import Callable

import jax
import numpy as np
from scipy.sparse import issparse

from unlazy.core.arrays import Labels, Points

_MISSING = "impute them first, for example with make_pipeline(SimpleImputer(), ...), or drop those rows"


def dense_floats(X: Points, validate: Callable[[Points], np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return X as floats of type `dtype`, validated by scikit-learn; raise ValueError with a remedy."""
    if issparse(X):
        raise ValueError(
            "X is sparse and kernels need dense inputs: pass X.toarray(), or reduce it first, for example with "
            "make_pipeline(TruncatedSVD(100), ...)"
        )
    if isinstance(X, jax.Array):
        X = np.asarray(X)
    _reject_dates(X)
    shape = getattr(X, "shape", ())
    if len(shape) > 2:
        raise ValueError(
            f"Found array with dim {len(shape)}, shape {tuple(shape)}, expected a 2D array: "
            "X.reshape(len(X), -1) flattens each point. Images need a kernel of images, such as "
            "KernelClassifier(NTK(layers.myrtle(5)))"
        )
    try:
        array = validate(X)
    except (ValueError, TypeError) as error:
        raise _with_column(error, X) from error
    check_entries(array, column_names(X), dtype)
    return array.astype(dtype, copy=False)


def column_names(X: Points) -> list[str] | None:
    """Return the column names of a table; None if it has none."""
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def _column_label(index: int, names: list[str] | None) -> str:
    """`column 'age'` or `column 3`."""
    return f"column {names[index]!r}" if names is not None else f"column {index}"


def check_entries(X: np.ndarray, names: list[str] | None, dtype: np.dtype) -> None:
    """Raise ValueError, naming the column, if entries are not finite or their squares overflow `dtype`."""
    limit = float(np.sqrt(np.finfo(dtype).max / (8 * max(1, X.shape[1]))))
    with np.errstate(over="ignore", invalid="ignore"):
        if max(X.max(initial=0), -X.min(initial=0)) <= limit:  # false if there is NaN
            return
        top = np.max(np.abs(X), axis=0)  # NaN if the column has one
    if np.isnan(top).any():
        j = int(np.argmax(np.isnan(top)))
        count = int(np.isnan(X[:, j]).sum())
        where = f"{_column_label(j, names)} of X contains NaN (missing values) in {count} of {len(X)} rows"
        raise ValueError(f"{where}: {_MISSING}")
    if np.isinf(top).any():
        j = int(np.argmax(np.isinf(top)))
        count = int(np.isinf(X[:, j]).sum())
        raise ValueError(
            f"{_column_label(j, names)} of X contains infinity in {count} of {len(X)} rows: replace those values, or "
            "drop the rows"
        )
    if (top > limit).any():
        j = int(np.argmax(top > limit))
        raise ValueError(
            f"{_column_label(j, names)} of X reaches {float(top[j]):.3g}, whose square overflows "
            f"{np.dtype(dtype).name} (infinity): rescale it, for example with StandardScaler"
            + ("" if dtype == np.float64 else ", or use precision='float64'")
        )


_CLASSIFIERS = ("FeatureMachineClassifier", "KernelClassifier", "NetworkClassifier")


def reject_text_labels(y: Labels, regressor: str) -> None:
    """Raise ValueError for text that is not a number, and name the classifier that fits it."""
    if getattr(getattr(y, "dtype", None), "kind", "O") in "biufc":
        return
    try:
        labels = np.asarray(y)
    except ValueError:  # rows of different lengths, which scikit-learn reports
        return
    if labels.dtype.kind not in "OU":
        return
    for label in labels.ravel():
        try:
            float(label) if isinstance(label, str) else 0.0
        except ValueError:
            same = regressor.replace("Regressor", "Classifier")
            raise ValueError(
                f"y holds text such as {str(label)!r}, but {regressor} predicts numbers: use "
                f"{same if same in _CLASSIFIERS else _CLASSIFIERS[0]} for classes"
            ) from None


def _reject_dates(X: Points) -> None:
    """Raise ValueError for dates, which would silently become nanoseconds since 1970."""
    for name, kind in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ())):
        if getattr(kind, "kind", "") in ("m", "M"):
            raise ValueError(f"column {str(name)!r} of X holds dates ({kind}): convert it to a number")


def _with_column(error: ValueError | TypeError, X: Points) -> ValueError | TypeError:
    """Add the column and a remedy to an error of scikit-learn about text."""
    text, names = str(error).splitlines()[0], column_names(X)
    if names is None and "could not convert" not in text and "invalid literal" not in text:
        return error
    table = np.asarray(X, dtype=object)
    for j in range(table.shape[1] if table.ndim == 2 else 0):
        try:
            table[:, j].astype(np.float64)
        except (ValueError, TypeError):
            return ValueError(
                f"{_column_label(j, names)} of X does not hold numbers ({text}): encode it first, for example with "
                "ColumnTransformer and OneHotEncoder"
            )
    return error
