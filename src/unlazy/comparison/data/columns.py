"""Column types (numbers, categories, dates) and the conversion of targets and inputs.

A column that mixes text and numbers raises UnlazyError. Automatic corrections are reported in `notes`.
"""

import re
import warnings
from typing import Literal

import numpy as np
import pandas as pd

from unlazy.core.errors import UnlazyError, join_names
from unlazy.estimators.preprocessing.table_encoder import category_text

Kind = Literal["numeric", "category", "date"]
Task = Literal["regression", "classification"]
MIN_CLASS_ROWS = 8
"""Classes with fewer rows are dropped: they can be neither learned nor tested."""
MAX_CLASSES = 100
MIN_GROUPS = 8
"""Fewest groups for which splits by group are meaningful."""
MAX_INTEGER_CLASSES = 20
"""Integer targets with at most this many distinct values are treated as classes."""
_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?\s*")
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*")
_BELOW_ONE = re.compile(r"\s*[-+]?0+,\d+\s*")


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
    number = _numbers(texts).notna()
    if number.all():
        return "numeric"
    if number.any() and not allow_mixed:
        words = ", ".join(repr(w) for w in texts[~number].unique()[:3])
        name = str(series.name)
        raise UnlazyError(
            f"column {name!r} mixes numbers with text ({int((~number).sum()):,} of {len(values):,} values, such as "
            f"{words}); leave those cells empty if they mean missing, or "
            f"{remedy or f'treat the column as categories with --categorical {name}'}"
        )
    if _dates(texts):
        return "date"
    return "category"


def as_number(series: pd.Series) -> np.ndarray:
    """Convert a column to float64, with NaN for missing values."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = _numbers(series.dropna().map(str)).astype(np.float64)
    return numbers.reindex(series.index).to_numpy(dtype=np.float64)


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
        number = as_number(labels)
        if example := thousands_example(labels):
            notes.append(f"commas in the target {name!r} are read as thousands separators ({example})")
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


def drop_rare_classes(
    frame: pd.DataFrame, values: np.ndarray, task: str, name: str, notes: list[str]
) -> "tuple[pd.DataFrame, np.ndarray]":
    """Drop the rows of classes with fewer than MIN_CLASS_ROWS rows."""
    if task == "regression":
        return frame, values
    classes, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    keep = counts[codes] >= MIN_CLASS_ROWS
    if keep.all():
        return frame, values
    if len(np.unique(values[keep])) < 2:
        raise UnlazyError(
            f"fewer than two classes of {name!r} have {MIN_CLASS_ROWS} rows or more; add rows to each class, or use "
            "--task regression"
        )
    rare = ", ".join(repr(c.item()) for c in classes[counts < MIN_CLASS_ROWS][:5])
    dropped = int((~keep).sum())
    notes.append(f"dropped {dropped:,} rows of classes with fewer than {MIN_CLASS_ROWS} rows ({rare})")
    return frame[keep].reset_index(drop=True), values[keep]


def parse_inputs(frame: pd.DataFrame, categorical: tuple[str, ...], notes: list[str]) -> pd.DataFrame:
    """Convert each column to float64 or text; empty and constant columns are dropped."""
    columns, idle, missing, grouped = {}, [], [], []
    for name in frame.columns:
        series = frame[name]
        if series.isna().all() or series.nunique(dropna=False) < 2:
            idle.append(name)
            continue
        kind = "category" if name in categorical else column_kind(series)
        if kind == "date":
            raise UnlazyError(
                f"column {name!r} holds dates such as {series.dropna().iloc[0]!s}; replace it with numbers (days since "
                f"the first date, month, weekday), remove it with --drop {name}, or order rows by it with --time {name}"
            )
        columns[name] = as_number(series) if kind == "numeric" else as_category(series)
        if kind == "numeric" and (example := thousands_example(series)):
            grouped.append(f"{name} ({example})")
        if kind == "numeric" and np.isinf(columns[name]).any():
            raise UnlazyError(f"column {name!r} has infinite values; replace them, or remove it with --drop {name}")
        if kind == "category":
            _check_categories(name, columns[name])
        if series.isna().any():
            missing.append(f"{name} ({int(series.isna().sum()):,})")
    if grouped:
        notes.append(f"commas are read as thousands separators in {join_names(grouped)}")
    if idle:
        notes.append(f"dropped constant columns: {join_names(idle)}")
    if not columns:
        raise UnlazyError("all input columns are constant; add at least one that varies")
    if missing:
        notes.append(f"missing values are imputed and flagged by an indicator column: {join_names(missing)}")
    return pd.DataFrame(columns)


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pd.to_datetime(series, errors="coerce", format=None if series.dtype.kind == "M" else "mixed")
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


def _check_categories(name: str, values: np.ndarray) -> None:
    """Raise UnlazyError if a column has so many categories that it identifies rows."""
    count = len({v for v in values if v is not None})
    if (count > 50 and count > len(values) / 3) or count > 5000:
        raise UnlazyError(
            f"column {name!r} has {count:,} categories in {len(values):,} rows, so it looks like an identifier; "
            f"remove it with --drop {name}, or merge its categories"
        )


def _numbers(texts: pd.Series) -> pd.Series:
    """Parse texts as numbers, NaN where impossible; commas are read if they have one consistent meaning."""
    plain = pd.to_numeric(texts, errors="coerce")
    commas = _commas(texts, plain)
    if commas is None:
        return plain
    return pd.to_numeric(texts.str.replace(",", "." if commas == "decimal" else "", regex=False), errors="coerce")


def _commas(texts: pd.Series, plain: pd.Series) -> Literal["decimal", "thousands"] | None:
    """Return the meaning of commas in a column.

    '2,5' has a decimal comma; '1,023,763', or '1,244' next to '961', has thousands separators. '1,244' alone is
    ambiguous and raises UnlazyError: a factor of 1,000 is never guessed.
    """
    rest, numbers = texts[plain.isna()], texts[plain.notna()]
    if not len(rest) or not rest.map(lambda t: bool(_COMMA.fullmatch(t) or _THOUSANDS.fullmatch(t))).all():
        return None
    points = bool(numbers.str.contains(".", regex=False).any() or rest.str.contains(".", regex=False).any())
    if (
        not rest.map(lambda t: bool(_THOUSANDS.fullmatch(t))).all()
        or rest.map(lambda t: bool(_BELOW_ONE.match(t))).any()
    ):
        return None if points or (rest.str.count(",") > 1).any() else "decimal"
    largest = plain.abs().max() if len(numbers) else 0.0
    if points or (rest.str.count(",") > 1).any() or 100 <= largest < 1000:
        return "thousands"
    raise UnlazyError(
        f"column {str(texts.name)!r} has numbers such as {rest.iloc[0].strip()!r}: is this a thousands separator or a "
        "decimal comma? Write them without commas, or with a decimal point"
    )


def thousands_example(series: pd.Series) -> str | None:
    """Return one value with thousands separators, or None if the column has none."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_datetime64_any_dtype(series):
        return None
    texts = series.dropna().map(str)
    plain = pd.to_numeric(texts, errors="coerce")
    return str(texts[plain.isna()].iloc[0]).strip() if _commas(texts, plain) == "thousands" else None


def _dates(texts: pd.Series) -> bool:
    """Whether the texts look like dates, judging by the first 200."""
    some = texts.iloc[:200]
    if not some.map(lambda t: bool(_DATE.fullmatch(t))).all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(pd.to_datetime(some, errors="coerce", format="mixed").notna().mean() > 0.9)
