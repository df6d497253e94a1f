"""Command-line interface: experiments, tables (compare, fit, predict), training runs, and the check of a machine."""

import time

import typer

from unlazy._version import VERSION
from unlazy.cli import check, experiments, play, scaling, table_commands, watch

app = typer.Typer(
    name="unlazy", no_args_is_help=True, pretty_exceptions_enable=False,
    help="Kernels, infinitely wide networks and feature learning: theory compared with measurement.",
)  # fmt: skip
app.add_typer(experiments.app)
app.add_typer(table_commands.app)
app.add_typer(play.app)
app.add_typer(watch.app)
app.add_typer(scaling.app)
app.add_typer(check.app)


def _print_version(requested: bool) -> bool:
    """Print the version and exit if requested."""
    if requested:
        typer.echo(f"unlazy {VERSION}")
        raise typer.Exit
    return requested


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the `unlazy` command."""
    table_commands.began = time.monotonic() - time.process_time()  # the time budget includes startup and imports
    app()
