"""How the command line speaks: one sentence on standard error, and an exit code that says the same."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer


def say(text: str) -> None:
    """On standard error."""
    typer.echo(text, err=True)


@contextmanager
def plainly() -> Iterator[None]:
    """Failures and warnings in one sentence; the exit code says which: 2 could not run, 130 interrupted."""
    from unlazy.core.errors import UnlazyError, UnlazyWarning

    usual = warnings.showwarning

    def one_line(message, category, *rest, **more):  # type: ignore[no-untyped-def]
        if issubclass(category, UnlazyWarning):
            say(f"note: {message}")
        else:
            usual(message, category, *rest, **more)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line
            yield
    except (UnlazyError, ValueError) as error:
        say(f"unlazy: {' '.join(str(error).split())}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt as error:
        say(f"unlazy: {error or 'stopped'}")
        raise typer.Exit(130) from None
