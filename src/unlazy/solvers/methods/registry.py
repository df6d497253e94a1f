"""Registry of the methods, and construction of a method from the keyword arguments of `solve`."""

import dataclasses
from typing import Any

from unlazy.core.errors import did_you_mean
from unlazy.solvers.methods.askotch import Askotch
from unlazy.solvers.methods.base import Method
from unlazy.solvers.methods.direct import Direct
from unlazy.solvers.methods.eigenpro import EigenPro
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.methods.preconditioned_cg import PreconditionedCG
from unlazy.solvers.methods.richardson import Richardson

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Direct, PreconditionedCG, NystromCG, Askotch, EigenPro, Richardson)
}
"""Methods of `solve` by name."""


def validate_method(method: Any, options: dict[str, Any]) -> None:
    """Raise ValueError for an unknown method, or for options given next to a method that has its own."""
    if isinstance(method, type) and issubclass(method, Method):
        raise ValueError(f"method must be a value, not a class: {method.__name__}() with its options as arguments")
    if isinstance(method, Method):
        if options:
            name = next(iter(options))
            raise ValueError(f"pass {name} to the method: method={type(method).__name__}({name}=…)")
    elif method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}{did_you_mean(str(method), METHODS)}")


def make_method(name: str, options: dict[str, Any]) -> Method:
    """Create the method of this name with these options; raise ValueError for options of other methods."""
    kind = METHODS[name]
    for option in options:
        owners = [repr(word) for word, other in METHODS.items() if option in _fields(other)]
        if option not in _fields(kind):
            verb = "belong to method" if option.endswith("s") else "belongs to method"
            named = " and ".join(filter(None, (", ".join(owners[:-1]), owners[-1])))
            raise ValueError(f"{option} {verb} {named}, not to {name!r}")
    return kind(**options)


def _fields(kind: type[Method]) -> set[str]:
    """Names of the options of a method."""
    return {f.name for f in dataclasses.fields(kind)}
