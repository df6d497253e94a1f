"""The `unlazy watch` command: show what a monitor saved."""

from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import report_errors

app = typer.Typer()


@app.command()
def watch(
    record: Annotated[Path, typer.Argument(metavar="RUN.json", help="File that monitor.save wrote.")],
    out: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    json: Annotated[
        Path | None, typer.Option(help="File to write verdict, advice and last check to; '-' prints them.")
    ] = None,
    target_gap: Annotated[
        float | None, typer.Option(help="Linearization gap to advise on (default: the nearest other regime).")
    ] = None,
) -> None:
    """Is a training run lazy or rich, and what would change it? Show the record of unlazy.watch."""
    with report_errors():
        from unlazy.diagnostics.record import Record
        from unlazy.diagnostics.report.terminal import print_record, to_json

        found = Record.load(record)
        if json is not None and str(json) == "-":
            typer.echo(to_json(found, target_gap))
        else:
            print_record(found, target_gap)
            if json is not None:
                _write(json, to_json(found, target_gap) + "\n")
        if out is not None:
            from unlazy.diagnostics.report.page import write_page

            typer.echo(f"Page: {write_page(found, out)}", err=str(json) == "-")


def _write(path: Path, text: str) -> None:
    """Write a text file; raise ValueError if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}; choose another file") from error
