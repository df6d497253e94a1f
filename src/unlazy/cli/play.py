"""The page to play with, from the command line."""

from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import plainly

app = typer.Typer()


@app.command()
def play(
    out: Annotated[Path | None, typer.Option(help="The file to write (default: a temporary one, opened).")] = None,
) -> None:
    """A page to play with: a kernel machine in training, a network that leaves its kernel, what samples buy."""
    with plainly():
        import tempfile
        import webbrowser

        from unlazy.lab.play.page import write_play

        page = write_play(out or Path(tempfile.mkdtemp(prefix="unlazy-")) / "play.html")
        typer.echo(f"The page: {page}")
        if out is None and not webbrowser.open(page.resolve().as_uri()):
            typer.echo("No browser was found here: open the file in one.")
