"""Partial dependence: what a model predicts on average over rows when one input, or the coordinate along one learned
direction, is set to a value and all else stays as it is (Friedman 2001)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unlazy.comparison.data.table import Table
from unlazy.comparison.study.model import Final
from unlazy.measures.dependence import outputs

if TYPE_CHECKING:
    import pandas as pd

INPUTS, VALUES, ROWS = 3, 15, 80
"""Inputs that are looked at, values of each, and rows to average over."""
LEVELS, CLASSES = 6, 3
"""Categories of an input, and classes of a target, that are shown."""
WORK = 2e9
"""Predictions × fitted rows × columns that all of it may cost."""


class Partial(NamedTuple):
    """Values along one input or direction, and mean predictions there, (values, lines)."""

    name: str
    values: np.ndarray
    """Numbers, or the names of categories."""
    means: np.ndarray
    lines: tuple[str, ...]
    """What each column of the means is: the target, or the probability of these classes."""
    parts: tuple[tuple[str, float], ...] = ()
    """Of a direction: its largest components by encoded column."""


def partial(
    final: Final | None, table: Table, names: list[str], direction: np.ndarray | None
) -> tuple[Partial, ...]:  # fmt: skip
    """Of the first inputs by importance, and of the direction; none where no model was fitted."""
    if final is None or not names:
        return ()
    encoder, model = final.model.named_steps["columns"], final.model.named_steps["model"]
    chosen, lines = _lines(table)
    f = outputs(model)

    def predict(X: np.ndarray) -> np.ndarray:
        return f(X)[:, chosen]

    width, asked = len(encoder.names_), VALUES * (INPUTS + 1)
    count = int(np.clip(WORK / (asked * final.rows * width), 10, ROWS))
    X = encoder.transform(table.frame)
    some = X[np.sort(np.random.default_rng(0).permutation(len(table))[:count])]
    found = [_of_input(name, table.frame, encoder, some, predict, lines) for name in names[:INPUTS]]
    if direction is not None and len(direction) == width and np.any(direction):
        found.append(_of_direction(direction, encoder.names_, X, some, predict, lines))
    return tuple(found)


def _lines(table: Table) -> tuple[list[int], tuple[str, ...]]:
    """Columns of the model's outputs that are shown, and what they are: of two classes the second, of many the most
    frequent."""
    if table.classes is None:
        return [0], (table.target,)
    if len(table.classes) == 2:
        return [1], (str(table.classes[1]),)
    counts = np.unique(table.y, return_counts=True)[1]
    chosen = sorted(np.argsort(-counts, kind="stable")[:CLASSES].tolist())
    return chosen, tuple(str(table.classes[i]) for i in chosen)


def _of_input(
    name: str, frame: "pd.DataFrame", encoder: Any, some: np.ndarray, predict: Callable, lines: tuple[str, ...]
) -> Partial:
    """Encoded rows whose columns of this input are those of a value: the encoder reads every input alone."""
    column = frame[name]
    if column.dtype.kind == "O":
        values = column.dropna().value_counts().index[:LEVELS].to_numpy(object)
    else:
        values = _grid(column.dropna().to_numpy(float))
    mine = np.flatnonzero(encoder.source_ == encoder.columns_.index(name))
    any_rows = frame.iloc[np.zeros(len(values), int)].reset_index(drop=True)
    any_rows[name] = values.astype(object) if column.dtype.kind == "O" else values
    moved = np.repeat(some[None], len(values), 0)
    moved[:, :, mine] = encoder.transform(any_rows)[:, None, mine]
    found = predict(moved.reshape(-1, some.shape[1])).reshape(len(values), len(some), -1)
    return Partial(name, values, found.mean(1), lines)


def _of_direction(
    v: np.ndarray, names: list[str], X: np.ndarray, some: np.ndarray, predict: Callable, lines: tuple[str, ...]
) -> Partial:
    """Rows moved along v until their coordinate v·x is the value: what is across stays as it is."""
    v = v / np.linalg.norm(v)
    v = v * np.sign(v[np.argmax(np.abs(v))])  # its largest component is positive
    values = _grid(X @ v)
    moved = np.concatenate([some + (value - some @ v)[:, None] * v for value in values])
    found = predict(moved).reshape(len(values), len(some), -1)
    largest = np.argsort(-np.abs(v), kind="stable")[:3]
    return Partial("first direction", values, found.mean(1), lines, tuple((names[j], float(v[j])) for j in largest))


def _grid(column: np.ndarray) -> np.ndarray:
    """Quantiles from 2% to 98%: where rows are, not beyond; all values of a column of few."""
    distinct = np.unique(column)
    return distinct if len(distinct) <= VALUES else np.unique(np.quantile(column, np.linspace(0.02, 0.98, VALUES)))
