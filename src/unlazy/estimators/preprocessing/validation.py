"""What estimators accept: dense numbers, every column finite; refusals name the column and what to do."""

from typing import Any

import jax
import numpy as np

_MISSING = "impute them first, for example make_pipeline(SimpleImputer(), ...), or drop those rows"


def dense_floats(X: Any, validate: Any, dtype: np.dtype) -> np.ndarray:
    """X as floats of the wanted type, through scikit-learn's own `validate(X)`, or a ValueError with a remedy."""
    from scipy.sparse import issparse

    if issparse(X):
        raise ValueError(
            "X is sparse and kernels need dense inputs: pass X.toarray(), or reduce it first, for example with "
            "make_pipeline(TruncatedSVD(100), ...)"
        )
    if isinstance(X, jax.Array):
        X = np.asarray(X)
    _refuse_dates(X)
    shape = getattr(X, "shape", ())
    if len(shape) > 2:
        raise ValueError(
            f"Found array with dim {len(shape)}, shape {tuple(shape)}, and rows of numbers are wanted here: "
            "X.reshape(len(X), -1) makes one of every point. Images as they are need a kernel of images, such as "
            "KernelClassifier(NTK(layers.myrtle(5)))"
        )
    try:
        array = validate(X)
    except (ValueError, TypeError) as error:
        raise _with_column(error, X) from error
    check_finite(array, column_names(X), dtype)
    return array.astype(dtype, copy=False)


def column_names(X: Any) -> list[str] | None:
    """The names a table brings, or None."""
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def named(index: int, names: list[str] | None) -> str:
    """`column 'age'` or `column 3`."""
    return f"column {names[index]!r}" if names is not None else f"column {index}"


def check_finite(X: np.ndarray, names: list[str] | None, dtype: np.dtype) -> None:
    """Finite entries whose squares can be summed in `dtype`, or a ValueError that names the first column at fault."""
    limit = float(np.sqrt(np.finfo(dtype).max / (8 * max(1, X.shape[1]))))
    with np.errstate(over="ignore", invalid="ignore"):
        if max(X.max(initial=0), -X.min(initial=0)) <= limit:  # false where there is NaN
            return
        top = np.max(np.abs(X), axis=0)  # NaN where a column has one
    if np.isnan(top).any():
        j = int(np.argmax(np.isnan(top)))
        count = int(np.isnan(X[:, j]).sum())
        where = f"{named(j, names)} of X contains NaN (missing values) in {count} of {len(X)} rows"
        raise ValueError(f"{where}: {_MISSING}")
    if np.isinf(top).any():
        j = int(np.argmax(np.isinf(top)))
        count = int(np.isinf(X[:, j]).sum())
        raise ValueError(
            f"{named(j, names)} of X contains infinity in {count} of {len(X)} rows: replace those values, or drop the "
            "rows"
        )
    if (top > limit).any():
        j = int(np.argmax(top > limit))
        raise ValueError(
            f"{named(j, names)} of X reaches {float(top[j]):.3g}, whose square overflows {np.dtype(dtype).name} "
            "(infinity): rescale it, for example with StandardScaler"
            + ("" if dtype == np.float64 else ", or use precision='float64'")
        )


def _refuse_dates(X: Any) -> None:
    """Dates would quietly become nanoseconds since 1970."""
    for name, kind in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ())):
        if getattr(kind, "kind", "") in ("m", "M"):
            raise ValueError(f"column {str(name)!r} of X holds dates ({kind}): turn it into a number")


def _with_column(error: ValueError | TypeError, X: Any) -> ValueError | TypeError:
    """scikit-learn's refusal of text, with the column and the remedy added."""
    text, names = str(error).splitlines()[0], column_names(X)
    if names is None and "could not convert" not in text and "invalid literal" not in text:
        return error
    table = np.asarray(X, dtype=object)
    for j in range(table.shape[1] if table.ndim == 2 else 0):
        try:
            table[:, j].astype(np.float64)
        except (ValueError, TypeError):
            return ValueError(
                f"{named(j, names)} of X does not hold numbers ({text}): encode it first, for example with "
                "ColumnTransformer and OneHotEncoder"
            )
    return error
