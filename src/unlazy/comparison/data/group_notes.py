"""Notes on columns whose names and values suggest groups of rows or time."""

import re
from collections.abc import Sequence

import pandas as pd

from unlazy.core.errors import join_names

_GROUP = re.compile(
    r"(^|[^a-z])(subject|patient|person|participant|user|customer|client|household|family|group|session|site|clinic"
    r"|hospital|school|store|batch|speaker|animal|plot)s?([^a-z]|$)", re.IGNORECASE,
)  # fmt: skip
_TIME = re.compile(
    r"(^|[^a-z])(date|time|timestamp|datetime|year|month|week|day|hour|quarter)([^a-z]|$)", re.IGNORECASE
)


def group_and_time_notes(frame: pd.DataFrame, grouped: bool, timed: bool) -> list[str]:
    """Notes on columns that look like groups of rows or like time, unless the user has named one."""
    notes = []
    groups = [n for n in frame.columns if _GROUP.search(str(n)) and _repeats(frame[n])]
    if groups and not grouped:
        counts = [f"{n} ({frame[n].nunique():,} values)" for n in groups]
        notes.append(
            f"rows seem to be grouped by {join_names(counts)}; if the model will be used on new groups, pass "
            f"--group {groups[0]}, because random splits put rows of one group into both training and test sets"
        )
    times = [n for n in frame.columns if _TIME.search(str(n)) and _in_order(frame[n])]
    if times and not timed:
        notes.append(
            f"rows seem to be ordered by {join_names(times)}; if the model will predict later rows from earlier ones, "
            f"pass --time {times[0]}, because random splits train on the future"
        )
    return notes


def without_split_notes(notes: Sequence[str], frame: pd.DataFrame) -> tuple[str, ...]:
    """Notes without those on groups and time, which concern splits only."""
    advice = group_and_time_notes(frame, False, False)
    return tuple(note for note in notes if note not in advice)


def _repeats(series: pd.Series) -> bool:
    """Whether values repeat often enough to be groups."""
    return 5 <= series.nunique() <= len(series) / 3


def _in_order(series: pd.Series) -> bool:
    """Whether a numeric column increases or decreases from row to row."""
    if not pd.api.types.is_numeric_dtype(series):
        return False
    return series.nunique() > 5 and bool(series.is_monotonic_increasing or series.is_monotonic_decreasing)
