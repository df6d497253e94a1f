"""The `unlazy play` command: write and open the interactive page."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import report_errors

app = typer.Typer()


@app.command()
def play(
    out: Annotated[
        Path | None, typer.Option(help="File to write (default: a temporary file, opened in a browser).")
    ] = None,
) -> None:
    """Write an interactive page: training of a kernel machine, lazy and rich networks, sample complexity."""
    with report_errors():
        import webbrowser

        from unlazy.lab.play.page import write_play

        page = write_play(out or Path(tempfile.mkdtemp(prefix="unlazy-")) / "play.html")
        typer.echo(f"Page: {page}")
        if out is None and not webbrowser.open(page.resolve().as_uri()):
            typer.echo("No browser found: open the file in a browser.")
