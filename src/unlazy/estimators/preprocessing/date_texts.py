"""Dates in text: 3/4/2020 is read only if the order of day and month is certain.

pandas swaps day and month of a value if the requested order is impossible, and also those of 2020-03-04 if the day is
requested first; here neither happens.
"""

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_YEAR_LAST = re.compile(r"\s*(\d{1,2})([-/.])(\d{1,2})\2(\d{2,4})(?!\d)(.*)")


def find_day_first(texts: Iterable[str], trained: bool | None = None) -> bool | None:
    """Whether the day comes before the month, as it does between dots and in `trained`, the order of earlier dates.

    None if no text depends on it. Raises ValueError if the texts leave it open.
    """
    found = [m for m in map(_YEAR_LAST.match, texts) if m and m[1] != m[3]]
    if any(m[2] == "." for m in found):
        return True
    if not found or trained is not None:
        return trained
    if any(int(m[1]) > 12 for m in found):
        return True
    if any(int(m[3]) > 12 for m in found):
        return False
    raise ValueError(f"dates such as {found[0][0].strip()!r}: is the day or the month first? Write them as 2020-12-31")


def parse_date_texts(texts: "pd.Series", day_first: bool | None) -> "pd.Series":
    """Return texts as dates, missing where they are none; dates of different time zones are in UTC."""
    import pandas as pd

    written = texts.map(lambda text: _in_one_order(text, bool(day_first))).astype(object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = pd.to_datetime(written, errors="coerce", format="mixed")
        except ValueError:  # different time zones
            return pd.to_datetime(written, errors="coerce", format="mixed", utc=True)
        if found.dtype == object:  # the same in earlier versions of pandas
            found = pd.to_datetime(written, errors="coerce", format="mixed", utc=True)
    return found


def _in_one_order(text: str, day_first: bool) -> str | None:
    """Date with the year first, or the month if the year has two digits; None if that month does not exist."""
    found = _YEAR_LAST.fullmatch(text)
    if not found:
        return text
    day, month = (found[1], found[3]) if day_first else (found[3], found[1])
    if int(month) > 12:
        return None
    if len(found[4]) == 4:
        return f"{found[4]}-{month:0>2}-{day:0>2}{found[5]}"
    return f"{month}/{day}/{found[4]}{found[5]}"
