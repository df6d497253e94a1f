"""Columns that look like groups of rows or like time: a guess from their names and values, said as a note."""

import re
from typing import TYPE_CHECKING

from unlazy.core.errors import listed

if TYPE_CHECKING:
    import pandas as pd

_GROUP = re.compile(
    r"(^|[^a-z])(subject|patient|person|participant|user|customer|client|household|family|group|session|site|clinic"
    r"|hospital|school|store|batch|speaker|animal|plot)s?([^a-z]|$)", re.IGNORECASE,
)  # fmt: skip
_TIME = re.compile(
    r"(^|[^a-z])(date|time|timestamp|datetime|year|month|week|day|hour|quarter)([^a-z]|$)", re.IGNORECASE
)


def guesses(frame: "pd.DataFrame", grouped: bool, timed: bool) -> list[str]:
    """Notes on columns that look like groups of rows or like time, where none was named."""
    notes = []
    groups = [n for n in frame.columns if _GROUP.search(str(n)) and _repeats(frame[n])]
    if groups and not grouped:
        counts = [f"{n} ({frame[n].nunique()} values)" for n in groups]
        notes.append(
            f"rows seem to come in groups by {listed(counts)}: if new rows will be of other groups, say so with "
            f"--group {groups[0]}, since random splits let models recognize the group"
        )
    times = [n for n in frame.columns if _TIME.search(str(n)) and _in_order(frame[n])]
    if times and not timed:
        notes.append(
            f"rows seem to be in the order of {listed(times)}: if later rows are to be predicted from earlier ones, "
            f"say so with --time {times[0]}, since random splits look into the future"
        )
    return notes


def _repeats(series: "pd.Series") -> bool:
    return 5 <= series.nunique() <= len(series) / 3


def _in_order(series: "pd.Series") -> bool:
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(series):
        return False
    return series.nunique() > 5 and bool(series.is_monotonic_increasing or series.is_monotonic_decreasing)
