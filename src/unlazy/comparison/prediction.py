"""Predictions of a saved model for new rows."""

from pathlib import Path
from typing import TYPE_CHECKING

from unlazy.comparison.reading import read_frame
from unlazy.core.errors import UnlazyError

if TYPE_CHECKING:
    import pandas as pd


def predictions(model: str | Path, source: str | Path, delimiter: str | None = None) -> "pd.DataFrame":
    """A column of predictions under the target's name; for classes a column of probability each besides."""
    import pandas as pd

    from unlazy.estimators.persistence import load

    pipeline = load(model)
    encoder = pipeline[0] if hasattr(pipeline, "named_steps") else None
    if encoder is None or not hasattr(encoder, "columns_"):
        raise UnlazyError(f"{model} is not a model of a table; make one with unlazy compare or unlazy fit")
    frame, _ = read_frame(source, None, delimiter, labelled=False)
    found = pd.DataFrame({encoder.target: pipeline.predict(frame)})
    if hasattr(pipeline, "predict_proba"):
        for label, column in zip(pipeline.classes_, pipeline.predict_proba(frame).T):
            found[f"probability {label}"] = column
    return found
