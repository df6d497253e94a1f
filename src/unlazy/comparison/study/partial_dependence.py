"""Partial dependence: the mean prediction over rows when one input, or the coordinate along one learned direction, is
set to a value and everything else is unchanged (Friedman 2001)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from unlazy.comparison.data.table import EncodedTable
from unlazy.comparison.study.model import FinalModel
from unlazy.measures.dependence import output_function

INPUTS, VALUES, ROWS = 3, 15, 80
"""Number of inputs, values of each, and rows to average over."""
LEVELS, CLASSES = 6, 3
"""Maximum number of categories of an input, and classes of the target, that are shown."""
WORK = 2e9
"""Maximum cost: predictions × fitted rows × columns."""


class PartialDependence(NamedTuple):
    """Values along one input or direction, and mean predictions, shape (values, lines)."""

    name: str
    values: np.ndarray
    """Numbers, or names of categories."""
    means: np.ndarray
    lines: tuple[str, ...]
    """Names of the columns of `means`: the target, or the classes whose probabilities they are."""
    parts: tuple[tuple[str, float], ...] = ()
    """Largest components of a direction, by encoded column."""


def partial_dependence(
    final: FinalModel | None, table: EncodedTable, names: list[str], direction: np.ndarray | None
) -> tuple[PartialDependence, ...]:  # fmt: skip
    """Partial dependence on the first inputs of `names` and on the direction; empty if no model was fitted."""
    if final is None or not names:
        return ()
    encoder, model = final.model.named_steps["columns"], final.model.named_steps["model"]
    chosen, lines = _lines(table)
    f = output_function(model)

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


def _lines(table: EncodedTable) -> tuple[list[int], tuple[str, ...]]:
    """Columns of the model's outputs that are shown, and their names: the second of two classes, or the most frequent
    of several."""
    if table.classes is None:
        return [0], (table.target,)
    if len(table.classes) == 2:
        return [1], (str(table.classes[1]),)
    counts = np.unique(table.y, return_counts=True)[1]
    chosen = sorted(np.argsort(-counts, kind="stable")[:CLASSES].tolist())
    return chosen, tuple(str(table.classes[i]) for i in chosen)


def _of_input(
    name: str, frame: pd.DataFrame, encoder: Any, some: np.ndarray, predict: Callable, lines: tuple[str, ...]
) -> PartialDependence:
    """Replace the encoded columns of one input by those of each value; the encoder treats inputs separately."""
    column = frame[name]
    shown = None
    if column.dtype.kind == "M":
        moments = _grid(column.dropna().to_numpy("datetime64[s]").astype(np.int64).astype(float))
        values = moments.astype(np.int64).astype("datetime64[s]").astype("datetime64[ns]")
        shown = 1970 + moments / (365.2425 * 86_400)  # years
    elif column.dtype.kind == "O":
        values = column.dropna().value_counts().index[:LEVELS].to_numpy(object)
    else:
        values = _grid(column.dropna().to_numpy(float))
    mine = np.flatnonzero(encoder.source_ == encoder.columns_.index(name))
    any_rows = frame.iloc[np.zeros(len(values), int)].reset_index(drop=True)
    any_rows[name] = values.astype(object) if column.dtype.kind == "O" else values
    moved = np.repeat(some[None], len(values), 0)
    moved[:, :, mine] = encoder.transform(any_rows)[:, None, mine]
    found = predict(moved.reshape(-1, some.shape[1])).reshape(len(values), len(some), -1)
    return PartialDependence(name, values if shown is None else shown, found.mean(1), lines)


def _of_direction(
    v: np.ndarray, names: list[str], X: np.ndarray, some: np.ndarray, predict: Callable, lines: tuple[str, ...]
) -> PartialDependence:
    """Move rows along v until their coordinate v·x is the value; orthogonal coordinates are unchanged."""
    v = v / np.linalg.norm(v)
    v = v * np.sign(v[np.argmax(np.abs(v))])  # its largest component is positive
    values = _grid(X @ v)
    moved = np.concatenate([some + (value - some @ v)[:, None] * v for value in values])
    found = predict(moved).reshape(len(values), len(some), -1)
    largest = np.argsort(-np.abs(v), kind="stable")[:3]
    return PartialDependence(
        "first direction", values, found.mean(1), lines, tuple((names[j], float(v[j])) for j in largest)
    )


def _grid(column: np.ndarray) -> np.ndarray:
    """Quantiles from 2% to 98%, inside the range of the rows; all values if there are few."""
    distinct = np.unique(column)
    return distinct if len(distinct) <= VALUES else np.unique(np.quantile(column, np.linspace(0.02, 0.98, VALUES)))
