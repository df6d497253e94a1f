"""Reading of data frames: which ones need an encoder, and each column as numbers, text or dates.

pandas is imported only when a frame is given. Frames of Polars, Arrow and other libraries are converted by their own
`to_pandas`, so none of these libraries is imported here.
"""

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.core.errors import UnlazyWarning, join_names

if TYPE_CHECKING:
    import pandas as pd

    from unlazy.core.arrays import Points

SECONDS_PER_DAY = 86_400.0
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_DATES = ("datetime", "datetime64", "date")


def as_frame(X: "Points") -> "pd.DataFrame | None":
    """Return a data frame of any library as a pandas one; None if X is not a data frame."""
    if not hasattr(X, "columns"):
        return None
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    if hasattr(X, "collect"):
        raise ValueError(f"X is a {type(X).__name__}, which has no rows yet: pass X.collect()")
    return None


def as_array(X: Any) -> np.ndarray:
    """Return X as an array; a list of numbers and text keeps its cells as they are."""
    array = np.asarray(X)
    return array if hasattr(X, "dtype") or array.dtype.kind not in "US" else np.array(X, dtype=object)


def frame_names(frame: "pd.DataFrame") -> list[str]:
    """Return the column names as strings; raise ValueError if one appears twice."""
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{names.count(twice)} columns are named {twice!r}; column names must be unique")
    return names


def match_columns(
    frame: "pd.DataFrame", names: Sequence[str], ignored: Sequence[str] = (), *, may_be_empty: bool = False
) -> "pd.DataFrame":
    """Return the columns `names` of a frame in this order; warn about others, except those `ignored`."""
    given = [str(name) for name in frame.columns]
    if given == list(names):
        return frame
    count, known = Counter(given), {*names, *ignored}
    missing = [name for name in names if not count[name]]
    if missing:
        empty = ", with empty cells if the values are unknown" if may_be_empty else ""
        raise ValueError(f"columns that the model was fitted to are missing: {', '.join(missing)}; add them{empty}")
    twice = [name for name in names if count[name] > 1]
    if twice:
        raise ValueError(f"{count[twice[0]]} columns are named {twice[0]!r}; column names must be unique")
    extra = [name for name in given if name not in known]
    if extra:
        warnings.warn(f"columns unknown to the model were ignored: {join_names(extra)}", UnlazyWarning, stacklevel=4)
    return frame.set_axis(given, axis=1)[list(names)]


def needs_encoder(frame: "pd.DataFrame") -> bool:
    """Return whether a frame holds more than numbers: text, categories, dates or missing values."""
    return len(frame) > 0 and any(_needs_encoder(frame.iloc[:, j]) for j in range(frame.shape[1]))


def _needs_encoder(series: "pd.Series") -> bool:
    from pandas.api import types

    if types.is_numeric_dtype(series.dtype) or types.is_bool_dtype(series.dtype):
        if not hasattr(series.dtype, "categories"):
            return bool(series.isna().any())
    elif series.dtype == object and types.infer_dtype(series, skipna=True) in _NUMBERS:
        return bool(series.isna().any())
    return True


def read_column(series: "pd.Series", name: str) -> np.ndarray:
    """Return a column as float64 (NaN if missing), as text in an object array (None if missing), or as dates.

    Text, the category dtype and mixtures of types are text, whatever the categories are; booleans are 0 and 1,
    durations are days, and dates with a time zone are read in that zone.
    """
    import pandas as pd
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype | pd.IntervalDtype):
        return as_text(series, name)
    if isinstance(dtype, pd.PeriodDtype) or _is_arrow_date(dtype):
        return _as_dates(as_date_series(series))
    if types.is_complex_dtype(dtype):
        raise ValueError(f"column {name!r} holds complex numbers; pass the real and imaginary parts as two columns")
    if types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype):
        return _as_numbers(series, name)
    if types.is_datetime64_any_dtype(dtype):
        return _as_dates(series)
    if types.is_timedelta64_dtype(dtype):
        return _as_days(series)
    if isinstance(dtype, pd.StringDtype):
        return as_text(series, name)
    kind = types.infer_dtype(series, skipna=True)
    if kind in _NUMBERS:
        return _as_numbers(series, name)
    if kind in _DATES:
        return _as_dates(as_date_series(series))
    if kind in ("timedelta", "timedelta64"):
        return _as_days(pd.to_timedelta(series))
    return as_text(series, name)


def as_date_series(series: "pd.Series") -> "pd.Series":
    """Return dates, periods or text as a column of dates; cells that are not dates are missing."""
    import pandas as pd

    if isinstance(series.dtype, pd.PeriodDtype):
        return series.dt.to_timestamp()
    if series.dtype.kind == "M" and not _is_arrow_date(series.dtype):
        return series
    return pd.to_datetime(series.astype(object), errors="coerce", format="mixed")


def zone_of(dates: "pd.Series") -> str:
    """Return the name of the time zone of a column of dates; empty if it has none."""
    zone = dates.dt.tz if dates.dtype.kind == "M" else None
    if zone is None:
        return ""
    file = re.fullmatch(r"tzfile\('(.+/)?zoneinfo/(?P<name>.+)'\)", str(zone))  # zones of dateutil
    return file["name"] if file else str(getattr(zone, "key", None) or getattr(zone, "zone", None) or zone)


def _is_arrow_date(dtype: Any) -> bool:
    return str(dtype).startswith("date") and str(dtype).endswith("[pyarrow]")


def category_text(value: object) -> str:
    """Return a category as a string: missing values are empty, and 3.0 is "3"."""
    if value is None or value != value:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _as_numbers(series: "pd.Series", name: str) -> np.ndarray:
    if series.dtype == object:
        values = np.array([np.nan if gone else float(v) for v, gone in zip(series, series.isna())], np.float64)
    else:
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise ValueError(f"column {name!r} holds infinity; replace it, or leave the cell empty")
    return values


def as_text(series: "pd.Series", name: str) -> np.ndarray:
    """Return a column as text, None if missing; 3 and 3.0 are the same category."""
    import pandas as pd

    try:
        codes, levels = pd.factorize(series)
    except TypeError as error:  # lists, dictionaries
        raise TypeError(f"column {name!r} of X does not hold numbers or text: {error}") from error
    texts: Any = np.array([*(category_text(level) for level in levels), None], dtype=object)
    for level in levels:
        if hasattr(level, "__len__") and not isinstance(level, str | bytes):
            raise TypeError(f"column {name!r} of X holds a {type(level).__name__}: a cell must be a string or a number")
    return texts[codes]


def _as_dates(series: "pd.Series") -> np.ndarray:
    if getattr(series.dt, "tz", None) is not None:
        series = series.dt.tz_localize(None)
    return series.to_numpy(dtype="datetime64[us]")  # nanoseconds end in 2262


def _as_days(series: "pd.Series") -> np.ndarray:
    return series.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan) / SECONDS_PER_DAY
