"""What a column holds: numbers, categories or dates; and what a target and inputs make of it.

A column of both text and numbers is refused, naming both. What is mended on the way is said in `notes`.
"""

import re
import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np

from unlazy.core.errors import UnlazyError, listed
from unlazy.estimators.preprocessing.table_encoder import category_text

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "category", "date"]
Task = Literal["regression", "classification"]
RAREST = 8
"""Rows of a class without which it can be neither learned nor tested."""
MOST_CLASSES = 100
FEWEST_GROUPS = 8
"""Groups of rows without which splits by group say nothing."""
FEW_VALUES = 20
"""Whole-number targets of at most so many values are taken for classes."""
_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?\s*")
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*")
_BELOW_ONE = re.compile(r"\s*[-+]?0+,\d+\s*")


def kind_of(series: "pd.Series", allow_mixed: bool = False, remedy: str = "") -> Kind:
    """Numbers, categories or dates, by its values; a sentence where text and numbers are mixed."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_numeric_dtype(series):
        if pd.api.types.is_complex_dtype(series):
            raise UnlazyError(f"column {str(series.name)!r} holds complex numbers; give its parts as two columns")
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
            f"column {name!r} mixes numbers with text ({int((~number).sum())} of {len(values)} values, such as "
            f"{words}); "
            "leave those cells empty where they mean missing, or "
            f"{remedy or f'take it for categories with --categorical {name}'}"
        )
    if _dates(texts):
        return "date"
    return "category"


def as_number(series: "pd.Series") -> np.ndarray:
    """float64, NaN where missing."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = _numbers(series.dropna().map(str)).astype(np.float64)
    return numbers.reindex(series.index).to_numpy(dtype=np.float64)


def as_category(series: "pd.Series") -> np.ndarray:
    """Text, None where missing; 3.0 and 3 are the same category."""
    missing = series.isna().to_numpy()
    return np.array([None if gone else category_text(v) for v, gone in zip(series, missing)], dtype=object)


def target_of(labels: "pd.Series", asked: str | None, notes: list[str]) -> tuple[np.ndarray, Task]:
    """Values of the target and the task: text and few whole numbers are classes, other numbers a regression."""
    name = str(labels.name)
    kind = kind_of(labels, asked == "classification", "take it for classes with --task classification")
    if kind == "date":
        raise UnlazyError(f"the target {name!r} holds dates; turn it into a number, such as days since the first one")
    if kind == "numeric" and asked != "classification":
        number = as_number(labels)
        if example := thousands(labels):
            notes.append(f"commas of the target {name!r} are read as those between thousands: {example}")
        if not np.isfinite(number).all():
            raise UnlazyError(f"the target {name!r} has infinite values; replace or drop those rows")
        count = len(np.unique(number))
        whole = bool(np.all(number == np.round(number)))
        if asked is None and whole and count <= FEW_VALUES and len(number) >= 5 * count:
            asked = "classification"
            notes.append(
                f"the target {name!r} has {count} whole-number values, taken for classes; --task regression otherwise"
            )
        else:
            asked = "regression"
    elif kind != "numeric" and asked == "regression":
        raise UnlazyError(
            f"the target {name!r} holds text such as {labels.iloc[0]!r}, which no regression predicts; use --task "
            "classification"
        )
    if asked == "regression":
        if np.ptp(number) == 0:
            raise UnlazyError(
                f"the target {name!r} is {number[0]:g} in every row; there is nothing to predict: name another"
            )
        return number, "regression"
    return _classes(labels, kind, name), "classification"


def _classes(labels: "pd.Series", kind: str, name: str) -> np.ndarray:
    if kind == "numeric":
        number = as_number(labels)
        whole = bool(np.all(number == np.round(number)))
        values = number.astype(np.int64) if whole else np.array([f"{v:g}" for v in number])
    else:
        values = np.array([str(v) for v in as_category(labels)])
    count = len(np.unique(values))
    if count == 1:
        raise UnlazyError(
            f"the target {name!r} is {values[:1].tolist()[0]!r} in every row; there is nothing to predict: name another"
        )
    if count > MOST_CLASSES:
        raise UnlazyError(
            f"the target {name!r} has {count} classes in {len(values)} rows; group them into at most {MOST_CLASSES}, "
            "or use --task regression where they are numbers"
        )
    return values


def without_rare(
    frame: "pd.DataFrame", values: np.ndarray, task: str, name: str, notes: list[str]
) -> "tuple[pd.DataFrame, np.ndarray]":
    if task == "regression":
        return frame, values
    classes, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    keep = counts[codes] >= RAREST
    if keep.all():
        return frame, values
    if len(np.unique(values[keep])) < 2:
        raise UnlazyError(
            f"fewer than two classes of {name!r} have {RAREST} rows or more; bring more rows of each, or use --task "
            "regression"
        )
    rare = ", ".join(repr(c.item()) for c in classes[counts < RAREST][:5])
    notes.append(f"{int((~keep).sum())} rows of classes with fewer than {RAREST} rows ({rare}) were left out")
    return frame[keep].reset_index(drop=True), values[keep]


def inputs_of(frame: "pd.DataFrame", categorical: tuple[str, ...], notes: list[str]) -> "pd.DataFrame":
    """Every column as float64 or as text, empty and constant ones left out."""
    import pandas as pd

    columns, idle, holes, grouped = {}, [], [], []
    for name in frame.columns:
        series = frame[name]
        if series.isna().all() or series.nunique(dropna=False) < 2:
            idle.append(name)
            continue
        kind = "category" if name in categorical else kind_of(series)
        if kind == "date":
            raise UnlazyError(
                f"column {name!r} holds dates such as {series.dropna().iloc[0]!s}; replace it by numbers (days since "
                f"the first, month, weekday), leave it out with --drop {name}, or order rows by it with --time {name}"
            )
        columns[name] = as_number(series) if kind == "numeric" else as_category(series)
        if kind == "numeric" and (example := thousands(series)):
            grouped.append(f"{name} ({example})")
        if kind == "numeric" and np.isinf(columns[name]).any():
            raise UnlazyError(f"column {name!r} has infinite values; replace them, or leave it out with --drop {name}")
        if kind == "category":
            _check_categories(name, columns[name])
        if series.isna().any():
            holes.append(f"{name} ({int(series.isna().sum())})")
    if grouped:
        notes.append(f"commas are read as those between thousands: {listed(grouped)}")
    if idle:
        notes.append(f"columns that never vary were left out: {listed(idle)}")
    if not columns:
        raise UnlazyError("no input column varies; bring at least one that does")
    if holes:
        notes.append(f"missing values are filled in and marked by a column of their own: {listed(holes)}")
    return pd.DataFrame(columns)


def members_of(series: "pd.Series", notes: list[str]) -> np.ndarray:
    """The number of every row's group."""
    names = as_category(series)
    found = np.unique(["" if name is None else name for name in names], return_inverse=True)[1]
    count = int(found.max()) + 1
    if count < FEWEST_GROUPS:
        raise UnlazyError(
            f"column {series.name!r} has {count} groups, and splits by group need {FEWEST_GROUPS} or more; leave "
            "--group out"
        )
    notes.append(f"the {count} groups of {series.name!r} stay on the same side of every split, and are no input")
    return found


def moments_of(series: "pd.Series", notes: list[str]) -> np.ndarray:
    """Time as numbers, for a column of numbers or of dates."""
    import pandas as pd

    kind = kind_of(series, allow_mixed=True)
    if kind == "date":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pd.to_datetime(series, errors="coerce", format=None if series.dtype.kind == "M" else "mixed")
        values = (found - found.min()).dt.total_seconds().to_numpy()
    elif kind == "numeric":
        values = as_number(series)
    else:
        raise UnlazyError(f"column {series.name!r} holds text such as {series.iloc[0]!r}, no time; name another --time")
    if not np.isfinite(values).all():
        raise UnlazyError(f"column {series.name!r} has rows without a time; fill them in, or leave these rows out")
    notes.append(f"rows are tested on times of {series.name!r} later than those they are trained on; it is no input")
    return values.astype(np.float64)


def _check_categories(name: str, values: np.ndarray) -> None:
    count = len({v for v in values if v is not None})
    if (count > 50 and count > len(values) / 3) or count > 5000:
        raise UnlazyError(
            f"column {name!r} has {count} categories in {len(values)} rows, so it names rows rather than describing "
            f"them; leave it out with --drop {name}, or group its values"
        )


def _numbers(texts: "pd.Series") -> "pd.Series":
    """Numbers where a text is one, also with commas if all that are not plain numbers have them alike."""
    import pandas as pd

    plain = pd.to_numeric(texts, errors="coerce")
    commas = _commas(texts, plain)
    if commas is None:
        return plain
    return pd.to_numeric(texts.str.replace(",", "." if commas == "decimal" else "", regex=False), errors="coerce")


def _commas(texts: "pd.Series", plain: "pd.Series") -> Literal["decimal", "thousands"] | None:
    """What commas mean in a column: '2,5' has one for a point, '1,023,763' and '1,244' beside '961' between thousands.
    '1,244' alone may be either, and a factor of a thousand is not guessed."""
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
        f"column {str(texts.name)!r} has numbers such as {rest.iloc[0].strip()!r}: a thousand and more, or a decimal "
        "comma? Write them without commas, or with a decimal point"
    )


def thousands(series: "pd.Series") -> str | None:
    """One of its values with commas between thousands, where that is how its numbers are written."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_datetime64_any_dtype(series):
        return None
    texts = series.dropna().map(str)
    plain = pd.to_numeric(texts, errors="coerce")
    return str(texts[plain.isna()].iloc[0]).strip() if _commas(texts, plain) == "thousands" else None


def _dates(texts: "pd.Series") -> bool:
    import pandas as pd

    some = texts.iloc[:200]
    if not some.map(lambda t: bool(_DATE.fullmatch(t))).all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(pd.to_datetime(some, errors="coerce", format="mixed").notna().mean() > 0.9)
