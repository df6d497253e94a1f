"""Validation of tables: dense, numeric and finite. Error messages name the column and a remedy."""

from typing import Any

import jax
import numpy as np

_MISSING = "impute them first, for example with make_pipeline(SimpleImputer(), ...), or drop those rows"


def dense_floats(X: Any, validate: Any, dtype: np.dtype) -> np.ndarray:
    """Return X as floats of type `dtype`, validated by scikit-learn; raise ValueError with a remedy."""
    from scipy.sparse import issparse

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
    check_finite(array, column_names(X), dtype)
    return array.astype(dtype, copy=False)


def column_names(X: Any) -> list[str] | None:
    """Return the column names of a table; None if it has none."""
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def column_label(index: int, names: list[str] | None) -> str:
    """`column 'age'` or `column 3`."""
    return f"column {names[index]!r}" if names is not None else f"column {index}"


def check_finite(X: np.ndarray, names: list[str] | None, dtype: np.dtype) -> None:
    """Raise ValueError, naming the column, if entries are not finite or their squares overflow `dtype`."""
    limit = float(np.sqrt(np.finfo(dtype).max / (8 * max(1, X.shape[1]))))
    with np.errstate(over="ignore", invalid="ignore"):
        if max(X.max(initial=0), -X.min(initial=0)) <= limit:  # false if there is NaN
            return
        top = np.max(np.abs(X), axis=0)  # NaN if the column has one
    if np.isnan(top).any():
        j = int(np.argmax(np.isnan(top)))
        count = int(np.isnan(X[:, j]).sum())
        where = f"{column_label(j, names)} of X contains NaN (missing values) in {count} of {len(X)} rows"
        raise ValueError(f"{where}: {_MISSING}")
    if np.isinf(top).any():
        j = int(np.argmax(np.isinf(top)))
        count = int(np.isinf(X[:, j]).sum())
        raise ValueError(
            f"{column_label(j, names)} of X contains infinity in {count} of {len(X)} rows: replace those values, or "
            "drop the rows"
        )
    if (top > limit).any():
        j = int(np.argmax(top > limit))
        raise ValueError(
            f"{column_label(j, names)} of X reaches {float(top[j]):.3g}, whose square overflows {np.dtype(dtype).name} "
            "(infinity): rescale it, for example with StandardScaler"
            + ("" if dtype == np.float64 else ", or use precision='float64'")
        )


def _reject_dates(X: Any) -> None:
    """Raise ValueError for dates, which would silently become nanoseconds since 1970."""
    for name, kind in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ())):
        if getattr(kind, "kind", "") in ("m", "M"):
            raise ValueError(f"column {str(name)!r} of X holds dates ({kind}): convert it to a number")


def _with_column(error: ValueError | TypeError, X: Any) -> ValueError | TypeError:
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
                f"{column_label(j, names)} of X does not hold numbers ({text}): encode it first, for example with "
                "ColumnTransformer and OneHotEncoder"
            )
    return error
