"""Column types (numbers, categories, dates) and the conversion of targets and inputs.

A column that mixes text and numbers raises UnlazyError. Automatic corrections are reported in `notes`.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from unlazy.comparison.data.dates import are_dates, as_dates, day_first
from unlazy.comparison.data.number_formats import parse_numbers
from unlazy.core.errors import UnlazyError, join_names
from unlazy.estimators.preprocessing.number_texts import NumberFormat
from unlazy.estimators.preprocessing.table_encoder import category_text

Kind = Literal["numeric", "category", "date"]
Task = Literal["regression", "classification"]
MIN_CLASS_ROWS = 8
"""Classes with fewer rows are dropped: they can be neither learned nor tested."""
MAX_CLASSES = 100
MIN_GROUPS = 8
"""Fewest groups for which splits by group are meaningful."""
MAX_NAMED_LEVELS = 12
"""Text with at most this many distinct values is a category if some are no numbers and none is a plain one."""
_DIGITS = r"\s*[-+]?[\d.,]+\s*"
MAX_INTEGER_CLASSES = 20
"""Integer targets with at most this many distinct values are treated as classes."""


def column_kind(series: pd.Series, allow_mixed: bool = False, remedy: str = "") -> Kind:
    """Infer the type of a column from its values; raise UnlazyError if it mixes text and numbers."""
    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_numeric_dtype(series):
        if pd.api.types.is_complex_dtype(series):
            raise UnlazyError(
                f"column {str(series.name)!r} holds complex numbers; pass the real and imaginary parts as two columns"
            )
        return "numeric"
    if pd.api.types.is_datetime64_any_dtype(series) or pd.api.types.is_timedelta64_dtype(series):
        return "date"
    values = series.dropna()
    if isinstance(series.dtype, pd.CategoricalDtype):
        return "category"
    texts = values.map(str)
    number = parse_numbers(texts)[0].notna()
    if number.all():
        return "numeric"
    if number.any() and number.mean() < 0.5 and _identifies_rows(texts.to_numpy()):
        return "category"  # hexadecimal digits, some of which look like numbers
    if number.any() and texts.nunique() <= MAX_NAMED_LEVELS and not texts[number].str.fullmatch(_DIGITS).any():
        return "category"  # a few names with digits, such as "1 bed", "2 beds" and "studio"
    if number.any() and not allow_mixed:
        words = ", ".join(repr(w) for w in texts[~number].unique()[:3])
        name = str(series.name)
        raise UnlazyError(
            f"column {name!r} mixes numbers with text ({int((~number).sum()):,} of {len(values):,} values, such as "
            f"{words}); leave those cells empty if they mean missing, or "
            f"{remedy or f'treat the column as categories with --categorical {name}'}"
        )
    if are_dates(texts):
        return "date"
    return "category"


def as_number(series: pd.Series) -> np.ndarray:
    """Convert a column to float64, with NaN for missing values."""
    return _read_numbers(series)[0]


def _read_numbers(series: pd.Series) -> tuple[np.ndarray, NumberFormat]:
    """Return a column as float64, with NaN for missing values, and how its numbers are written."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan), NumberFormat()
    numbers, format = parse_numbers(series.dropna().map(str))
    return numbers.astype(np.float64).reindex(series.index).to_numpy(dtype=np.float64), format


def as_category(series: pd.Series) -> np.ndarray:
    """Convert a column to text, with None for missing values; 3.0 and 3 are the same category."""
    missing = series.isna().to_numpy()
    return np.array([None if gone else category_text(v) for v, gone in zip(series, missing)], dtype=object)


def parse_target(labels: pd.Series, asked: str | None, notes: list[str]) -> tuple[np.ndarray, Task]:
    """Return target values and task: text and few distinct integers are classes, other numbers a regression."""
    name = str(labels.name)
    kind = column_kind(labels, asked == "classification", "treat it as classes with --task classification")
    if kind == "date":
        raise UnlazyError(f"the target {name!r} holds dates; convert it to a number, such as days since the first date")
    if kind == "numeric" and asked != "classification":
        number, format = _read_numbers(labels)
        if format.commas == "thousands":
            notes.append(f"commas in the target {name!r} are read as thousands separators ({format.example})")
        if format.unit:
            notes.append(f"the unit of the target {name!r} is {format.unit}")
        if not np.isfinite(number).all():
            raise UnlazyError(f"the target {name!r} has infinite values; replace them or drop those rows")
        count = len(np.unique(number))
        whole = bool(np.all(number == np.round(number)))
        if asked is None and whole and count <= MAX_INTEGER_CLASSES and len(number) >= 5 * count:
            asked = "classification"
            notes.append(
                f"the target {name!r} has {count} distinct integer values, which are treated as classes (use --task "
                "regression to treat them as numbers)"
            )
        else:
            asked = "regression"
    elif kind != "numeric" and asked == "regression":
        raise UnlazyError(
            f"the target {name!r} holds text such as {labels.iloc[0]!r}, which a regression cannot predict; use "
            "--task classification"
        )
    if asked == "regression":
        if np.ptp(number) == 0:
            raise UnlazyError(
                f"the target {name!r} is {number[0]:g} in every row, so there is nothing to predict; choose another "
                "target"
            )
        return number, "regression"
    return _classes(labels, kind, name), "classification"


def _classes(labels: pd.Series, kind: str, name: str) -> np.ndarray:
    """Convert the target to class labels: integers if all values are integers, else text."""
    if kind == "numeric":
        number = as_number(labels)
        whole = bool(np.all(number == np.round(number)))
        values = number.astype(np.int64) if whole else np.array([f"{v:g}" for v in number])
    else:
        values = np.array([str(v) for v in as_category(labels)])
    count = len(np.unique(values))
    if count == 1:
        raise UnlazyError(
            f"the target {name!r} is {values[:1].tolist()[0]!r} in every row, so there is nothing to predict; choose "
            "another target"
        )
    if count > MAX_CLASSES:
        raise UnlazyError(
            f"the target {name!r} has {count:,} classes in {len(values):,} rows; merge them into at most "
            f"{MAX_CLASSES}, or use --task regression if they are numbers"
        )
    return values


def frequent_classes(values: np.ndarray, task: str, name: str, notes: list[str]) -> np.ndarray:
    """Mask of the rows whose class has MIN_CLASS_ROWS rows or more; of all rows for a regression."""
    if task == "regression":
        return np.ones(len(values), bool)
    classes, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    keep = counts[codes] >= MIN_CLASS_ROWS
    if keep.all():
        return keep
    if len(np.unique(values[keep])) < 2:
        raise UnlazyError(
            f"fewer than two classes of {name!r} have {MIN_CLASS_ROWS} rows or more; add rows to each class, or use "
            "--task regression"
        )
    rare = ", ".join(repr(c.item()) for c in classes[counts < MIN_CLASS_ROWS][:5])
    dropped = int((~keep).sum())
    notes.append(f"dropped {dropped:,} rows of classes with fewer than {MIN_CLASS_ROWS} rows ({rare})")
    return keep


def parse_inputs(
    frame: pd.DataFrame, categorical: tuple[str, ...], notes: list[str], problems: list[str],
    formats: dict[str, dict],
) -> pd.DataFrame:  # fmt: skip
    """Convert each column to float64, text or dates; empty and constant columns and identifiers are dropped.

    Columns that cannot be converted are left out and added to `problems`; how the numbers and dates of the others are
    written is added to `formats`.
    """
    columns, idle = {}, []
    found: dict[str, list[str]] = {"missing": [], "commas": [], "units": [], "identifiers": []}
    for name in frame.columns:
        series = frame[name]
        if series.isna().all() or series.nunique(dropna=False) < 2:
            idle.append(name)
            continue
        try:
            values = _parse_input(series, name in categorical, found, formats)
        except UnlazyError as error:
            problems.append(str(error))
            continue
        if values is not None:
            columns[name] = values
    if found["commas"]:
        notes.append(f"commas are read as thousands separators in {join_names(found['commas'])}")
    if found["units"]:
        notes.append(f"units are removed from {join_names(found['units'])}")
    if found["identifiers"]:
        notes.append(f"left out {join_names(found['identifiers'])}: free text or an identifier, with a different value "
                     "in nearly every row (--categorical NAME keeps a column)")  # fmt: skip
    if idle:
        notes.append(f"dropped constant columns: {join_names(idle)}")
    if not columns and not problems:
        problems.append(
            "no input column is left: all are constant, free text or identifiers; add at least one that varies"
            if found["identifiers"]
            else "all input columns are constant; add at least one that varies"
        )
    if found["missing"]:
        notes.append(f"missing values are imputed and flagged by an indicator column: {join_names(found['missing'])}")
    return pd.DataFrame(columns)


def _parse_input(
    series: pd.Series, categorical: bool, found: dict[str, list[str]], formats: dict[str, dict]
) -> np.ndarray | None:
    """Convert one column; None for an identifier. What was corrected is added to `found`, and how numbers and dates are
    written to `formats`."""
    name = str(series.name)
    kind = "category" if categorical else column_kind(series)
    if kind == "date":
        if series.isna().any():
            found["missing"].append(f"{name} ({int(series.isna().sum()):,})")
        if not pd.api.types.is_timedelta64_dtype(series):
            formats[name] = {"day_first": day_first(series)}
        return parse_dates(series)
    if kind == "category":
        values = as_category(series)
    else:
        values, format = _read_numbers(series)
        formats[name] = {"unit": format.unit, "commas": format.commas, "points": format.points}
        if format.commas == "thousands":
            found["commas"].append(f"{name} ({format.example})")
        if format.unit:
            found["units"].append(f"{name} ({format.unit})")
        if np.isinf(values).any():
            raise UnlazyError(f"column {name!r} has infinite values; replace them, or remove it with --drop {name}")
    if kind == "category" and not categorical and _identifies_rows(values):
        found["identifiers"].append(f"{name} ({len(set(values)):,} distinct texts)")
        return None
    if series.isna().any():
        found["missing"].append(f"{name} ({int(series.isna().sum()):,})")
    return values


def parse_dates(series: pd.Series) -> np.ndarray:
    """Convert a column of dates to datetime64 without a time zone, and durations to days."""
    if pd.api.types.is_timedelta64_dtype(series):
        return (series.dt.total_seconds() / 86_400).to_numpy(np.float64)
    dates = as_dates(series)
    if dates.dt.tz is not None:
        dates = dates.dt.tz_localize(None)
    lost = int(dates.isna().sum() - series.isna().sum())
    if lost:
        bad = series[dates.isna() & series.notna()].iloc[0]
        raise UnlazyError(
            f"column {series.name!r} has {lost:,} values that are no dates, such as {str(bad)!r}; correct them, or "
            "leave those cells empty"
        )
    return dates.to_numpy(dtype="datetime64[ns]")


def raise_problems(problems: Sequence[str]) -> None:
    """Raise UnlazyError with all problems of a table, if there are any."""
    if len(problems) == 1:
        raise UnlazyError(problems[0])
    if problems:
        listed = "".join(f"\n  {i}. {problem}" for i, problem in enumerate(problems, 1))
        raise UnlazyError(f"the table has {len(problems)} problems:{listed}")


def parse_groups(series: pd.Series, notes: list[str]) -> np.ndarray:
    """Return the integer group label of each row."""
    names = as_category(series)
    found = np.unique(["" if name is None else name for name in names], return_inverse=True)[1]
    count = int(found.max()) + 1
    if count < MIN_GROUPS:
        raise UnlazyError(
            f"column {series.name!r} has {count} groups, but splits by group need {MIN_GROUPS} or more; omit --group"
        )
    notes.append(f"each of the {count:,} groups in {series.name!r} is in either the training or the test set, never "
                 f"both; {series.name!r} is not used as an input")  # fmt: skip
    return found


def parse_times(series: pd.Series, notes: list[str]) -> np.ndarray:
    """Convert a column of numbers or dates to times in float64."""
    kind = column_kind(series, allow_mixed=True)
    if kind == "date":
        found = as_dates(series)
        values = (found - found.min()).dt.total_seconds().to_numpy()
    elif kind == "numeric":
        values = as_number(series)
    else:
        raise UnlazyError(
            f"column {series.name!r} holds text such as {series.iloc[0]!r}, not times; choose another column for --time"
        )
    if not np.isfinite(values).all():
        raise UnlazyError(f"column {series.name!r} has missing times; fill them in, or drop those rows")
    notes.append(f"test rows are later than training rows by {series.name!r}, which is not used as an input")
    return values.astype(np.float64)


def _identifies_rows(values: np.ndarray) -> bool:
    """Whether a column has so many categories that it identifies rows."""
    count = len({v for v in values if v is not None})
    return (count > 50 and count > len(values) / 3) or count > 5000
