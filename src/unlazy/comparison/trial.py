"""One trial: one contestant, fitted to the first n training rows of one split, judged on its test rows.

Tables travel as a file beside the store, read by every worker. Everything that looks at data (filling in, scaling,
categories by their mean target, settings, the error that choices go by) is learnt from the n training rows.
"""

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from unlazy.comparison.contestants import find, fit_contestant
from unlazy.comparison.scoring import risk_of
from unlazy.comparison.structure import directions, gradient_outer_product, outputs, permutation_rise, rows_to_shuffle
from unlazy.comparison.table import Table
from unlazy.core.errors import UnlazyError
from unlazy.core.experiment import Params

TEST_SHARE = 0.25
MOST_TESTS = 2000


def save_table(table: Table, folder: Path) -> str:
    """Write the table as plain arrays under its digest, all or nothing; returns the digest."""
    digest = table.digest
    path = folder / f"table-{digest}.npz"
    if path.exists():
        return digest
    arrays: dict[str, np.ndarray] = {"y": table.y, "groups": table.groups}
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
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, words=np.array(json.dumps(words)), **arrays)  # type: ignore[arg-type]
        partial.replace(path)
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
            y, groups = file["y"], file["groups"]
    except OSError as error:
        raise UnlazyError(
            f"this worker cannot read {path}; the store must be a folder that all workers share"
        ) from error
    return Table(pd.DataFrame(columns), y, words["task"], words["target"], tuple(words["notes"]), groups)


def held_out_rows(table: Table) -> int:
    """How many rows each split holds out."""
    return min(MOST_TESTS, round(TEST_SHARE * len(table)))


def split(table: Table, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows in an order whose every beginning is a sample, and test rows.

    Rows of equal inputs stay together; classes are spread evenly over the order.
    """
    rng = np.random.default_rng([number, len(table)])
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


def run_trial(params: Params, key: Any, folder: str) -> dict[str, Any]:
    """Risk on the test rows and the evidence for it."""
    from unlazy.estimators.table_encoder import TableEncoder

    began = time.process_time()
    table = load_table(folder, params["table"])
    classes = np.unique(table.y) if table.task == "classification" else None
    train, test = split(table, params["split"])
    chosen = train[: params["n"]]
    encoder = TableEncoder(target=table.target)
    A, y = encoder.fit_transform(table.frame.iloc[chosen], table.y[chosen]), table.y[chosen]
    B, truth = encoder.transform(table.frame.iloc[test]), table.y[test]
    contestant = find(params["contestant"])
    seed = int(params["split"])
    fitted = fit_contestant(contestant, A, y, classes, params["seconds"], seed)
    predict = outputs(fitted.model)
    columns = fitted.model.classes_ if classes is not None else None

    constant = _constant_risk(y, truth, classes)

    def loss(X: np.ndarray, y: np.ndarray = truth) -> float:
        return risk_of(predict(X), columns, y, classes, constant)

    found: dict[str, Any] = {"risk": loss(B), "inner": fitted.inner, "tried": fitted.tried, "constant": constant}
    if columns is not None:
        found["risk"] = max(found["risk"], 0.5 / len(test))  # half a row: less cannot be told apart on so many
        found["mistakes"] = float(np.mean(columns[np.argmax(predict(B), 1)] != truth))
    if not np.isfinite(found["risk"]):
        raise FloatingPointError(f"{contestant.title} predicts values that are not finite")
    if contestant.family == "rich":
        found["eigenvalues"], found["directions"] = directions(gradient_outer_product(predict, B))
        rows, repeats = rows_to_shuffle(len(table.frame.columns))
        found["rise"] = permutation_rise(lambda X: loss(X, truth[:rows]), B[:rows], encoder.source_, seed, repeats)
    return found | {"work": time.process_time() - began}


def _constant_risk(y: np.ndarray, truth: np.ndarray, classes: np.ndarray | None) -> float:
    """Mean squared error of the training rows' mean, or Brier score of their class shares, on the test rows.

    The unit of the split's risks: rows that are hard for all would otherwise be what differs between splits.
    """
    if classes is None:
        return float(np.mean((truth - y.mean()) ** 2))
    shares = np.array([np.mean(y == c) for c in classes])
    return risk_of(np.tile(shares, (len(truth), 1)), classes, truth, classes, 1.0)
