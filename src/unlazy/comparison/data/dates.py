"""Dates in text columns: ISO 8601 first, and 3/4/2020 only if the order of day and month is certain."""

import re
import warnings

import pandas as pd

from unlazy.core.errors import UnlazyError

_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?\s*")
_DAY_OR_MONTH = re.compile(r"\s*(\d{1,2})([-/.])(\d{1,2})\2\d{2,4}")
_LOOKED_AT = 200


def are_dates(texts: pd.Series) -> bool:
    """Whether the texts look like dates, judging by the first ones."""
    some = texts.iloc[:_LOOKED_AT]
    if not len(some) or not some.map(lambda t: bool(_DATE.fullmatch(t))).all():
        return False
    return bool(_parse(some, day_first=False).notna().mean() > 0.9)


def as_dates(series: pd.Series) -> pd.Series:
    """Convert a column of dates or of texts with dates to datetime64; values that are no dates become missing."""
    if pd.api.types.is_datetime64_any_dtype(series):
        return series
    texts = series.dropna().map(str)
    return _parse(texts, _day_first(texts, str(series.name))).reindex(series.index)


def _parse(texts: pd.Series, day_first: bool) -> pd.Series:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pd.to_datetime(texts, errors="coerce", format="mixed", dayfirst=day_first, utc=False)
        if found.dtype == object:  # different time zones
            found = pd.to_datetime(texts, errors="coerce", format="mixed", dayfirst=day_first, utc=True)
    return found


def _day_first(texts: pd.Series, name: str) -> bool:
    """Whether the day comes before the month; raise UnlazyError if the values leave it open."""
    found = [m for m in map(_DAY_OR_MONTH.match, texts) if m]
    if not found or any(m[2] == "." for m in found):
        return bool(found)
    if any(int(m[1]) > 12 for m in found):
        return True
    if any(int(m[3]) > 12 for m in found) or all(m[1] == m[3] for m in found):
        return False
    raise UnlazyError(
        f"column {name!r} has dates such as {texts.iloc[0].strip()!r}: is the day or the month first? Write them as "
        "2020-12-31"
    )
