"""CSV files that are safe to open in a spreadsheet: text is never run as a formula."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlazy.core.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(frame: "pd.DataFrame", path: Path | None = None) -> str | None:
    """Write the table as CSV, or return the text if `path` is None.

    Text and column names that a spreadsheet would run as a formula are prefixed with an apostrophe. Numbers, and text
    that is a number (-1.5), are unchanged.
    """
    shown = frame.rename(columns=_plain)
    returns = any("\r" in str(name) for name in shown.columns)
    for at in range(shown.shape[1]):
        column = shown.iloc[:, at]
        if column.dtype.kind not in "biufc":
            column = column.astype(object).map(_plain)
            shown.isetitem(at, column)
            returns |= any("\r" in cell for cell in column if isinstance(cell, str))
    # pandas does not quote a carriage return, which other readers take for the end of the row
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    if path is None:
        return shown.to_csv(None, index=False, quoting=quoting)
    with atomic_write(path) as aside:
        shown.to_csv(aside, index=False, quoting=quoting)
    return None


def _plain(cell: Any) -> Any:
    """Prefix text that starts like a formula with an apostrophe."""
    if not isinstance(cell, str) or not cell.startswith(_BEGINNINGS):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"
