"""Error reporting of the command line: one line on standard error and an exit code."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from unlazy.core.errors import UnlazyError, UnlazyWarning


def print_stderr(text: str) -> None:
    """Print one line on standard error."""
    typer.echo(text, err=True)


@contextmanager
def report_errors() -> Iterator[None]:
    """Print exceptions (with a line for each problem) and warnings; exit with code 2, or 130 after an interrupt."""
    usual = warnings.showwarning

    def one_line(message, category, *rest, **more):  # type: ignore[no-untyped-def]
        if issubclass(category, UnlazyWarning):
            print_stderr(f"note: {message}")
        else:
            usual(message, category, *rest, **more)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line
            yield
    except (UnlazyError, ValueError) as error:
        lines = [" ".join(line.split()) for line in str(error).splitlines()]
        print_stderr("unlazy: " + "\n  ".join(lines))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as error:
        print_stderr(f"unlazy: {error or 'interrupted'}")
        raise typer.Exit(130) from None
