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


LISTED = 60
"""Names in a list of what may be chosen: of more the reader sees none."""


def listed(names: Iterable[object], most: int = 12) -> str:
    """The first of these names, and how many more there are."""
    said = [str(name) for name in names]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A clause that suggests what `name` may have meant: `; did you mean 'gelu'?` or what there is."""
    options = sorted(allowed)
    close = get_close_matches(name, options, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {listed(options, LISTED)}"


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


def check_positive(what: str, several: bool = False) -> Callable[[Any], Any]:
    """A converter that lets positive numbers through, also as arrays; traced values cannot be looked at.

    `several` numbers (one per coordinate) or one.
    """
    return lambda value: _checked_parameter(what, value, "positive", several)


def check_not_negative(what: str) -> Callable[[Any], Any]:
    """The same for one number of at least zero."""
    return lambda value: _checked_parameter(what, value, "zero or more", False)


def _checked_parameter(what: str, value: Any, wanted: str, several: bool) -> Any:
    import jax
    import numpy as np

    if isinstance(value, jax.core.Tracer):
        return value
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype.kind == "V") or array.dtype.kind == "c":
        raise ValueError(f"{what} must be a number, {wanted}, got {value!r}")
    if array.ndim > (1 if several else 0):
        remedy = "a row of numbers" if several else "one number"
        raise ValueError(f"{what} must be {remedy}, got shape {array.shape}")
    right = array > 0 if wanted == "positive" else array >= 0
    if not right.all():  # false for NaN too
        shown = value if array.ndim == 0 else array[~right][0]
        why = "" if wanted == "positive" else "; below zero the kernel is not positive"
        raise ValueError(f"{what} must be {wanted}, got {shown!r}{why}")
    return value
