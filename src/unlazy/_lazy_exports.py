"""Names of a package that are imported when first used (PEP 562), so that importing the package stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in these modules.

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    where : mapping from str to str
        Full module path of every exported name.

    Returns
    -------
    tuple of callable
        To be assigned to ``__getattr__`` and ``__dir__``.
    """

    def get(name: str) -> Any:
        if name not in where:
            from unlazy.core.errors import did_you_mean

            raise AttributeError(f"{package} has no {name!r}{did_you_mean(name, where)}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(where)
