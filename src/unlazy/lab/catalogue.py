"""Which experiments there are: every module of `unlazy.experiments` that has an `experiment`."""

import pkgutil
from importlib import import_module

from unlazy.core.errors import nearest
from unlazy.core.experiment import Experiment

_PACKAGE = "unlazy.experiments"


def all_experiments() -> list[Experiment]:
    """Every experiment of the package, by source talk and name."""
    found = [e for e in map(_experiment_of, _modules()) if e is not None]
    return sorted(found, key=lambda e: (e.source == "general", e.source, e.name))


def find(name: str) -> Experiment:
    """The experiment of this name, or the one at `module:attribute`."""
    if ":" in name:
        return _at(name)
    experiment = _experiment_of(name) if name in _modules() else None
    if experiment is not None and experiment.name == name:
        return experiment
    known = {e.name: e for e in all_experiments()}
    if name not in known:
        raise ValueError(f"no experiment {name!r}{nearest(name, known)}" if known else f"no experiment {name!r}")
    return known[name]


def _modules() -> list[str]:
    package = import_module(_PACKAGE)
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]


def _experiment_of(module: str) -> Experiment | None:
    found = getattr(import_module(f"{_PACKAGE}.{module}"), "experiment", None)
    return found if isinstance(found, Experiment) else None


def _at(reference: str) -> Experiment:
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(import_module(module), attribute or "experiment", None)
    except ModuleNotFoundError as error:
        raise ValueError(f"no experiment {reference!r}: {error}") from error
    if not isinstance(found, Experiment):
        raise ValueError(f"{reference!r} is not an Experiment; name one as module:attribute")
    return found
