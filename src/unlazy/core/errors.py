"""How unlazy says no: what was wrong, the value it got, what to do.

Misuse of a function raises `ValueError`. Things that go wrong outside the program (a store that cannot be
written, a file that is not ours) raise `UnlazyError`, which the command line prints as one sentence.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


class UnlazyError(Exception):
    """A failure with a sentence for the user; the command line prints it and exits non-zero."""


class UnlazyWarning(UserWarning):
    """Something was mended or could not be reached; the result says so too."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A clause that suggests what `name` may have meant: `; did you mean 'gelu'?` or the whole list."""
    options = sorted(allowed)
    close = get_close_matches(name, options, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {', '.join(options)}"


def check_positive_integer(what: str, value: object, remedy: str = "") -> int:
    """`value` as an int, or a ValueError that names it."""
    import operator

    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"{what} must be a positive whole number, got {value!r}{'; ' + remedy if remedy else ''}")
    return number


def check_positive(what: str) -> Callable[[Any], Any]:
    """A converter that lets positive numbers and any array through (traced values cannot be looked at)."""

    def convert(value: Any) -> Any:
        if isinstance(value, int | float) and not value > 0:
            raise ValueError(f"{what} must be positive, got {value!r}")
        return value

    return convert
