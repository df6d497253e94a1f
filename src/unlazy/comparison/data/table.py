"""Tables ready for training: typed inputs, target, task and notes; their splits and their files for workers."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from unlazy.comparison.data.columns import (
    Task,
    frequent_classes,
    parse_groups,
    parse_inputs,
    parse_target,
    parse_times,
    raise_problems,
)
from unlazy.comparison.data.group_notes import group_and_time_notes
from unlazy.core.arrays import Labels, Points
from unlazy.core.errors import UnlazyError, did_you_mean
from unlazy.core.files import atomic_write

T = TypeVar("T")
MIN_ROWS = 25
"""Fewest rows of a table."""
TEST_SHARE = 0.25
MAX_TEST_ROWS = 2000
TEST_WINDOW, WINDOW_STEP = 0.15, 0.025
"""For tables with time: share of the rows in a test window, and by which share each split shifts it back."""


@dataclass(frozen=True)
class EncodedTable:
    """Inputs (float64 for numbers; text or None for categories), target, task and notes on automatic corrections."""

    frame: pd.DataFrame
    y: np.ndarray
    task: Task
    target: str = "y"
    notes: tuple[str, ...] = ()
    groups: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """Integer label per row: rows with identical inputs, or of one group, share it and are never split apart."""
    time: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Time of each row, if later rows are to be predicted from earlier ones; else empty."""
    source: str = ""
    """Name of the file or toy dataset."""
    sampled_from: int = 0
    """Number of rows of the table that this one was sampled from; 0 if it is not a sample."""
    formats: dict[str, dict] = field(default_factory=dict)
    """How the numbers and dates of each column were written, as `keep_formats` takes it."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def total_rows(self) -> int:
        """Number of rows before sampling."""
        return self.sampled_from or len(self)

    @property
    def digest(self) -> str:
        """Hash of the contents, 16 hexadecimal digits."""
        found = hashlib.sha256(pd.util.hash_pandas_object(self.frame, index=False).to_numpy().tobytes())
        found.update("\0".join([*map(str, self.frame.columns), self.task, self.target]).encode())
        found.update(pd.util.hash_array(self.y).tobytes())
        found.update(self.groups.astype(np.int64).tobytes() + self.time.astype(np.float64).tobytes())
        return found.hexdigest()[:16]

    @property
    def classes(self) -> np.ndarray | None:
        """The sorted class labels; None for a regression."""
        return np.unique(self.y) if self.task == "classification" else None

    def rows(self, index: np.ndarray, *notes: str) -> "EncodedTable":
        """Return a table of the rows `index`, with additional notes."""
        part = self.frame.iloc[index].reset_index(drop=True)
        groups = np.unique(self.groups[index], return_inverse=True)[1]
        time = self.time[index] if len(self.time) else self.time
        said = (*self.notes, *notes)
        return replace(
            self, frame=part, y=self.y[index], notes=said, groups=groups, time=time, sampled_from=self.total_rows
        )  # fmt: skip

    def without(self, names: Sequence[str]) -> "EncodedTable":
        """Return the table without the inputs `names`."""
        return replace(self, frame=self.frame.drop(columns=list(names)))


def make_table(
    X: Points, y: Labels, *, task: str | None = None, drop: tuple[str, ...] = (), categorical: tuple[str, ...] = (),
    group: str | None = None, time: str | None = None,
) -> EncodedTable:  # fmt: skip
    """Validate inputs (a data frame or an array) and a target; automatic corrections are listed in the notes.

    Rows with the same value in the column `group` are never split apart. With a column `time`, test rows are later than
    all training rows. Neither column is used as an input.
    """
    if task not in (None, "regression", "classification"):
        raise ValueError(f"task must be 'regression' or 'classification', got {task!r}")
    frame = X if isinstance(X, pd.DataFrame) else _as_frame(X)
    labels = y if isinstance(y, pd.Series) else pd.Series(_as_vector(y), name="y")
    if len(frame) != len(labels):
        raise ValueError(f"X and y must have the same number of rows, got {len(frame):,} and {len(labels):,}")
    labels = labels.rename("y") if labels.name is None else labels
    frame, labels = frame.reset_index(drop=True), labels.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise UnlazyError(
            f"{int((frame.columns == twice[0]).sum())} columns are named {twice[0]!r}; column names must be unique"
        )
    asked = dict.fromkeys((*drop, *categorical, *(n for n in (group, time) if n is not None)))
    roles = {"be dropped": drop, "be an input": categorical, "be the group": (group,), "be the time": (time,)}
    raise_problems([_unknown_column(n, frame, str(labels.name), roles) for n in asked if n not in frame.columns])
    frame = frame.drop(columns=list(drop))
    notes: list[str] = []
    known = labels.notna().to_numpy()
    if not known.all():
        notes.append(f"dropped {int((~known).sum()):,} rows with a missing target {labels.name!r}")
        frame, labels = frame[known].reset_index(drop=True), labels[known].reset_index(drop=True)
    if len(labels) < MIN_ROWS:
        raise UnlazyError(f"{len(labels)} rows with a known target are too few; at least {MIN_ROWS} are needed")
    formats: dict[str, dict] = {}
    values, found, members, moments, inputs = _parse_columns(
        frame, labels, task, categorical, group, time, notes, formats
    )
    notes += group_and_time_notes(inputs, group is not None, time is not None)
    if members is not None:
        return EncodedTable(inputs, values, found, str(labels.name), tuple(notes), members, moments, formats=formats)
    groups = pd.util.hash_pandas_object(inputs, index=False).to_numpy()
    groups = np.unique(groups, return_inverse=True)[1]
    copies = len(groups) - int(groups.max()) - 1
    if copies:
        notes.append(f"{copies:,} rows repeat the inputs of another row; copies are never split between training and "
                     "test sets")  # fmt: skip
    return EncodedTable(inputs, values, found, str(labels.name), tuple(notes), groups, moments, formats=formats)


def _unknown_column(name: str, frame: pd.DataFrame, target: str, roles: dict[str, tuple]) -> str:
    """Why a column that was named is not among the inputs."""
    if name != target:
        return f"there is no column {name!r}{did_you_mean(name, frame.columns)}"
    return f"{name!r} is the target; it cannot {next(role for role, named in roles.items() if name in named)}"


def _parse_columns(
    frame: pd.DataFrame, labels: pd.Series, task: str | None, categorical: tuple[str, ...], group: str | None,
    time: str | None, notes: list[str], formats: dict[str, dict],
) -> tuple[np.ndarray, Task, np.ndarray | None, np.ndarray, pd.DataFrame]:  # fmt: skip
    """Parse the target, groups, times and inputs; raise UnlazyError with the problems of all of them."""
    problems: list[str] = []

    def attempt(parse: Callable[[], T], otherwise: T) -> T:
        try:
            return parse()
        except UnlazyError as error:
            problems.append(str(error))
            return otherwise

    def target() -> tuple[np.ndarray, Task, np.ndarray]:
        values, found = parse_target(labels, task, notes)
        return values, found, frequent_classes(values, found, str(labels.name), notes)

    unknown: tuple[np.ndarray, Task, np.ndarray] = (np.zeros(len(frame)), "regression", np.ones(len(frame), bool))
    values, found, kept = attempt(target, unknown)
    frame, values = frame[kept].reset_index(drop=True), values[kept]
    if len(values) < MIN_ROWS:
        problems.append(f"the {len(values)} remaining rows are too few; at least {MIN_ROWS} are needed")
    members = None if group is None else attempt(lambda: parse_groups(frame[group], notes), None)
    moments = np.zeros(0) if time is None else attempt(lambda: parse_times(frame[time], notes), np.zeros(0))
    inputs = frame.drop(columns=[name for name in {group, time} if name is not None])
    inputs = parse_inputs(inputs, categorical, notes, problems, formats)
    raise_problems(problems)
    return values, found, members, moments, inputs


def _as_frame(X: Points) -> pd.DataFrame:
    """Convert an array of shape (rows, columns) to a data frame with columns x0, x1, …."""
    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"X must be two-dimensional, got shape {array.shape}; reshape it to (rows, columns)")
    return pd.DataFrame(array, columns=[f"x{j}" for j in range(array.shape[1])])


def _as_vector(y: Labels) -> np.ndarray:
    """Convert targets of shape (n,) or (n, 1) to a vector."""
    array = np.asarray(y)
    array = array.ravel() if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ValueError(f"y must be a single column, got shape {array.shape}; compare one target at a time")
    return array


def held_out_count(table: EncodedTable) -> int:
    """Number of test rows of each split."""
    return min(MAX_TEST_ROWS, round((TEST_WINDOW if len(table.time) else TEST_SHARE) * len(table)))


def split_rows(table: EncodedTable, number: int, draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return training rows, ordered so that every prefix is a random sample, and test rows.

    Rows with identical inputs stay together, and the order is stratified by class: a group counts as the rarest class
    that it contains. If rows have times, the test rows are a time window that starts earlier from split to split, and
    the training rows are those before it.
    """
    rng = np.random.default_rng([number, len(table), *([draw] if draw else [])])
    if len(table.time):
        return _split_by_time(table, number, rng)
    first = np.unique(table.groups, return_index=True)[1]
    order = rng.permutation(len(first))
    if table.task == "classification":
        labels = _rarest_in_group(table)[order]
        place = np.empty(len(order))
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
        order = order[np.argsort(place, kind="stable")]
    rank = np.empty(len(first), int)
    rank[order] = np.arange(len(first))
    rows = np.argsort(rank[table.groups], kind="stable")
    held = held_out_count(table)
    while held < len(rows) - 1 and table.groups[rows[held]] == table.groups[rows[held - 1]]:
        held += 1  # do not split rows of one group
    return rows[held:], rows[:held]


def _rarest_in_group(table: EncodedTable) -> np.ndarray:
    """The rarest class in each group of rows, as a class number."""
    codes, counts = np.unique(table.y, return_inverse=True, return_counts=True)[1:]
    order = np.argsort(counts, kind="stable")  # from the rarest class
    place = np.argsort(order)
    found = np.full(int(table.groups.max()) + 1, len(counts))
    np.minimum.at(found, table.groups, place[codes])
    return order[found]


def _split_by_time(table: EncodedTable, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rows, n = np.argsort(table.time, kind="stable"), len(table)
    stop = n - round(WINDOW_STEP * (number % 10) * n)
    test = rows[stop - held_out_count(table) : stop]
    before = rows[: stop - held_out_count(table)]
    before = before[table.time[before] < table.time[test[0]]]  # no equal times on both sides
    before = before[~np.isin(table.groups[before], table.groups[test])]
    if len(before) < MIN_ROWS // 2:
        raise UnlazyError(
            f"only {len(before)} rows are earlier than the test rows; the table needs more distinct times, or omit "
            "--time"
        )
    return rng.permutation(before), test


def save_table(table: EncodedTable, folder: Path) -> str:
    """Write the table atomically as table-DIGEST.npz and return the digest."""
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
        with atomic_write(path) as aside:
            np.savez_compressed(aside, words=np.array(json.dumps(words)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise UnlazyError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    return digest


@lru_cache(maxsize=2)
def load_table(folder: str, digest: str) -> EncodedTable:
    """Load a table written by `save_table`."""
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
            f"this worker cannot read {path}; the store must be a folder shared by all workers"
        ) from error
    return EncodedTable(pd.DataFrame(columns), y, words["task"], words["target"], tuple(words["notes"]), groups, time)
