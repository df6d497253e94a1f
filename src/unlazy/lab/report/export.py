"""Export of records to CSV or Parquet."""

from pathlib import Path

from unlazy.core.errors import UnlazyError
from unlazy.core.files import atomic_write
from unlazy.lab.experiment import Records
from unlazy.lab.report.csv_export import write_csv


def export(records: Records, path: Path) -> None:
    """Write one row per trial: parameters, seed, scalar measures, seconds.

    In CSV files, text that a spreadsheet would run as a formula is prefixed with an apostrophe.

    Parameters
    ----------
    records : Records
        Finished trials.
    path : Path
        File to write; its suffix, .csv or .parquet, selects the format.

    Raises
    ------
    ValueError
        If the suffix is neither .csv nor .parquet.
    UnlazyError
        If there are no records, pyarrow is missing, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"path must end in .csv or .parquet, got {path.name!r}")
    if not len(records):
        raise UnlazyError("nothing to export: the store has no finished trials of this experiment; run it first")
    frame = records.frame()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            write_csv(frame, path)
        else:
            with atomic_write(path) as aside:
                frame.to_parquet(aside, index=False)
    except ImportError as error:
        remedy = "install it with pip install 'unlazy[parquet]', or export to .csv"
        raise UnlazyError(f"Parquet needs pyarrow: {remedy}") from error
    except OSError as error:
        raise UnlazyError(f"cannot write {path}: {error.strerror or error}; choose another file") from error
