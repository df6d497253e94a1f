"""A table ready to be learned from: inputs as numbers or categories, a target, a task, and notes on all that was done;
how its rows are split, and how it travels to workers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison.data.columns import Task, inputs_of, members_of, moments_of, target_of, without_rare
from unlazy.comparison.data.groups import guesses
from unlazy.core.errors import UnlazyError, nearest
from unlazy.core.files import written_whole

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 25
"""Rows without which nothing can be held out and compared."""
TEST_SHARE = 0.25
MOST_TESTS = 2000
WINDOW, WINDOW_STEP = 0.15, 0.025
"""Shares of the rows, in the order of time: those tested on, and by how much earlier the next split's begin."""


@dataclass(frozen=True)
class Table:
    """Inputs (a column numeric: float64; a category: text or None), the target, and what was noticed on the way."""

    frame: "pd.DataFrame"
    y: np.ndarray
    task: Task
    target: str = "y"
    notes: tuple[str, ...] = ()
    groups: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """Rows of equal inputs, or of one group, share a number: they go to the same side of every split."""
    time: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """When every row was; empty where order says nothing. Later rows are then predicted from earlier ones."""
    source: str = ""
    """The file or toy set it was read from."""
    drawn_from: int = 0
    """Rows of the table that these were drawn from; 0 where they are all."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def whole(self) -> int:
        """Rows that the user has, drawn or not."""
        return self.drawn_from or len(self)

    @property
    def digest(self) -> str:
        """Sixteen digits that another table would not have."""
        import pandas as pd

        found = hashlib.sha256(pd.util.hash_pandas_object(self.frame, index=False).to_numpy().tobytes())
        found.update("\0".join([*map(str, self.frame.columns), self.task, self.target]).encode())
        found.update(pd.util.hash_array(self.y).tobytes())
        found.update(self.groups.astype(np.int64).tobytes() + self.time.astype(np.float64).tobytes())
        return found.hexdigest()[:16]

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in order; None for a regression."""
        return np.unique(self.y) if self.task == "classification" else None

    def rows(self, index: np.ndarray, *notes: str) -> "Table":
        """Some of the rows."""
        part = self.frame.iloc[index].reset_index(drop=True)
        groups = np.unique(self.groups[index], return_inverse=True)[1]
        time = self.time[index] if len(self.time) else self.time
        said = (*self.notes, *notes)
        return replace(
            self, frame=part, y=self.y[index], notes=said, groups=groups, time=time, drawn_from=self.whole
        )  # fmt: skip

    def without(self, names: Sequence[str]) -> "Table":
        """The same rows with fewer inputs."""
        return replace(self, frame=self.frame.drop(columns=list(names)))


def make_table(
    X: Any, y: Any, *, task: str | None = None, drop: tuple[str, ...] = (), categorical: tuple[str, ...] = (),
    group: str | None = None, time: str | None = None,
) -> Table:  # fmt: skip
    """A table of inputs (a frame, or an array of numbers) and a target, checked; what is mended is in its notes.

    Rows with one value of the column `group` stay on the same side of every split; rows are tested on what the column
    `time` says is later than all they are trained on. Neither column is an input."""
    import pandas as pd

    if task not in (None, "regression", "classification"):
        raise ValueError(f"task must be 'regression' or 'classification', got {task!r}")
    frame = X if isinstance(X, pd.DataFrame) else _framed(X)
    labels = y if isinstance(y, pd.Series) else pd.Series(_one_axis(y), name="y")
    if len(frame) != len(labels):
        raise ValueError(f"X has {len(frame)} rows and y has {len(labels)}; they must be the same rows")
    labels = labels.rename("y") if labels.name is None else labels
    frame, labels = frame.reset_index(drop=True), labels.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise UnlazyError(
            f"{int((frame.columns == twice[0]).sum())} columns are called {twice[0]!r}; give each its own name"
        )
    for name in (*drop, *categorical, *(n for n in (group, time) if n is not None)):
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
    values, found = target_of(labels, task, notes)
    frame, values = without_rare(frame, values, found, str(labels.name), notes)
    if len(values) < FEWEST:
        raise UnlazyError(f"{len(values)} rows are left, too few to compare; bring {FEWEST} or more")
    members = None if group is None else members_of(frame[group], notes)
    moments = np.zeros(0) if time is None else moments_of(frame[time], notes)
    frame = frame.drop(columns=[name for name in {group, time} if name is not None])
    inputs = inputs_of(frame, categorical, notes)
    notes += guesses(inputs, group is not None, time is not None)
    if members is not None:
        return Table(inputs, values, found, str(labels.name), tuple(notes), members, moments)
    groups = pd.util.hash_pandas_object(inputs, index=False).to_numpy()
    groups = np.unique(groups, return_inverse=True)[1]
    copies = len(groups) - int(groups.max()) - 1
    if copies:
        notes.append(f"{copies} rows repeat the inputs of another row; copies stay on the same side of every split")
    return Table(inputs, values, found, str(labels.name), tuple(notes), groups, moments)


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


def held_out_rows(table: Table) -> int:
    """How many rows each split holds out."""
    return min(MOST_TESTS, round((WINDOW if len(table.time) else TEST_SHARE) * len(table)))


def split(table: Table, number: int, draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Training rows in an order whose every beginning is a sample, and test rows.

    Rows of equal inputs stay together; classes are spread evenly over the order. Where rows have a time, test rows are
    a window of it that begins earlier from split to split, and training rows are those before.
    """
    rng = np.random.default_rng([number, len(table), *([draw] if draw else [])])
    if len(table.time):
        return _earlier_and_later(table, number, rng)
    first = np.unique(table.groups, return_index=True)[1]
    order = rng.permutation(len(first))
    if table.task == "classification":
        labels = table.y[first][order]
        place = np.empty(len(order))
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
        order = order[np.argsort(place, kind="stable")]
    rank = np.empty(len(first), int)
    rank[order] = np.arange(len(first))
    rows = np.argsort(rank[table.groups], kind="stable")
    held = held_out_rows(table)
    while held < len(rows) - 1 and table.groups[rows[held]] == table.groups[rows[held - 1]]:
        held += 1  # not through the middle of equal rows
    return rows[held:], rows[:held]


def _earlier_and_later(table: Table, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rows, n = np.argsort(table.time, kind="stable"), len(table)
    stop = n - round(WINDOW_STEP * (number % 10) * n)
    test = rows[stop - held_out_rows(table) : stop]
    before = rows[: stop - held_out_rows(table)]
    before = before[table.time[before] < table.time[test[0]]]  # not the same moment on both sides
    before = before[~np.isin(table.groups[before], table.groups[test])]
    if len(before) < FEWEST // 2:
        raise UnlazyError(
            f"only {len(before)} rows are earlier than those to test on; bring more moments, or no --time"
        )
    return rng.permutation(before), test


def save_table(table: Table, folder: Path) -> str:
    """Write the table as plain arrays under its digest, all or nothing; returns the digest."""
    digest = table.digest
    path = folder / f"table-{digest}.npz"
    if path.exists():
        return digest
    arrays: dict[str, np.ndarray] = {"y": table.y, "groups": table.groups, "time": table.time}
    for j, name in enumerate(table.frame.columns):
        values = table.frame[name].to_numpy()
        if values.dtype.kind == "O":
            gone = table.frame[name].isna().to_numpy()
            arrays[f"missing{j}"] = gone
            values = np.where(gone, "", values).astype(np.str_)
        arrays[f"column{j}"] = values
    words = {"columns": list(table.frame.columns), "task": table.task, "target": table.target, "notes": table.notes}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as aside:
            np.savez_compressed(aside, words=np.array(json.dumps(words)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise UnlazyError(f"cannot write to {folder}: {error.strerror or error}; choose another --store") from error
    return digest


@lru_cache(maxsize=2)
def load_table(folder: str, digest: str) -> Table:
    """The table that `save_table` wrote."""
    import pandas as pd

    path = Path(folder) / f"table-{digest}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            words = json.loads(str(file["words"]))
            columns: dict[str, np.ndarray] = {}
            for j, name in enumerate(words["columns"]):
                values = file[f"column{j}"]
                if values.dtype.kind == "U":
                    values = values.astype(object)
                    values[file[f"missing{j}"]] = None
                columns[name] = values
            y, groups, time = file["y"], file["groups"], file["time"]
    except OSError as error:
        raise UnlazyError(
            f"this worker cannot read {path}; the store must be a folder that all workers share"
        ) from error
    return Table(pd.DataFrame(columns), y, words["task"], words["target"], tuple(words["notes"]), groups, time)
