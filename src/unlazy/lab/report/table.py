"""The table of claims in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unlazy.lab.claims import BARELY, Claim
from unlazy.lab.experiment import Experiment

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "holds": "[green]✓ holds[/]",
    "does not hold": "[red]✗ does not hold[/]",
    "undecided": "[yellow]? undecided[/]",
}
_SHORT_BASES = {"theory": "theory's", "value": "tolerance chosen", "chosen": "chosen", "derived": "derived"}
"""Where a bound comes from, shortened for a narrow column."""


def print_claims(rows: Sequence[tuple[Experiment, Sequence[Claim]]], console: "Console | None" = None) -> None:
    """Print a table of claims, theory against measurement, grouped by experiment.

    Parameters
    ----------
    rows : sequence of (Experiment, sequence of Claim)
        Experiments and their claims.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
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
            verdict = _STYLES[c.verdict] + (f"[yellow]{BARELY}[/]" if c.barely else "")
            table.add_row(
                f"{escape(c.statement)} [dim]\\[{escape(c.tag)}][/]",
                f"{escape(c.predicted)} [dim]({_SHORT_BASES[c.basis]})[/]", escape(c.measured_text), verdict,
            )  # fmt: skip
    console = console or Console()
    console.print(table)
    console.print(summary([c for _, claims in rows for c in claims]))


def summary(claims: Sequence[Claim]) -> str:
    """Count the verdicts in one sentence."""
    if not claims:
        return "No claims: no experiment has been run yet."
    count = {v: sum(c.verdict == v for c in claims) for v in _STYLES}
    barely = sum(c.barely and c.verdict == "holds" for c in claims)
    parts = [f"{count['holds']} of {len(claims)} claims hold" + (f" ({barely} barely)" if barely else "")]
    if count["does not hold"]:
        parts.append(f"{count['does not hold']} do not" if count["does not hold"] > 1 else "1 does not")
    if count["undecided"]:
        parts.append(f"{count['undecided']} undecided")
    return ", ".join(parts) + "."
