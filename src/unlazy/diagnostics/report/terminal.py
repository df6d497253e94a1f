"""A record in the terminal, and as JSON for other programs."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from unlazy.diagnostics import display
from unlazy.diagnostics.record import Record, without_nan

if TYPE_CHECKING:
    from rich.console import Console


def print_record(record: Record, target_gap: float | None = None, console: "Console | None" = None) -> None:
    """Print the verdict, the tables of checks and layers, and the advice.

    Parameters
    ----------
    record : Record
        The run.
    target_gap : float, optional
        Linearization gap of the advice; that of the nearest other regime by default.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    advice = record.advise(target_gap)
    console.print(Text(str(record.verdict), "bold"))
    for title, (head, rows) in zip(("Checks", "Layers at the last check"), display.tables(record)):
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        for i, name in enumerate(head):
            table.add_column(name, justify="left" if (title, i) == ("Layers at the last check", 0) else "right")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print()
        console.print(table)
    console.print()
    console.print(Text(str(advice)))
    for note in record.notes:
        console.print(Text(f"Note: {note}"))


def to_json(record: Record, target_gap: float | None = None) -> str:
    """Verdict, advice and last check as JSON, with null for what was not measured.

    Parameters
    ----------
    record : Record
        The run.
    target_gap : float, optional
        Linearization gap of the advice.

    Returns
    -------
    str
    """
    verdict, advice = record.verdict, record.advise(target_gap)
    forecast = None if verdict.forecast is None else verdict.forecast._asdict()
    values = {
        "verdict": {
            "word": verdict.word, "text": verdict.text, "step": verdict.step, "gap": verdict.gap,
            "standard_error": verdict.standard_error, "forecast": forecast, "layers": verdict.layers,
        },
        "advice": {
            "target_gap": advice.target_gap, "gap": advice.gap,
            "scale": None if advice.scale is None else advice.scale._asdict(),
            "levers": [lever._asdict() for lever in advice.levers], "notes": advice.notes,
        },
        "last_check": asdict(record.checks[-1]) if record.checks else None,
        "step": record.step,
        "planned_steps": record.planned_steps,
        "overhead": record.overhead if math.isfinite(record.overhead) else None,
        "notes": record.notes,
    }  # fmt: skip
    return json.dumps(without_nan(values), indent=1, allow_nan=False, ensure_ascii=False)
