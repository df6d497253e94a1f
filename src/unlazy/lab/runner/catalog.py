"""Which experiments there are: every module of `unlazy.lab.experiments` that has an `experiment`, and those of your
own."""

import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from unlazy.core.errors import nearest
from unlazy.lab.experiment import Experiment

_PACKAGE = "unlazy.lab.experiments"


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


def own_experiments(identities: Iterable[str]) -> tuple[list[Experiment], list[str]]:
    """Experiments that were stored as `module:name`, and a sentence for each that cannot be found again."""
    found, missing = [], []
    for identity in identities:
        module, colon, _ = identity.partition(":")
        if not colon:
            continue  # one of the package's, or of a first release, which did not say where it came from
        try:
            values = list(vars(_module(module, identity)).values())
        except ValueError as error:
            missing.append(str(error))
            continue
        mine = [v for v in values if isinstance(v, Experiment) and v.identity == identity]
        found += mine[:1]
        if not mine:
            missing.append(f"{identity!r} has stored trials, but {module} has no such experiment any more")
    return found, missing


def _at(reference: str) -> Experiment:
    module, _, attribute = reference.partition(":")
    found = getattr(_module(module, reference), attribute or "experiment", None)
    if not isinstance(found, Experiment):
        raise ValueError(f"{reference!r} is not an Experiment; name one as module:attribute")
    return found


def _module(name: str, reference: str) -> ModuleType:
    """Import a module, also from the working folder, which comes last: nothing in it hides an installed package."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"no experiment {reference!r}: {name!r} is not the name of a module")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # for good: worker processes look for the trial there too
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:  # whatever a module of the user's does when it is imported
        why = str(error) if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"no experiment {reference!r}: {why}") from error
    mine = Path(folder, *name.split(".")).with_suffix(".py")
    if mine.exists() and not (getattr(module, "__file__", None) and mine.samefile(module.__file__ or "")):
        where = getattr(module, "__file__", None) or "Python itself"
        raise ValueError(f"no experiment {reference!r}: {mine.name} of this folder is hidden by {where}; rename it")
    return module
