"""Dates as numbers: days since the first one, and the parts of the calendar that vary."""

from typing import Any

import numpy as np

from unlazy.estimators.preprocessing.frames import SECONDS_PER_DAY

_EPOCH = np.datetime64("1970-01-01T00:00:00", "s")


def elapsed_days(dates: np.ndarray) -> np.ndarray:
    """Days since 1970, NaN for missing dates."""
    days = (dates - _EPOCH) / np.timedelta64(1, "s") / SECONDS_PER_DAY
    return np.where(np.isnat(dates), np.nan, days)


def calendar(dates: np.ndarray) -> dict[str, np.ndarray]:
    """Year, month, weekday (Monday is 0) and hour of each date, NaN for missing dates."""
    months = dates.astype("datetime64[M]").astype(np.int64)
    days = dates.astype("datetime64[D]").astype(np.int64)
    hours = dates.astype("datetime64[h]").astype(np.int64)
    parts = {"year": 1970 + months // 12, "month": 1 + months % 12, "weekday": (days + 3) % 7, "hour": hours % 24}
    return {name: np.where(np.isnat(dates), np.nan, values) for name, values in parts.items()}


def varying_parts(dates: np.ndarray) -> list[str]:
    """Names of the parts of the calendar that take more than one value."""
    known = dates[~np.isnat(dates)]
    return [part for part, values in calendar(known).items() if len(np.unique(values)) > 1]


def date_columns(dates: np.ndarray, fitted: dict[str, Any]) -> np.ndarray:
    """Days since the first date and the fitted parts, one column each, NaN for missing dates."""
    parts = calendar(dates)
    return np.stack([elapsed_days(dates) - fitted["origin"], *(parts[name] for name in fitted["parts"])], 1)
