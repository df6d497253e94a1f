"""What a user asked for, as far as it can be checked at once: before seconds of imports, and before workers begin."""

from pathlib import Path

from unlazy.core.errors import UnlazyError

TOYS = ("breast_cancer", "diabetes", "digits", "iris", "wine")
"""Sets of scikit-learn that can be named in place of a file."""


def file_of(source: str | Path) -> Path | None:
    """The file at `source`; None for a toy set; a sentence where there is neither."""
    path = Path(source)
    if not path.exists():
        if str(source) in TOYS:
            return None
        known = f"; toy sets by name are {', '.join(TOYS)}" if path.suffix == "" else "; check its name and folder"
        raise UnlazyError(f"there is no file {source}{known}")
    if path.is_dir():
        raise UnlazyError(f"{source} is a folder; name the CSV, Parquet or npz file in it")
    return path


def parse_budget(text: str | float) -> float:
    """Seconds from '90s', '2m', '1h' or a number of seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    cleaned = str(text).strip().lower()
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned[-1:] in units else (cleaned, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"a budget looks like '90s', '2m' or '1h', got {text!r}")
    return seconds
