"""Functions as values: two of the same code and the same constants are one object, so that programs are compiled once.

jit keeps a program per function object, and `lambda x: x * jnp.tanh(x)` written in a loop is a new object each time. A
function is *settled* when all it can see besides its argument is known: its code, plain numbers in its closure,
defaults and globals, and names of jax, numpy and math. It is then rebuilt with exactly those values, once, and every
equal function is that one object. A function that sees anything else is left as it is and equals only itself.
"""

import builtins
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARIES = ("jax", "numpy", "math", "functools")


class _Unsettled(Exception):
    """The function sees something that may change."""


def settled(function: Callable) -> Callable:
    """The one object that stands for all functions of this code and these constants; others come back unchanged.

    Values are those at the time of the call: a name that is bound anew later does not reach the settled function.
    """
    try:
        if isinstance(function, functools.partial):
            inner = settled(function.func)
            arguments = tuple(_value(v) for v in function.args)
            return _partial(inner, arguments, tuple((k, _value(v)) for k, v in function.keywords.items()))
        if isinstance(function, types.FunctionType) and not _is_library(function.__module__):
            return _rebuilt(function.__code__, *_seen(function))
    except _Unsettled:
        pass
    return function


def _value(value: Any) -> tuple[Any, ...]:
    """A constant with what tells it from others: 1, 1.0 and True are equal in Python, and so are 0.0 and -0.0."""
    if value is None or type(value) in (bool, int, float, complex, str):
        return type(value), repr(value), value
    if isinstance(value, types.ModuleType) and _is_library(value.__name__):
        return types.ModuleType, id(value), value
    if callable(value) and _is_library(getattr(value, "__module__", None)):
        return Callable, id(value), value
    raise _Unsettled


def _is_library(name: object) -> bool:
    return isinstance(name, str) and name.split(".")[0] in _LIBRARIES


def _seen(function: types.FunctionType) -> tuple[tuple, ...]:
    """Closure, defaults and globals of a function, each by its value."""
    try:
        cells = tuple(_value(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError as empty:  # a name that is not yet bound
        raise _Unsettled from empty
    defaults = tuple(_value(v) for v in function.__defaults__ or ())
    keywords = tuple((k, _value(v)) for k, v in (function.__kwdefaults__ or {}).items())
    names = sorted(set(_names(function.__code__)))
    # attributes are among the names too: one that happens to be a global is then frozen for nothing
    found = tuple((n, _value(function.__globals__[n])) for n in names if n in function.__globals__)
    return cells, defaults, keywords, found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@functools.lru_cache(maxsize=512)
def _rebuilt(code: types.CodeType, cells: tuple, defaults: tuple, keywords: tuple, names: tuple) -> Callable:
    scope = {name: value[-1] for name, value in names} | {"__builtins__": builtins}
    closure = tuple(types.CellType(value[-1]) for value in cells)
    made = types.FunctionType(code, scope, code.co_name, tuple(v[-1] for v in defaults) or None, closure)
    made.__kwdefaults__ = {name: value[-1] for name, value in keywords} or None
    return made


@functools.lru_cache(maxsize=512)
def _partial(function: Callable, arguments: tuple, keywords: tuple) -> Callable:
    return functools.partial(function, *(v[-1] for v in arguments), **{name: value[-1] for name, value in keywords})
