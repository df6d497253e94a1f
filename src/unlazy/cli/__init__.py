"""The command line: theorems confronted with measurements, and a user's table with both, one command away."""

import time

import typer

from unlazy._version import VERSION
from unlazy.cli import experiments, play, tables

app = typer.Typer(
    name="unlazy", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Kernels, infinitely wide networks and the feature learning beyond them: theory against measurement.",
)  # fmt: skip
app.add_typer(experiments.app)
app.add_typer(tables.app)
app.add_typer(play.app)


def _say_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"unlazy {VERSION}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_say_version, is_eager=True, help="Say it and leave."),
) -> None:
    pass


def main() -> None:
    """The `unlazy` command."""
    tables.began = time.monotonic() - time.process_time()  # what Python and imports took until here counts too
    app()
