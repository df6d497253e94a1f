"""The final model: the best one that can be saved, tuned and fitted on all rows; its files and predictions."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from unlazy.comparison.data.columns import as_number, column_kind, parse_dates
from unlazy.comparison.data.reading import read_frame
from unlazy.comparison.data.table import EncodedTable
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.held_out import held_out_predictions, held_out_residuals
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.trial import fit_candidate, trial_model_path
from unlazy.core.arrays import Points, precision
from unlazy.core.errors import UnlazyError
from unlazy.estimators.intervals import HeldOutIntervals, predict_interval
from unlazy.estimators.persistence.files import load, save
from unlazy.estimators.preprocessing.fitted_columns import keep_formats
from unlazy.estimators.preprocessing.frames import match_columns
from unlazy.estimators.preprocessing.table_encoder import TableEncoder


class FinalModel(NamedTuple):
    """A pipeline of encoder and model, its candidate, number of rows, error estimated on them, and notes."""

    model: Any
    name: str
    rows: int
    inner: float
    notes: tuple[str, ...] = ()


def fit_table(table: EncodedTable, name: str, *, seed: int = 0) -> FinalModel:
    """Tune and fit one candidate on all rows of the table."""
    encoder = TableEncoder(target=table.target)
    X = encoder.fit_transform(table.frame, table.y)
    keep_formats(encoder, table.formats)
    with precision("float64"):
        found = fit_candidate(CANDIDATES[name], X, table.y, table.classes, seed)
    return FinalModel(Pipeline([("columns", encoder), ("model", found.model)]), name, len(table), found.inner)


def load_trial_model(study: Study, name: str, folder: str | Path | None) -> FinalModel | None:
    """Load the model of the largest long trial of this candidate; None if there is none."""
    trials = study.records.where(candidate=name, split=0) if folder is not None else ()
    for r in sorted(trials, key=lambda r: -r.params["n"]):
        path = trial_model_path(str(folder), r.params)
        if path.exists():
            model = load(path)
            keep_formats(model[0], study.table.formats)
            return FinalModel(model, name, int(r.params["n"]), float(r.measures["inner"]))
    return None


def choose_saveable(chosen: str, models: pd.DataFrame) -> tuple[str, tuple[str, ...]]:
    """Return the chosen model, or else the best one that can be saved, with a note about it."""
    name = next((c for c in [chosen, *models["name"]] if CANDIDATES[c].saveable), None)
    if name is None:
        raise ValueError("none of the models can be saved; add one that can, such as 'feature_machine'")
    if name == chosen:
        return name, ()
    return name, (
        f"the {CANDIDATES[chosen].title} cannot be saved to a file without code; the saved model is the next best, "
        f"the {CANDIDATES[name].title}",
    )


def attach_residuals(final: FinalModel, study: Study) -> FinalModel:
    """Give the model the residuals of test rows, which selected nothing, for its prediction intervals."""
    found, missed = held_out_predictions(study, final.name), held_out_residuals(study, final.name)
    last = _last(final.model)
    if found is None or not missed or not hasattr(last, "keep_residuals"):
        return final
    last.keep_residuals(
        missed,
        predictions=[part[:, 0] for part in found.predicted],
        inputs=[_inputs_of_last(final.model, study.table.frame.iloc[rows]) for rows in found.rows],
        nonnegative=bool(study.table.y.min() >= 0),
    )
    return final


def _inputs_of_last(model: Any, X: Points) -> Points:
    """Rows as the estimator at the end of nested pipelines takes them."""
    if not hasattr(model, "named_steps"):
        return X
    for _, step in model.steps[:-1]:
        X = step.transform(X)
    return _inputs_of_last(model[-1], X)


def _last(model: Any) -> Any:
    """The estimator at the end of nested pipelines."""
    return _last(model[-1]) if hasattr(model, "named_steps") else model


def interval_radius(final: FinalModel, level: float) -> float | None:
    """Half the width of the model's prediction intervals, if all had the same width; None if it has none."""
    last = _last(final.model)
    try:
        return float(last.interval_radius(level)[0]) if hasattr(last, "interval_radius") else None
    except ValueError:
        return None


def save_model(final: FinalModel, path: str | Path) -> Path:
    """Save the pipeline to a file for `unlazy.load` and `unlazy predict`."""
    save(final.model, path)
    return Path(path)


def predict_file(
    model: str | Path, source: str | Path, delimiter: str | None = None, interval: float | None = None
) -> pd.DataFrame:
    """Predict the rows of a file: a column named like the target; for classes also a column of probabilities per class,
    for numbers the ends of the prediction interval, if one is requested."""
    pipeline = load(model)
    encoder = pipeline[0] if hasattr(pipeline, "named_steps") else None
    if encoder is None or not hasattr(encoder, "columns_"):
        raise UnlazyError(f"{model} is not a model of a table; create one with unlazy compare or unlazy fit")
    if interval is not None:
        _check_intervals(pipeline, interval)
    formats = getattr(encoder, "formats_", {})
    european = [name for name, format in formats.items() if format.get("commas") == "decimal"]
    frame, _ = read_frame(source, None, delimiter, labeled=False, texts=european)
    frame = match_columns(frame, encoder.columns_, [encoder.target], may_be_empty=True)
    for name in set(encoder.kinds_) - set(formats):  # a file of an earlier version: guess how it is written
        trained = encoder.kinds_[name]
        if trained not in ("numeric", "marked", "date") or frame[name].isna().all():
            continue
        found = column_kind(frame[name], allow_mixed=True)
        if trained != "date" and found == "numeric":
            frame[name] = as_number(frame[name])  # reads commas and units as `read_table` does
        elif trained == "date" and found == "date":
            frame[name] = parse_dates(frame[name])
    result = pd.DataFrame({encoder.target: pipeline.predict(frame)})
    if interval is not None:
        ends = predict_interval(pipeline, frame, interval)
        result[f"{encoder.target} low"], result[f"{encoder.target} high"] = ends.T
    if hasattr(pipeline, "predict_proba"):
        for label, column in zip(pipeline.classes_, pipeline.predict_proba(frame).T):
            result[f"probability {label}"] = column
    return result


def interval_bounds(pipeline: Pipeline, X: Points, level: float) -> np.ndarray:
    """Lower and upper ends of the prediction intervals, shape (rows, 2)."""
    _check_intervals(pipeline, level)
    return predict_interval(pipeline, X, level)


def _check_intervals(pipeline: Pipeline, level: float) -> None:
    """Raise ValueError if the model has no prediction intervals of this level."""
    last = _last(pipeline)
    if hasattr(last, "classes_"):
        raise ValueError("this model predicts classes, which have no intervals; use their probabilities instead")
    if not isinstance(last, HeldOutIntervals):
        raise ValueError(
            f"{type(last).__name__} has no prediction intervals; create a model with unlazy compare or unlazy fit"
        )
    last.interval_radius(level)
