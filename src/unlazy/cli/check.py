"""The `unlazy check` command: compare the programs of this machine with float64."""

from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import print_stderr, report_errors

app = typer.Typer()


@app.command()
def check(
    json: Annotated[Path | None, typer.Option(help="File to write the result to, as JSON; '-' prints it.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time after which no further case is started (90 on a GPU, 60 on the CPU).")
    ] = None,
) -> None:
    """Compare every program that this machine would choose with float64; exit with 1 if one fails."""
    with report_errors():
        from unlazy.device_check import check_device

        result = check_device(seconds, lambda row: print_stderr(f"{row.case}: {'ok' if row.passed else 'FAILED'}"))
        if json is not None and str(json) == "-":
            typer.echo(result.to_json())
        else:
            typer.echo(str(result))
            if json is not None:
                json.write_text(result.to_json() + "\n", encoding="utf-8")
        raise typer.Exit(0 if result.passed else 1)
