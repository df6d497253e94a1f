"""The table of methods, and how words and keywords of `solve` become one of them."""

import dataclasses
from typing import Any

from unlazy.core.errors import nearest
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


def check_method(method: Any, options: dict[str, Any]) -> None:
    """A ValueError for what is no method, and for options given beside a method that carries its own."""
    if isinstance(method, type) and issubclass(method, Method):
        raise ValueError(f"method takes a value, not a class: {method.__name__}() with its options in the brackets")
    if isinstance(method, Method):
        if options:
            name = next(iter(options))
            raise ValueError(f"{name} belongs into the method: method={type(method).__name__}({name}=…)")
    elif method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}{nearest(str(method), METHODS)}")


def made(name: str, options: dict[str, Any]) -> Method:
    """The method of this name with these options."""
    kind = METHODS[name]
    for option in options:
        owners = [repr(word) for word, other in METHODS.items() if option in _fields(other)]
        if option not in _fields(kind):
            verb = "belong to method" if option.endswith("s") else "belongs to method"
            named = " and ".join(filter(None, (", ".join(owners[:-1]), owners[-1])))
            raise ValueError(f"{option} {verb} {named}, not to {name!r}")
    return kind(**options)


def _fields(kind: type[Method]) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}
