"""The model to keep: the best that can be saved, its settings chosen and fitted anew on all rows; its predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unlazy.comparison.data.columns import as_number, kind_of
from unlazy.comparison.data.reading import read_frame
from unlazy.comparison.data.table import Table
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.held_out import residuals
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.trial import fit_contestant, kept_file
from unlazy.core.errors import UnlazyError

if TYPE_CHECKING:
    import pandas as pd


class Final(NamedTuple):
    """A pipeline of encoder and model, its contestant, the rows it saw, its own held-out error, and what to say."""

    model: Any
    name: str
    rows: int
    inner: float
    notes: tuple[str, ...] = ()


def fit_table(table: Table, name: str, *, seed: int = 0) -> Final:
    """One contestant, tuned and fitted on every row of the table."""
    from sklearn.pipeline import Pipeline

    from unlazy.core.precision import precision
    from unlazy.estimators.preprocessing.table_encoder import TableEncoder

    encoder = TableEncoder(target=table.target)
    X = encoder.fit_transform(table.frame, table.y)
    with precision("float64"):
        found = fit_contestant(CONTESTANTS[name], X, table.y, table.classes, seed)
    return Final(Pipeline([("columns", encoder), ("model", found.model)]), name, len(table), found.inner)


def kept_fit(study: Study, name: str, folder: str | Path | None) -> Final | None:
    """The model of the largest trial of this contestant that took long enough to be kept; None where there is none."""
    from unlazy.estimators.persistence.files import load

    trials = study.records.where(contestant=name, split=0) if folder is not None else ()
    for r in sorted(trials, key=lambda r: -r.params["n"]):
        path = kept_file(str(folder), r.params)
        if path.exists():
            return Final(load(path), name, int(r.params["n"]), float(r.measures["inner"]))
    return None


def saved_name(chosen: str, models: "pd.DataFrame") -> tuple[str, tuple[str, ...]]:
    """The chosen model, or the best of the table of models that files can hold; and what to say of it."""
    name = next((c for c in [chosen, *models["name"]] if CONTESTANTS[c].saveable), None)
    if name is None:
        raise ValueError("no model that can be saved took part; add one, such as 'feature_machine'")
    if name == chosen:
        return name, ()
    return name, (
        f"files without code cannot hold the {CONTESTANTS[chosen].title}; the saved model is the next best, the "
        f"{CONTESTANTS[name].title}",
    )


def kept_residuals(final: Final, study: Study) -> Final:
    """The model with the residuals of test rows, which chose nothing, for its intervals."""
    missed = residuals(study, final.name)
    if missed and hasattr(_last(final.model), "keep_residuals"):
        _last(final.model).keep_residuals(missed)
    return final


def _last(model: Any) -> Any:
    """The regressor or classifier at the end of pipelines."""
    return _last(model[-1]) if hasattr(model, "named_steps") else model


def interval_radius(final: Final, level: float) -> float | None:
    """Half of the width of the model's prediction interval; None where it has none."""
    last = _last(final.model)
    try:
        return float(last.interval_radius(level)[0]) if hasattr(last, "interval_radius") else None
    except ValueError:
        return None


def save_model(final: Final, path: str | Path) -> Path:
    """Write the pipeline to a file that `unlazy.load` and `unlazy predict` read."""
    from unlazy.estimators.persistence.files import save

    save(final.model, path)
    return Path(path)


def predictions(
    model: str | Path, source: str | Path, delimiter: str | None = None, interval: float | None = None
) -> "pd.DataFrame":
    """A column of predictions under the target's name; for classes a column of probability each besides, for numbers
    the ends of their interval of this level, where it is asked for."""
    import pandas as pd

    from unlazy.estimators.persistence.files import load

    pipeline = load(model)
    encoder = pipeline[0] if hasattr(pipeline, "named_steps") else None
    if encoder is None or not hasattr(encoder, "columns_"):
        raise UnlazyError(f"{model} is not a model of a table; make one with unlazy compare or unlazy fit")
    radius = 0.0 if interval is None else _radius(pipeline, interval)
    frame, _ = read_frame(source, None, delimiter, labeled=False)
    for name in frame.columns.intersection([c for c, kind in encoder.kinds_.items() if kind in ("numeric", "marked")]):
        if frame[name].notna().any() and kind_of(frame[name], allow_mixed=True) == "numeric":
            frame[name] = as_number(frame[name])  # with decimal commas or thousands, as tables to compare are read
    found = pd.DataFrame({encoder.target: pipeline.predict(frame)})
    if interval is not None:
        found[f"{encoder.target} low"] = found[encoder.target] - radius
        found[f"{encoder.target} high"] = found[encoder.target] + radius
    if hasattr(pipeline, "predict_proba"):
        for label, column in zip(pipeline.classes_, pipeline.predict_proba(frame).T):
            found[f"probability {label}"] = column
    return found


def model_interval(pipeline: Any, X: Any, level: float) -> np.ndarray:
    """Low and high of every prediction, (rows, 2)."""
    radius = _radius(pipeline, level)
    middle = np.asarray(pipeline.predict(X))
    return np.stack([middle - radius, middle + radius], 1)


def _radius(pipeline: Any, level: float) -> float:
    """Half of the width of the predictions' intervals."""
    from unlazy.estimators.intervals import HeldOutIntervals

    last = _last(pipeline)
    if hasattr(last, "classes_"):
        raise ValueError("an interval is for numbers, and this model predicts classes; their probabilities are there")
    if not isinstance(last, HeldOutIntervals):
        raise ValueError(f"a {type(last).__name__} gives no intervals; make a model with unlazy compare or unlazy fit")
    return float(last.interval_radius(level)[0])
