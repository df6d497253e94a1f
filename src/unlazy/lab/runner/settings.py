"""Which points a run asks for: a configuration, with some parameters set to other values; bad values say why."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from unlazy.core.errors import check_positive_integer, nearest
from unlazy.lab.experiment import Config, Experiment

MOST = 1_000_000
"""Seeds of one run: a sweep of more would not fit the memory of the process that plans it."""
_WHOLE = 2**63 - 1
"""What the machine's integers hold; nothing larger can reach an array."""


def choose(
    experiment: Experiment, config: str | Config = "quick", seeds: int | None = None,
    change: Mapping[str, Any] | None = None,
) -> Config:  # fmt: skip
    """The experiment's `quick` or `full` configuration, or one of your own, with changes and a number of seeds."""
    if isinstance(config, str):
        if config not in ("quick", "full"):
            raise ValueError(f"config must be 'quick', 'full' or a Config, got {config!r}")
        config = experiment.full if config == "full" else experiment.quick
    if change:
        for name in change:
            if name not in config.names():
                raise ValueError(f"{experiment.name} has no parameter {name!r}{nearest(name, config.names())}")
        config = config.with_values({k: _checked(experiment, k, _values(v)) for k, v in change.items()})
    if seeds is not None:
        config = replace(config, seeds=check_positive_integer("seeds", seeds))
    if config.seeds > MOST:
        raise ValueError(f"seeds must be at most {MOST:,}, got {_short(config.seeds)}")
    return config


def parse_changes(texts: Iterable[str]) -> dict[str, list]:
    """`["n=100,300", "method=ntk", "widths=[64,64],[128,128]"]` as values."""
    changes = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name.strip() and equals and values.strip()):
            raise ValueError(f"--set takes name=value or name=value,value, got {text!r}")
        changes[name.strip()] = _parse(values)
    return changes


def known_values(experiment: Experiment, name: str) -> list:
    """The values a parameter takes in `quick` and `full`, and its further choices."""
    found = list(experiment.choices.get(name, ()))
    for config in (experiment.quick, experiment.full):
        found += [config.fixed[name]] if name in config.fixed else []
        found += [value for grid in config.grids for value in grid.get(name, ())]
    return [v for i, v in enumerate(found) if v not in found[:i]]


def _checked(experiment: Experiment, name: str, values: list) -> list:
    known = known_values(experiment, name)
    if not values:
        raise ValueError(f"{name} needs at least one value")
    return [_like(name, value, known) for value in values]


def _like(name: str, value: Any, known: list) -> Any:
    """`value` in the type of the known ones; refused where their kind or sign says it makes no sense."""
    shown = ", ".join(map(repr, known))
    numbers = [k for k in known if isinstance(k, int | float | np.number) and not isinstance(k, bool)]
    if isinstance(value, list) and any(isinstance(k, tuple) for k in known):
        if not value:
            raise ValueError(f"{name} needs at least one entry, got []; it takes values like {shown}")
        entries = [entry for k in known if isinstance(k, tuple) for entry in k]
        return tuple(_like(name, entry, entries) for entry in value)
    if not known or any(type(value) is type(k) and value == k for k in known):
        return value
    if isinstance(value, str) and all(isinstance(k, str) for k in known):
        raise ValueError(f"{name} cannot be {value!r}{nearest(value, known)}")
    if isinstance(value, int | float | np.number) and not isinstance(value, bool) and numbers:
        return _like_numbers(name, value, numbers)
    if not any(type(value) is type(k) for k in known):
        raise ValueError(f"{name} cannot be {_short(value)}; it takes values like {shown}")
    return value


def _like_numbers(name: str, value: Any, known: list) -> Any:
    whole = all(isinstance(k, int | np.integer) for k in known)
    shown = ", ".join(map(repr, known))
    if abs(value) > _WHOLE and (isinstance(value, int) or (whole and abs(value) < np.inf)):
        raise ValueError(f"{name} must be below 2^63, got {_short(value)}; it takes values like {shown}")
    if not whole and not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}; it takes values like {shown}")
    if whole and not (np.isfinite(value) and value == int(value)):
        raise ValueError(f"{name} must be a whole number, got {value!r}; it takes values like {shown}")
    smallest = (1 if whole and min(known) >= 1 else 0) if min(known) >= 0 else -np.inf
    if value < smallest or value != value:
        raise ValueError(f"{name} must be at least {smallest}, got {value!r}; it takes values like {shown}")
    return int(value) if whole else float(value)


def _short(value: Any) -> str:
    """The value, or what can be said of it in little room."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _values(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple | range | np.ndarray) else [value]


def _parse(text: str) -> list:
    try:
        return json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return [_word(part.strip()) for part in text.split(",")]
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        raise ValueError(f"--set cannot read {text[:30]}… ({len(text)} characters): that is no setting") from None


def _word(text: str) -> Any:
    """A number, true, false or none; anything else is a word."""
    lowered = text.lower()
    if lowered in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(lowered)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
