"""Exceptions, warnings and argument checks.

Messages state what was wrong, the value received and what to do. Misuse of a function raises `ValueError`. External
failures (a store that cannot be written, a file of another format) raise `UnlazyError`, which the command line prints
as one line.
"""

import operator
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


class UnlazyError(Exception):
    """An external failure, with a message for the user; the command line prints it and exits with code 2."""


class UnlazyWarning(UserWarning):
    """Something was corrected automatically or could not be achieved; the result reports it too."""


MAX_LISTED = 60
"""Maximum number of allowed names listed in an error message."""


def join_names(names: Iterable[object], most: int = 12) -> str:
    """The first `most` names, joined by commas, and the number of the remaining ones."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Suggestion for a misspelled name: `; did you mean 'gelu'?`, or the list of allowed names."""
    options = sorted(allowed)
    close = get_close_matches(name, options, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {join_names(options, MAX_LISTED)}"


def check_positive_integer(what: str, value: object, remedy: str = "") -> int:
    """`value` as an int; raise ValueError if it is not a positive integer."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"{what} must be a positive integer, got {value!r}{'; ' + remedy if remedy else ''}")
    return number


def check_positive(what: str, several: bool = False) -> Callable[[Any], Any]:
    """A field converter that raises ValueError unless the value is positive. Traced values are not checked.

    With `several`, a vector (one value per coordinate) is accepted as well as a scalar.
    """
    return lambda value: _checked_parameter(what, value, "positive", several)


def check_non_negative(what: str) -> Callable[[Any], Any]:
    """A field converter that raises ValueError unless the value is a non-negative scalar."""
    return lambda value: _checked_parameter(what, value, "non-negative", False)


def _checked_parameter(what: str, value: Any, wanted: str, several: bool) -> Any:
    """The value (lists as NumPy arrays); raise ValueError if its type, shape or sign is wrong."""
    import jax
    import numpy as np

    if isinstance(value, jax.core.Tracer):
        return value
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype.kind == "V") or array.dtype.kind == "c":
        raise ValueError(f"{what} must be a {wanted} number, got {value!r}")
    if array.ndim > (1 if several else 0):
        shape = "a scalar or a vector" if several else "a scalar"
        raise ValueError(f"{what} must be {shape}, got shape {array.shape}")
    valid = array > 0 if wanted == "positive" else array >= 0
    if not valid.all():  # also if NaN
        shown = value if array.ndim == 0 else array[~valid][0]
        why = "" if wanted == "positive" else "; for negative values the kernel is not positive semidefinite"
        raise ValueError(f"{what} must be {wanted}, got {shown!r}{why}")
    return value
