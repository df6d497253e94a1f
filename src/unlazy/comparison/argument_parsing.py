"""Command-line arguments that are validated before the slow imports and before workers start."""

from pathlib import Path

from unlazy.core.errors import UnlazyError

TOY_DATASETS = ("breast_cancer", "diabetes", "digits", "iris", "wine")
"""scikit-learn datasets that can be named instead of a file."""


def resolve_source(source: str | Path) -> Path | None:
    """Return the path of the file `source`, or None for a toy dataset; raise UnlazyError if neither exists."""
    path = Path(source)
    if not path.exists():
        if str(source) in TOY_DATASETS:
            return None
        datasets = f"; the toy datasets are {', '.join(TOY_DATASETS)}"
        known = datasets if path.suffix == "" else "; check the file name and the folder"
        raise UnlazyError(f"there is no file {source}{known}")
    if path.is_dir():
        raise UnlazyError(f"{source} is a folder; pass a CSV, Excel, Parquet or npz file")
    return path


def parse_budget(text: str | float) -> float:
    """Convert '90s', '2m', '1h' or a number to seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    cleaned = str(text).strip().lower()
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned[-1:] in units else (cleaned, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"budget must look like '90s', '2m' or '1h', got {text!r}")
    return seconds
