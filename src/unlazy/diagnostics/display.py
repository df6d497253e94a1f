"""A monitor's record as text and HTML: verdict, table of checks, layers."""

import html as escaping
import math
from collections.abc import Sequence

from unlazy.diagnostics.record import Check, Record

SHOWN = 8
"""Largest number of checks in a table; the others are evenly left out."""

COLUMNS = (
    ("step", "step"), ("gap", "gap"), ("change", "change"), ("loss", "loss"), ("kernel_movement", "kernel"),
    ("label_alignment", "alignment"), ("richness", "richness"), ("stability", "λ × step"),
)  # fmt: skip
"""Measures of a check in the table, and their headings."""
LAYER_COLUMNS = (
    ("parameters", "parameters"), ("movement", "outputs"), ("similarity", "similarity"), ("effective_rank", "rank"),
)  # fmt: skip


def text(record: Record) -> str:
    """Verdict, table of checks and table of layers as lines of text."""
    parts = [str(record.verdict)]
    for head, rows in tables(record):
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        parts.append(
            "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)).rstrip() for line in (head, *rows))
        )
    parts += [f"Note: {note}" for note in record.notes]
    return "\n\n".join(parts)


def html(record: Record) -> str:
    """The same as HTML that follows the colors of the page, light or dark."""
    parts = [f"<p><strong>{escaping.escape(str(record.verdict))}</strong></p>"]
    for head, rows in tables(record):
        lines = ["<tr>" + "".join(f"<th>{escaping.escape(c)}</th>" for c in head) + "</tr>"]
        lines += ["<tr>" + "".join(f"<td>{escaping.escape(c)}</td>" for c in row) + "</tr>" for row in rows]
        parts.append(f"<table>{''.join(lines)}</table>")
    parts += [f"<p>Note: {escaping.escape(note)}</p>" for note in record.notes]
    return f'<div class="unlazy-monitor">{STYLE}{"".join(parts)}</div>'


STYLE = (
    "<style>.unlazy-monitor{color:inherit;font-variant-numeric:tabular-nums}"
    ".unlazy-monitor table{border-collapse:collapse;margin:.6em 0;color:inherit;background:transparent}"
    ".unlazy-monitor th,.unlazy-monitor td{padding:.15em .7em;text-align:right;color:inherit;background:transparent;"
    "border-bottom:1px solid rgba(128,128,128,.35)}</style>"
)


def tables(record: Record) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Heads and rows of the tables: checks, then layers at the last check that measured them."""
    found = []
    if record.checks:
        chosen = _spread(record.checks)
        columns = [(key, head) for key, head in COLUMNS if any(not math.isnan(getattr(c, key)) for c in chosen)]
        rows = [tuple(_cell(getattr(c, key)) for key, _ in columns) for c in chosen]
        found.append((tuple(head for _, head in columns), rows))
    measured = [c for c in record.checks if c.layers]
    if measured:
        head = ("layer", *(head for _, head in LAYER_COLUMNS))
        rows = [
            (name, *(_cell(getattr(layer, key)) for key, _ in LAYER_COLUMNS))
            for name, layer in measured[-1].layers.items()
        ]
        found.append((head, rows))
    return found


def _spread(checks: Sequence[Check]) -> list[Check]:
    """At most `SHOWN` checks, with the first and the last."""
    if len(checks) <= SHOWN:
        return list(checks)
    return [checks[round(i * (len(checks) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else str(value) if isinstance(value, int) else f"{value:.3g}"
