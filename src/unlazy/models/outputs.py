"""Which of the values that a network returns are its outputs."""

import dataclasses
from collections.abc import Callable, Mapping

from unlazy.models.protocol import OutputFunction

PREFERRED = "logits"
"""Name under which networks return their outputs, if they return several values by name."""


def select_output(
    value: object, output: OutputFunction | None, is_array: Callable[[object], bool], name: str
) -> object:
    """The array of outputs: what `output` makes of the value, or the only array in it, or its entry "logits".

    Raises
    ------
    ValueError
        If the choice is not clear, with what to pass.
    """
    if output is not None:
        chosen = output(value)
        if not is_array(chosen):
            raise ValueError(f"output must return one array, got {type(chosen).__name__} for the outputs of {name}")
        return chosen
    if is_array(value):
        return value
    named = _named_entries(value)
    if PREFERRED in named and is_array(named[PREFERRED]):
        return named[PREFERRED]
    arrays = [part for part in named.values() if is_array(part)]
    if len(arrays) == 1 and len(named) == 1:
        return arrays[0]
    example = f"output=lambda out: out[{next(iter(named))!r}]" if named else "output=lambda out: ..."
    if named and not isinstance(value, Mapping | list | tuple):
        example = f"output=lambda out: out.{next(iter(named))}"
    contents = f" with {', '.join(map(str, named))}" if named and not isinstance(value, list | tuple) else ""
    raise ValueError(
        f"{name} returns a {type(value).__name__}{contents}: say which array is its output, for example {example}"
    )


def _named_entries(value: object) -> dict:
    """Entries of a mapping, data class or sequence, by key, field or position."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return {}
