"""Reading tables: CSV with any common delimiter, Excel, Parquet, npz, and scikit-learn's toy datasets by name.

Files that are not tables raise UnlazyError with a one-line message.
"""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from unlazy.comparison.argument_parsing import resolve_source
from unlazy.comparison.data.dates import are_dates
from unlazy.comparison.data.file_bytes import find_encoding, read_bytes
from unlazy.comparison.data.number_formats import parse_numbers
from unlazy.comparison.data.table import EncodedTable, make_table
from unlazy.core.errors import UnlazyError, did_you_mean, join_names
from unlazy.estimators.preprocessing.number_texts import marks_missing

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
MISSING = ["?"]
"""Markers of missing values in addition to those of pandas (empty, NA, NaN, null, None, …).

Others, such as - and k.A., are markers only in columns of numbers or dates (`marks_missing`): elsewhere they may be a
class or a category.
"""
_MOST = 0.9
"""Share of the other cells that must be numbers or dates for such a marker."""
_SAMPLE = 200
_SAME_FIELDS = 0.9
"""Share of lines that must have the same number of fields for a delimiter to be detected."""


def read_table(
    source: str | Path, target: str | None = None, *, task: str | None = None, delimiter: str | None = None,
    drop: tuple[str, ...] = (), categorical: tuple[str, ...] = (), group: str | None = None, time: str | None = None,
) -> EncodedTable:  # fmt: skip
    """Read a file or toy dataset as a table; `drop` removes columns, `categorical` treats numbers as categories."""
    frame, own = read_frame(source, target, delimiter)
    target = target or own
    if target is None:
        raise UnlazyError(f"which column of {source} is the target? Set --target to one of {join_names(frame.columns)}")
    if target not in frame.columns:
        raise UnlazyError(f"{source} has no column {target!r}{did_you_mean(target, map(str, frame.columns))}")
    found = make_table(
        frame.drop(columns=target), frame[target], task=task, drop=drop, categorical=categorical, group=group, time=time
    )
    return replace(found, source=Path(source).name)


def read_frame(
    source: str | Path, target: str | None = None, delimiter: str | None = None, *, labeled: bool = True,
    texts: Sequence[str] = (),
) -> "tuple[pd.DataFrame, str | None]":  # fmt: skip
    """Read `source` and return the frame and the name of its target, if the source defines one (npz, toy datasets).

    With `labeled=False` the target may be absent and a single column is enough, as for rows to predict. The columns
    `texts` of a CSV file are not converted to numbers.
    """
    path = resolve_source(source)
    if path is None:
        return _toy(str(source))
    file = read_bytes(path)
    if file.format == "npz":
        return _npz(path, file.data, target, labeled)
    if file.format == "parquet" or path.suffix in (".parquet", ".pq"):
        frame = _parquet(path, file.data)
    elif file.format == "excel":
        frame = _without_markers(_excel(path, file.data))
    else:
        frame = _without_markers(_csv(path, file.data, delimiter, (target or "") if labeled else None, texts))
    if labeled and list(frame.columns) == [target]:
        raise UnlazyError(f"{path} has only the target {target!r}; add at least one input column")
    return frame, None


def _without_markers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with empty cells for markers of missing values in columns of numbers and dates."""
    for name in frame.columns[frame.dtypes.map(lambda dtype: dtype.kind == "O").to_numpy(bool)]:
        cells = frame[name]
        known = cells.dropna()
        marked = known.map(lambda cell: isinstance(cell, str) and marks_missing(cell)).astype(bool)
        if marked.any() and _are_values(known[~marked].map(str)):
            frame[name] = cells.drop(known.index[marked]).reindex(cells.index).infer_objects()
    return frame


def _are_values(texts: pd.Series) -> bool:
    """Whether nearly all texts are numbers or dates."""
    try:
        return bool(len(texts) and parse_numbers(texts)[0].notna().mean() >= _MOST) or are_dates(texts)
    except UnlazyError:  # numbers that can be read in two ways
        return True


def _csv(path: Path, data: bytes, delimiter: str | None, target: str | None, texts: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file; a single column is enough if it is the target, or if `target` is None (rows to predict)."""
    encoding = find_encoding(path, data)
    lines = _lines(data, encoding)
    if not lines:
        raise UnlazyError(f"{path} has only blank lines; it must have a header row and one row per sample")
    header = _header(path, lines, delimiter, target)
    try:
        frame = pd.read_csv(
            io.BytesIO(data), sep=header.delimiter, encoding=encoding, na_values=MISSING, low_memory=False,
            skipinitialspace=True, index_col=False, on_bad_lines="error",
            dtype=dict.fromkeys(texts, str), **_exact_numbers(pd.__version__),
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        why = " ".join(str(error).removeprefix("Error tokenizing data. C error:").split())
        raise UnlazyError(
            f"{path} cannot be read as a table ({why}); every row must have as many fields as the header"
        ) from error
    if len(frame) == 0:
        raise UnlazyError(f"{path} has a header but no rows; add one row per sample")
    return frame


class _Header:
    """Delimiter and column names of a CSV file."""

    def __init__(self, delimiter: str, names: list[str]):
        self.delimiter, self.names = delimiter, names


def _exact_numbers(version: str) -> dict[str, Any]:
    """Options for correctly rounded parsing of numbers, which is the default of pandas from version 3.1."""
    return {"float_precision": "round_trip"} if tuple(map(int, version.split(".")[:2])) < (3, 1) else {}


def _header(path: Path, lines: list[str], delimiter: str | None, target: str | None) -> _Header:
    """Detect the delimiter and column names; raise UnlazyError for too few columns, duplicate or missing names."""
    found = _sniff(lines)
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {delimiter!r}")
    single = target is None or lines[0].strip().strip('"') == target
    used = delimiter or found or ("," if single else None)
    names = [name.strip() for name in next(csv.reader([lines[0]], delimiter=used or ","))]
    if used is None or (len(names) < 2 and not single):
        other = f"; the delimiter seems to be {DELIMITERS[found]}: omit --delimiter" if found and delimiter else ""
        remedy = other or "; save it as CSV with a header row, or set --delimiter"
        raise UnlazyError(f"{path} is not a table of two or more columns separated by {_spelled(used)}{remedy}")
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice and not _is_number(twice[0]):
        raise UnlazyError(f"{path} has {Counter(names)[twice[0]]} columns named {twice[0]!r}; names must be unique")
    if all(map(_is_number, names)):
        raise UnlazyError(f"the first row of {path} holds numbers instead of column names; add a header row")
    return _Header(used, names)


def _sniff(lines: list[str]) -> str | None:
    """The delimiter that splits the header and nearly all lines into the same number of fields, at least two; None if
    there is none."""
    best, score = None, 1.0
    for delimiter in DELIMITERS:
        counts = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter))
        fields, often = counts.most_common(1)[0]
        first = len(next(csv.reader(lines[:1], delimiter=delimiter)))
        if fields == first > score and often >= _SAME_FIELDS * len(lines):
            best, score = delimiter, fields
    return best


def _lines(data: bytes, encoding: str) -> list[str]:
    """The first non-blank lines."""
    with io.TextIOWrapper(io.BytesIO(data), encoding=encoding) as file:
        lines = [line for line, _ in zip(file, range(_SAMPLE))]
    return [line.rstrip("\n") for line in lines if line.strip()]


def _parquet(path: Path, data: bytes) -> pd.DataFrame:
    """Read a Parquet file."""
    try:
        return pd.read_parquet(io.BytesIO(data))
    except ImportError as error:
        raise UnlazyError("Parquet needs pyarrow: pip install 'unlazy[parquet]', or pass a CSV") from error
    except Exception as error:
        raise UnlazyError(
            f"{path} is not a Parquet table ({_first_line(error)}); write it again, or pass a CSV"
        ) from error


def _excel(path: Path, data: bytes) -> pd.DataFrame:
    """Read the first sheet of an Excel file."""
    try:
        frame = pd.read_excel(io.BytesIO(data), na_values=MISSING)
    except ImportError as error:
        raise UnlazyError("Excel files need openpyxl: pip install 'unlazy[excel]', or save the sheet as CSV") from error
    except Exception as error:
        raise UnlazyError(f"{path} is not an Excel table ({_first_line(error)}); save the sheet as CSV") from error
    if 0 in frame.shape:
        raise UnlazyError(f"the first sheet of {path} has no rows under its header; move the table there")
    return frame


def _npz(path: Path, data: bytes, target: str | None, labeled: bool) -> "tuple[pd.DataFrame, str]":
    """Read arrays X and y (NAME/X and NAME/y if the target is NAME/y); other arrays of as many rows become columns."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            names = list(file.files)
            label = target or "y"
            prefix = label[: label.rindex("/") + 1] if "/" in label else ""
            inside = [n for n in names if n.startswith(prefix) and "/" not in n.removeprefix(prefix)]
            arrays = {n: file[n] for n in inside}
    except Exception as error:  # a corrupt zip file raises many kinds of exceptions
        raise UnlazyError(
            f"{path} is not an npz file of plain arrays; write it with numpy.savez(path, X=X, y=y)"
        ) from error
    if label not in arrays:
        if not labeled and prefix + "X" in arrays:
            return pd.DataFrame(_array_columns("X", arrays[prefix + "X"], arrays.get(prefix + "columns"))), label
        raise UnlazyError(f"{path} has no array {label!r}{did_you_mean(label, names)}")
    y = arrays.pop(label)
    y = y.ravel() if y.size == len(y) else y
    if y.ndim != 1:
        raise UnlazyError(f"the array {label!r} of {path} has shape {y.shape}; a target must be a single column")
    columns: dict[str, Any] = {}
    titles = arrays.pop(prefix + "columns", None)
    for name, array in arrays.items():
        if array.ndim in (1, 2) and len(array) == len(y) and array.dtype.kind in "biufU":
            columns |= _array_columns(name.removeprefix(prefix), array, titles)
    if not columns:
        raise UnlazyError(
            f"{path} has no array X with as many rows as {label!r} ({len(y):,}); save X with shape (rows, columns)"
        )
    return pd.DataFrame(columns | {label: y}), label


def _array_columns(name: str, array: np.ndarray, titles: np.ndarray | None) -> dict[str, np.ndarray]:
    """Columns of one array; integers in an array named X_cat are categories, not numbers."""
    if name.endswith("cat") and array.dtype.kind in "biu":
        array = np.where(array < 0, "", np.char.mod("%d", array)).astype(object)
        array[array == ""] = None
    if array.ndim == 1:
        return {name: array}
    named = titles is not None and len(titles) == array.shape[1] and name == "X"
    labels = (
        [str(t) for t in titles]
        if named and titles is not None
        else [f"{name.lower()}{j}" for j in range(array.shape[1])]
    )
    return dict(zip(labels, array.T))


def _toy(name: str) -> "tuple[pd.DataFrame, str]":
    """A toy dataset of scikit-learn and the name of its target."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = found.data.copy()
    named = name != "digits" and hasattr(found, "target_names")
    frame["target"] = found.target_names[found.target] if named else found.target
    return frame, "target"


def _spelled(delimiter: str | None) -> str:
    return "a comma" if delimiter is None else DELIMITERS.get(delimiter, repr(delimiter))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
