"""Tables for spreadsheets: CSV in which text that begins like a formula is text."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlazy.core.files import written_whole

if TYPE_CHECKING:
    import pandas as pd

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(frame: "pd.DataFrame", path: Path | None = None) -> str | None:
    """Write the table, or return its text where there is no path.

    Text and columns' names that a spreadsheet would run as a formula get an apostrophe in front. Numbers stay numbers,
    and text that reads as one (-1.5) stays as it is: a spreadsheet reads a number.
    """
    shown = frame.rename(columns=_plain)
    returns = any("\r" in str(name) for name in shown.columns)
    for at in range(shown.shape[1]):
        column = shown.iloc[:, at]
        if column.dtype.kind not in "biufc":
            column = column.astype(object).map(_plain)
            shown.isetitem(at, column)
            returns |= any("\r" in cell for cell in column if isinstance(cell, str))
    # pandas leaves a carriage return bare, which ends the row for whoever reads it
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    if path is None:
        return shown.to_csv(None, index=False, quoting=quoting)
    with written_whole(path) as aside:
        shown.to_csv(aside, index=False, quoting=quoting)
    return None


def _plain(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(_BEGINNINGS):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"
