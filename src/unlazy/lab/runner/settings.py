"""Resolution and validation of the configuration of a run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.lab.experiment import Config, Experiment

MAX_SEEDS = 1_000_000
"""Maximum number of seeds per run: more would not fit the memory of the process that plans the sweep."""
_MAX_INTEGER = 2**63 - 1
"""Largest int64; no array can contain a larger integer."""


def resolve_config(
    experiment: Experiment, config: str | Config = "quick", seeds: int | None = None,
    change: Mapping[str, object] | None = None,
) -> Config:  # fmt: skip
    """The `quick` or `full` configuration of an experiment, or a Config, with other values and number of seeds."""
    if isinstance(config, str):
        if config not in ("quick", "full"):
            raise ValueError(f"config must be 'quick', 'full' or a Config, got {config!r}")
        config = experiment.full if config == "full" else experiment.quick
    if change:
        for name in change:
            if name not in config.names():
                raise ValueError(f"{experiment.name} has no parameter {name!r}{did_you_mean(name, config.names())}")
        config = config.with_values({k: _checked(experiment, k, _values(v)) for k, v in change.items()})
    if seeds is not None:
        config = replace(config, seeds=check_positive_integer("seeds", seeds))
    if config.seeds > MAX_SEEDS:
        raise ValueError(f"seeds must be at most {MAX_SEEDS:,}, got {_short(config.seeds)}")
    return config


def parse_changes(texts: Iterable[str]) -> dict[str, list]:
    """Parse the values of `--set`, such as `["n=100,300", "method=ntk", "widths=[64,64],[128,128]"]`."""
    changes = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name.strip() and equals and values.strip()):
            raise ValueError(f"--set takes name=value or name=value,value, got {text!r}")
        changes[name.strip()] = _parse(values)
    return changes


def known_values(experiment: Experiment, name: str) -> list:
    """The values of a parameter in `quick` and `full`, and its further choices."""
    found = list(experiment.choices.get(name, ()))
    for config in (experiment.quick, experiment.full):
        found += [config.fixed[name]] if name in config.fixed else []
        found += [value for grid in config.grids for value in grid.get(name, ())]
    return [v for i, v in enumerate(found) if v not in found[:i]]


def _checked(experiment: Experiment, name: str, values: list) -> list:
    """The values in the types of the known ones; raise ValueError if one is invalid."""
    known = known_values(experiment, name)
    if not values:
        raise ValueError(f"{name} needs at least one value")
    return [_like(name, value, known) for value in values]


def _like(name: str, value: Any, known: list) -> Any:
    """`value` in the type of the known ones; raise ValueError if its type or sign does not match theirs."""
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
        raise ValueError(f"{name} cannot be {value!r}{did_you_mean(value, known)}")
    if isinstance(value, int | float | np.number) and not isinstance(value, bool) and numbers:
        return _like_numbers(name, value, numbers)
    if not any(type(value) is type(k) for k in known):
        raise ValueError(f"{name} cannot be {_short(value)}; it takes values like {shown}")
    return value


def _like_numbers(name: str, value: Any, known: list) -> Any:
    """A number in the type of the known ones; raise ValueError if it is out of range."""
    whole = all(isinstance(k, int | np.integer) for k in known)
    shown = ", ".join(map(repr, known))
    if abs(value) > _MAX_INTEGER and (isinstance(value, int) or (whole and abs(value) < np.inf)):
        raise ValueError(f"{name} must be below 2^63, got {_short(value)}; it takes values like {shown}")
    if not whole and not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}; it takes values like {shown}")
    if whole and not (np.isfinite(value) and value == int(value)):
        raise ValueError(f"{name} must be an integer, got {value!r}; it takes values like {shown}")
    smallest = (1 if whole and min(known) >= 1 else 0) if min(known) >= 0 else -np.inf
    if value < smallest or value != value:
        raise ValueError(f"{name} must be at least {smallest}, got {value!r}; it takes values like {shown}")
    return int(value) if whole else float(value)


def _short(value: Any) -> str:
    """The value, abbreviated if it is long."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _values(value: Any) -> list:
    """A list of values, from a sequence or one value."""
    return list(value) if isinstance(value, list | tuple | range | np.ndarray) else [value]


def _parse(text: str) -> list:
    """Values separated by commas, as JSON if possible."""
    try:
        return json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return [_parse_value(part.strip()) for part in text.split(",")]
    except (ValueError, RecursionError):  # thousands of digits or brackets
        raise ValueError(f"--set cannot parse {text[:30]}… ({len(text)} characters)") from None


def _parse_value(text: str) -> Any:
    """A number, true, false or none; anything else is a string."""
    lowered = text.lower()
    if lowered in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(lowered)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
