"""Records to CSV or Parquet, for whatever program comes next."""

from pathlib import Path

from unlazy.core.errors import UnlazyError
from unlazy.core.files import written_whole
from unlazy.lab.experiment import Records
from unlazy.lab.report.csv_export import write_csv


def export(records: Records, path: Path) -> None:
    """Write a row per trial: parameters, seed, scalar measures, seconds. The suffix chooses the format.

    In CSV, text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"export writes .csv or .parquet, got {path.name!r}")
    if not len(records):
        raise UnlazyError("nothing to export: no finished trials of this experiment are stored; run it first")
    frame = records.frame()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            write_csv(frame, path)
        else:
            with written_whole(path) as aside:
                frame.to_parquet(aside, index=False)
    except ImportError as error:
        remedy = "install it with pip install 'unlazy[parquet]', or export to .csv"
        raise UnlazyError(f"Parquet needs pyarrow: {remedy}") from error
    except OSError as error:
        raise UnlazyError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
