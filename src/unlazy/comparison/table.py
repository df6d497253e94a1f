"""A table ready to be learnt from: inputs as numbers or categories, a target, a task, and notes on all that was "
"done."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unlazy.comparison.kinds import as_category, as_number, kind_of
from unlazy.comparison.reading import read_frame
from unlazy.core.errors import UnlazyError, nearest

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["regression", "classification"]
FEWEST = 40
"""Rows without which nothing can be held out and compared."""
RAREST = 8
"""Rows of a class without which it can be neither learnt nor tested."""
MOST_CLASSES = 100
FEW_VALUES = 20
"""Whole-number targets of at most so many values are taken for classes."""


@dataclass(frozen=True)
class Table:
    """Inputs (a column numeric: float64; a category: text or None), the target, and what was noticed on the way."""

    frame: "pd.DataFrame"
    y: np.ndarray
    task: Task
    target: str = "y"
    notes: tuple[str, ...] = ()
    groups: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """Rows of equal inputs share a number: they go to the same side of every split."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def digest(self) -> str:
        """Sixteen digits that another table would not have."""
        import pandas as pd

        found = hashlib.sha256(pd.util.hash_pandas_object(self.frame, index=False).to_numpy().tobytes())
        found.update("\0".join([*map(str, self.frame.columns), self.task, self.target]).encode())
        found.update(pd.util.hash_array(self.y).tobytes())
        return found.hexdigest()[:16]

    def rows(self, index: np.ndarray, *notes: str) -> "Table":
        """Some of the rows."""
        part = self.frame.iloc[index].reset_index(drop=True)
        groups = np.unique(self.groups[index], return_inverse=True)[1]
        return Table(part, self.y[index], self.task, self.target, (*self.notes, *notes), groups)


def read_table(
    source: str | Path, target: str | None = None, *, task: str | None = None, delimiter: str | None = None,
    drop: tuple[str, ...] = (), categorical: tuple[str, ...] = (),
) -> Table:  # fmt: skip
    """The table of a file or a toy set; `drop` leaves columns out, `categorical` takes numbers for names."""
    frame, own = read_frame(source, target, delimiter)
    target = target or own
    if target is None:
        raise UnlazyError(
            f"which column of {source} is to be predicted? Name it with --target; it has {_list(frame.columns)}"
        )
    if target not in frame.columns:
        raise UnlazyError(f"{source} has no column {target!r} to predict{nearest(target, map(str, frame.columns))}")
    return make_table(frame.drop(columns=target), frame[target], task=task, drop=drop, categorical=categorical)


def make_table(
    X: Any, y: Any, *, task: str | None = None, drop: tuple[str, ...] = (), categorical: tuple[str, ...] = ()
) -> Table:
    """A table of inputs (a frame, or an array of numbers) and a target, checked; what is mended is in its notes."""
    import pandas as pd

    if task not in (None, "regression", "classification"):
        raise ValueError(f"task must be 'regression' or 'classification', got {task!r}")
    frame = X if isinstance(X, pd.DataFrame) else _framed(X)
    labels = y if isinstance(y, pd.Series) else pd.Series(_one_axis(y), name="y")
    if len(frame) != len(labels):
        raise ValueError(f"X has {len(frame)} rows and y has {len(labels)}; they must be the same rows")
    frame, labels = frame.reset_index(drop=True), labels.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise UnlazyError(
            f"{int((frame.columns == twice[0]).sum())} columns are called {twice[0]!r}; give each its own name"
        )
    for name in (*drop, *categorical):
        if name not in frame.columns:
            raise UnlazyError(f"there is no column {name!r}{nearest(name, frame.columns)}")
    frame = frame.drop(columns=list(drop))
    notes: list[str] = []
    known = labels.notna().to_numpy()
    if not known.all():
        notes.append(f"{int((~known).sum())} rows without a value of the target {labels.name!r} were left out")
        frame, labels = frame[known].reset_index(drop=True), labels[known].reset_index(drop=True)
    if len(labels) < FEWEST:
        raise UnlazyError(
            f"{len(labels)} rows with a known target are too few to hold some out and compare; bring {FEWEST} or more"
        )
    values, found = _target(labels, task, notes)
    frame, values = _without_rare(frame, values, found, str(labels.name), notes)
    if len(values) < FEWEST:
        raise UnlazyError(f"{len(values)} rows are left, too few to compare; bring {FEWEST} or more")
    inputs = _inputs(frame, categorical, notes)
    groups = pd.util.hash_pandas_object(inputs, index=False).to_numpy()
    groups = np.unique(groups, return_inverse=True)[1]
    copies = len(groups) - int(groups.max()) - 1
    if copies:
        notes.append(f"{copies} rows repeat the inputs of another row; copies stay on the same side of every split")
    return Table(inputs, values, found, str(labels.name), tuple(notes), groups)


def _target(labels: "pd.Series", asked: str | None, notes: list[str]) -> tuple[np.ndarray, Task]:
    """Values of the target and the task: text and few whole numbers are classes, other numbers a regression."""
    name = str(labels.name)
    kind = kind_of(labels, asked == "classification", "take it for classes with --task classification")
    if kind == "date":
        raise UnlazyError(f"the target {name!r} holds dates; turn it into a number, such as days since the first one")
    if kind == "numeric" and asked != "classification":
        number = as_number(labels)
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


def _without_rare(
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


def _inputs(frame: "pd.DataFrame", categorical: tuple[str, ...], notes: list[str]) -> "pd.DataFrame":
    """Every column as float64 or as text, empty and constant ones left out."""
    import pandas as pd

    columns, idle, holes = {}, [], []
    for name in frame.columns:
        series = frame[name]
        if series.isna().all() or series.nunique(dropna=False) < 2:
            idle.append(name)
            continue
        kind = "category" if name in categorical else kind_of(series)
        if kind == "date":
            raise UnlazyError(
                f"column {name!r} holds dates such as {series.dropna().iloc[0]!s}; replace it by numbers (days since "
                f"the first, month, weekday), or leave it out with --drop {name}"
            )
        columns[name] = as_number(series) if kind == "numeric" else as_category(series)
        if kind == "numeric" and np.isinf(columns[name]).any():
            raise UnlazyError(f"column {name!r} has infinite values; replace them, or leave it out with --drop {name}")
        if kind == "category":
            _check_categories(name, columns[name])
        if series.isna().any():
            holes.append(f"{name} ({int(series.isna().sum())})")
    if idle:
        notes.append(f"columns that never vary were left out: {_list(idle)}")
    if not columns:
        raise UnlazyError("no input column varies; bring at least one that does")
    if holes:
        notes.append(f"missing values are filled in and marked by a column of their own: {_list(holes)}")
    return pd.DataFrame(columns)


def _check_categories(name: str, values: np.ndarray) -> None:
    count = len({v for v in values if v is not None})
    if (count > 50 and count > len(values) / 3) or count > 5000:
        raise UnlazyError(
            f"column {name!r} has {count} categories in {len(values)} rows, so it names rows rather than describing "
            f"them; leave it out with --drop {name}, or group its values"
        )


def _framed(X: Any) -> "pd.DataFrame":
    import pandas as pd

    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"X must be a table of rows and columns, got shape {array.shape}; reshape it to (rows, columns)"
        )
    return pd.DataFrame(array, columns=[f"x{j}" for j in range(array.shape[1])])


def _one_axis(y: Any) -> np.ndarray:
    array = np.asarray(y)
    array = array.ravel() if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ValueError(f"y must be one column of targets, got shape {array.shape}; compare one target at a time")
    return array


def _list(names: Any, most: int = 12) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
