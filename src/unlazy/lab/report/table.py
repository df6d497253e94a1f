"""The table of claims on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unlazy.lab.claims import BARELY, Claim
from unlazy.lab.experiment import Experiment

if TYPE_CHECKING:
    from rich.console import Console

_LOOK = {
    "holds": "[green]✓ holds[/]",
    "does not hold": "[red]✗ does not hold[/]",
    "undecided": "[yellow]? undecided[/]",
}
_SHORT = {"theory": "theory's", "value": "tolerance chosen", "chosen": "chosen", "derived": "derived"}
"""Whose number it is, for a narrow column; the page says it in full."""


def print_claims(rows: Sequence[tuple[Experiment, Sequence[Claim]]], console: "Console | None" = None) -> None:
    """Theory against measurement, a row per claim, grouped by experiment."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Theory against measurement", title_justify="left")
    for name in ("claim", "theory", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    for experiment, claims in rows:
        table.add_row(f"[bold]{escape(experiment.name)}[/]", "", "", "")
        for c in claims:
            said = _LOOK[c.verdict] + (f"[yellow]{BARELY}[/]" if c.barely else "")
            table.add_row(
                f"{escape(c.statement)} [dim]\\[{escape(c.tag)}][/]",
                f"{escape(c.predicted)} [dim]({_SHORT[c.basis]})[/]", escape(c.measured_text), said,
            )  # fmt: skip
    console = console or Console()
    console.print(table)
    console.print(summary([c for _, claims in rows for c in claims]))


def summary(claims: Sequence[Claim]) -> str:
    """One sentence that counts the verdicts."""
    if not claims:
        return "No claims: nothing has been run yet."
    count = {v: sum(c.verdict == v for c in claims) for v in _LOOK}
    barely = sum(c.barely and c.verdict == "holds" for c in claims)
    parts = [f"{count['holds']} of {len(claims)} claims hold" + (f" ({barely} barely)" if barely else "")]
    if count["does not hold"]:
        parts.append(f"{count['does not hold']} do not" if count["does not hold"] > 1 else "1 does not")
    if count["undecided"]:
        parts.append(f"{count['undecided']} undecided")
    return ", ".join(parts) + "."
