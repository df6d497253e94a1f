"""Table of the classes that a saved file may contain: name → module.

Nothing else is ever constructed, except custom kernels that the current program registered.
"""

import dataclasses
from importlib import import_module
from typing import TypeVar

import equinox as eqx

from unlazy.estimators.persistence.classes import COMPANIONS, DERIVED, ESTIMATORS, MODULES

T = TypeVar("T")

_REGISTERED: dict[str, type] = {}
"""Custom kernel classes by the name used in files."""


class Unregistered(LookupError):
    """The file holds a class that is not registered."""


def register(kind: T, name: str | None = None) -> T:
    """Register a custom kernel class, so that estimators with it can be saved and loaded.

    Files hold the name and the fields of the kernel; the program provides its code. The program that loads the file
    must register the class as well, before calling `load`. Can be used as a decorator.

    Parameters
    ----------
    kind : type
        The kernel class, a subclass of one of the kernel base classes of unlazy.
    name : str, optional
        Name used in files. Default: the name of the class.

    Returns
    -------
    type
        The class itself.

    Raises
    ------
    ValueError
        If `kind` is not a kernel class, or the name is already used by another class.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.estimators import register
    >>> from unlazy.kernels import InnerProductKernel
    >>> @register
    ... class Exponential(InnerProductKernel):
    ...     scale: float
    ...
    ...     def entry(self, xz, xx, zz):
    ...         return jnp.exp(xz / self.scale)
    >>> Exponential(2.0).gram(jnp.eye(2)).shape
    (2, 2)
    """
    if not (isinstance(kind, type) and issubclass(kind, eqx.Module)):
        raise ValueError(f"only a kernel class, a subclass of a kernel of unlazy, can be registered, got {kind!r}")
    name = kind.__name__ if name is None else name
    for taken in (MODULES, ESTIMATORS, COMPANIONS):
        if name in taken:
            raise ValueError(f"the name {name!r} is already used for the class in {taken[name]}; pass another name=")
    before = _REGISTERED.get(name)
    if before is not None and (before.__module__, before.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(f"{before!r} is already registered as {name!r}; register {kind!r} with another name=")
    _REGISTERED[name] = kind  # a class that is defined again, as in a notebook, replaces itself
    return kind


def module_named(name: str) -> type:
    """Return the class of a kernel or network in a file; raise Unregistered if it is unknown."""
    if name in MODULES:
        return class_named(name, MODULES)
    if name not in _REGISTERED:
        raise Unregistered(
            f"it holds a {name!r}, which is not a class of unlazy: import the class and call "
            f"unlazy.estimators.register on it before load"
        )
    return _REGISTERED[name]


def module_name(value: object) -> str | None:
    """Return the name used in files for the class of a kernel or network; None if it cannot be saved."""
    own = [name for name, kind in _REGISTERED.items() if type(value) is kind]
    return own[0] if own else name_of(value, MODULES)


def saved_fields(value: eqx.Module, name: str) -> list[str]:
    """Fields that are saved: those that the constructor takes."""
    return [f.name for f in dataclasses.fields(value) if f.init and f.name not in DERIVED.get(name, ())]


def class_named(name: str, table: dict[str, str]) -> type:
    """Return the class of this name; raise KeyError if it is not in the table."""
    return getattr(import_module(table[name]), name)


def name_of(value: object, table: dict[str, str]) -> str | None:
    """Return the registered name of the class of a value; None if it is another class with the same name."""
    kind = type(value)
    module = table.get(kind.__name__)
    if module is None or not (kind.__module__ == module or kind.__module__.startswith(module + ".")):
        return None
    return kind.__name__
