"""Dates in text columns: ISO 8601 first, and 3/4/2020 only if the order of day and month is certain."""

import re

import pandas as pd

from unlazy.core.errors import UnlazyError
from unlazy.estimators.preprocessing.date_texts import find_day_first, parse_date_texts

_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?\s*")
_LOOKED_AT = 200
_MOST = 0.9
"""Share of texts that must be dates; then the others are mistakes, which `parse_dates` reports."""


def are_dates(texts: pd.Series) -> bool:
    """Whether nearly all texts look like dates, judging by the first ones."""
    some = texts.iloc[:_LOOKED_AT]
    found = some[some.map(lambda t: bool(_DATE.fullmatch(t))).astype(bool)]
    if not len(some) or len(found) < _MOST * len(some):
        return False
    return any(parse_date_texts(found, order).notna().mean() > _MOST for order in (False, True))


def as_dates(series: pd.Series) -> pd.Series:
    """Convert a column of dates or of texts with dates to datetime64; values that are no dates become missing."""
    if pd.api.types.is_datetime64_any_dtype(series):
        return series
    return parse_date_texts(series.dropna().map(str), day_first(series)).reindex(series.index)


def day_first(series: pd.Series) -> bool | None:
    """Whether the day comes before the month; None if no date depends on it; raise UnlazyError if it is uncertain."""
    if pd.api.types.is_datetime64_any_dtype(series):
        return None
    try:
        return find_day_first(series.dropna().map(str))
    except ValueError as error:
        raise UnlazyError(f"column {str(series.name)!r} has {error}") from error
