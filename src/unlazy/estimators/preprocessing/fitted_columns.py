"""A fitted encoding of columns: what new rows need. It imports neither JAX nor scikit-learn, so that it can serve.

A model of a file knows how the numbers and dates of its columns were written (`keep_formats`): text in new rows is read
in the same way, and refused if it contradicts it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.estimators.preprocessing.columns import ColumnScale
from unlazy.estimators.preprocessing.date_texts import find_day_first, parse_date_texts
from unlazy.estimators.preprocessing.dates import date_columns
from unlazy.estimators.preprocessing.frames import as_date_series, as_text, match_columns, read_column, zone_of
from unlazy.estimators.preprocessing.number_texts import NumberFormat, marks_missing, read_number

if TYPE_CHECKING:
    import pandas as pd


class FittedColumns:
    """Encoding of data frames by the attributes that `TableEncoder.fit` sets."""

    columns_: list[str]
    target: str
    kinds_: dict[str, str]
    fill_: dict[str, float]
    categories_: dict[str, list[str]]
    rare_: dict[str, int]
    dates_: dict[str, dict[str, Any]]
    formats_: dict[str, dict[str, Any]]
    means_: dict[str, np.ndarray]
    prior_: np.ndarray
    offset_: np.ndarray
    scale_: np.ndarray

    def encode_frame(self, frame: "pd.DataFrame") -> np.ndarray:
        """Encode the rows of a frame; its columns are matched by name."""
        frame = match_columns(frame, self.columns_, [self.target], may_be_empty=True).set_axis(self.columns_, axis=1)
        parts = [self._encode(self._typed(frame[name], name), name) for name in self.columns_]
        return self._scaled(np.hstack(parts))

    def _encode(self, values: np.ndarray, name: str) -> np.ndarray:
        """Encode one column with the learned encoding."""
        kind = self.kinds_[name]
        if kind in ("numeric", "marked"):
            numbers = values.astype(np.float64)
            gone = np.isnan(numbers)
            filled = np.where(gone, self.fill_[name], numbers)
            return np.stack([filled, gone], 1) if kind == "marked" else filled[:, None]
        if kind == "date":
            fitted, gone = self.dates_[name], np.isnat(values)[:, None]
            filled = np.where(gone, fitted["fill"], date_columns(values, fitted))
            return np.hstack([filled, gone]) if fitted["marked"] else filled
        codes = self._codes(values, name)
        if kind == "indicators":
            return (codes[:, None] == np.arange(len(self.categories_[name]))).astype(np.float64)
        return np.vstack([self.means_[name], self.prior_])[codes]  # -1, an unseen category, is the overall mean

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        """Index of the category of each value; that of rare ones, or -1, if it is unknown."""
        number = {c: i for i, c in enumerate(self.categories_[name])}
        unknown = getattr(self, "rare_", {}).get(name, -1)  # not in files of earlier versions
        return np.array([number.get("" if v is None else v, unknown) for v in values], dtype=int)

    def _scaled(self, raw: np.ndarray) -> np.ndarray:
        return ColumnScale(self.offset_, self.scale_)(raw)

    def _typed(self, series: "pd.Series", name: str) -> np.ndarray:
        """Return a column as numbers, text or dates, as in training."""
        import pandas as pd

        kind = self.kinds_[name]
        if kind == "date":
            return self._typed_dates(series, name)
        if kind not in ("numeric", "marked"):
            return as_text(series, name)
        if series.isna().all():
            return np.full(len(series), np.nan)
        values = read_column(series, name)
        if values.dtype.kind == "f":
            return values
        written = self._written(name)
        if written is None or values.dtype.kind == "M":
            format, numbers = "", pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(np.float64)
        else:
            format, values = f" ({NumberFormat(**written)})", _without_markers(values)
            numbers = np.array([_as_float(cell, text, NumberFormat(**written)) for cell, text in zip(series, values)])
        wrong = np.isnan(numbers) & ~pd.isna(values)
        if values.dtype.kind == "M" or np.any(wrong):
            example = values[np.argmax(wrong)] if values.dtype.kind == "O" else str(values[0])
            same = written is not None and any(map(str.isdigit, example))
            remedy = f"{'write it in the same way' if same else 'correct it'}, or leave the cell empty"
            if written is not None and not written["commas"] and "," in example:
                remedy = "is this a thousands separator or a decimal comma? Write it without commas"
            raise ValueError(f"column {name!r} was numeric in training{format} but holds {example!r}; {remedy}")
        return read_column(pd.Series(numbers), name)

    def _typed_dates(self, series: "pd.Series", name: str) -> np.ndarray:
        """Return a column as dates in the time zone of training; text is read as dates."""
        import pandas as pd

        series, written, zone = series.reset_index(drop=True), self._written(name), self.dates_[name]["zone"]
        if series.dtype.kind == "O" and written is not None:
            series = pd.Series(_without_markers(series.to_numpy(dtype=object)), dtype=object)
        if series.isna().all():
            return np.full(len(series), np.datetime64("NaT", "us"))
        day_first = None if written is None else written["day_first"]
        if series.dtype.kind == "O" and any(isinstance(cell, str) for cell in series):
            dates = _read_dates(series, name, day_first)
        else:
            dates = as_date_series(series)
        if written is not None and zone_of(dates):
            dates = dates.dt.tz_localize(None)  # as in files, which may have several zones
        wrong = (dates.isna() & series.notna()).to_numpy()
        if series.dtype.kind in "biuf" or wrong.any():
            example = series.iloc[int(np.argmax(wrong))] if len(series) else series.dtype
            order = {None: "", True: " (day first)", False: " (month first)"}[day_first]
            raise ValueError(
                f"column {name!r} held dates{order} in training but holds {example!r}; correct it, or leave the cell "
                "empty"
            )
        if bool(zone_of(dates)) != bool(zone):
            raise ValueError(
                f"column {name!r} had {f'the time zone {zone}' if zone else 'no time zone'} in training but has "
                f"{zone_of(dates) or 'none'} now; convert it with dt.tz_localize"
            )
        return read_column(dates.dt.tz_convert(zone) if zone else dates, name)

    def _written(self, name: str) -> dict[str, Any] | None:
        """How the numbers or dates of a column of a file were written; None for other models and earlier files."""
        return getattr(self, "formats_", {}).get(name)


def keep_formats(encoder: FittedColumns, formats: dict[str, dict[str, Any]]) -> None:
    """Give an encoder the formats of its columns: unit, commas and points of numbers, day_first of dates."""
    encoder.formats_ = {name: formats[name] for name in encoder.columns_ if name in formats}


def _without_markers(cells: np.ndarray) -> np.ndarray:
    """Cells with None for those that mark a missing value."""
    return np.array([None if isinstance(cell, str) and marks_missing(cell) else cell for cell in cells], dtype=object)


def _as_float(cell: Any, text: str | None, format: NumberFormat) -> float:
    """Number in a cell, given also as text; NaN if it is missing or not written in this format."""
    if text is None:
        return np.nan
    return read_number(text, format) if isinstance(cell, str) else float(cell)


def _read_dates(series: "pd.Series", name: str, day_first: bool | None) -> "pd.Series":
    """Read a column of text as dates, in the order of day and month of training."""
    texts = series.dropna().map(str)
    try:
        order = find_day_first(texts, day_first)
    except ValueError as error:
        raise ValueError(f"column {name!r} has {error}") from error
    return parse_date_texts(texts, order).reindex(series.index)
