"""Lookup of experiments: the modules of `unlazy.lab.experiments` that define `experiment`, and user-defined ones."""

import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from unlazy.core.errors import did_you_mean
from unlazy.lab.experiment import Experiment

_PACKAGE = "unlazy.lab.experiments"


def all_experiments() -> list[Experiment]:
    """All experiments of the package, sorted by source and name.

    Returns
    -------
    list of Experiment
        The experiments.

    Examples
    --------
    >>> from unlazy import lab
    >>> "information_exponent" in [experiment.name for experiment in lab.all_experiments()]
    True
    """
    found = [e for e in map(_experiment_of, _modules()) if e is not None]
    return sorted(found, key=lambda e: (e.source == "general", e.source, e.name))


def find(name: str) -> Experiment:
    """Find an experiment by name.

    Parameters
    ----------
    name : str
        Name of an experiment of the package, or `module:attribute` for a user-defined one.

    Returns
    -------
    Experiment
        The experiment.

    Raises
    ------
    ValueError
        If there is no such experiment.

    Examples
    --------
    >>> from unlazy import lab
    >>> experiment = lab.find("information_exponent")
    >>> experiment.name, experiment.quick.seeds
    ('information_exponent', 128)
    """
    if ":" in name:
        return _at(name)
    experiment = _experiment_of(name) if name in _modules() else None
    if experiment is not None and experiment.name == name:
        return experiment
    known = {e.name: e for e in all_experiments()}
    if name not in known:
        raise ValueError(f"no experiment {name!r}{did_you_mean(name, known)}" if known else f"no experiment {name!r}")
    return known[name]


def _modules() -> list[str]:
    """Names of the public modules of `unlazy.lab.experiments`."""
    package = import_module(_PACKAGE)
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]


def _experiment_of(module: str) -> Experiment | None:
    """The experiment that a module of the package defines."""
    found = getattr(import_module(f"{_PACKAGE}.{module}"), "experiment", None)
    return found if isinstance(found, Experiment) else None


def own_experiments(identities: Iterable[str]) -> tuple[list[Experiment], list[str]]:
    """User-defined experiments from the identities of stored trials.

    Parameters
    ----------
    identities : iterable of str
        Identities as `module:name`; others are skipped.

    Returns
    -------
    experiments : list of Experiment
        The experiments.
    missing : list of str
        A message for each experiment that could not be imported.

    Examples
    --------
    >>> from unlazy import lab
    >>> experiments, missing = lab.own_experiments(["absent_module:my_experiment"])
    >>> len(experiments), missing
    (0, ["no experiment 'absent_module:my_experiment': No module named 'absent_module'"])
    """
    found, missing = [], []
    for identity in identities:
        module, colon, _ = identity.partition(":")
        if not colon:
            continue  # part of the package, or stored by the first release, which did not record the module
        try:
            values = list(vars(_module(module, identity)).values())
        except ValueError as error:
            missing.append(str(error))
            continue
        mine = [v for v in values if isinstance(v, Experiment) and v.identity == identity]
        found += mine[:1]
        if not mine:
            missing.append(f"{identity!r} has stored trials, but {module} no longer defines it")
    return found, missing


def _at(reference: str) -> Experiment:
    """The experiment at `module:attribute`."""
    module, _, attribute = reference.partition(":")
    found = getattr(_module(module, reference), attribute or "experiment", None)
    if not isinstance(found, Experiment):
        raise ValueError(f"{reference!r} is not an Experiment; specify one as module:attribute")
    return found


def _module(name: str, reference: str) -> ModuleType:
    """Import a module, also from the working folder, which is searched last so that it shadows no installed package."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"no experiment {reference!r}: {name!r} is not a module name")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # not removed again: worker processes import the trial from there too
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may do anything when it is imported
        why = str(error) if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"no experiment {reference!r}: {why}") from error
    mine = Path(folder, *name.split(".")).with_suffix(".py")
    if mine.exists() and not (getattr(module, "__file__", None) and mine.samefile(module.__file__ or "")):
        where = getattr(module, "__file__", None) or "a built-in module"
        raise ValueError(f"no experiment {reference!r}: {mine.name} in this folder is shadowed by {where}; rename it")
    return module
