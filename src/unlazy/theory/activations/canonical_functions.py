"""Canonical functions: functions of the same code and the same constants become one object, so that jit compiles once.

jit caches one program per function object, and `lambda x: x * jnp.tanh(x)` in a loop creates a new object each time. A
function can be made canonical if everything it refers to besides its argument is constant: its code; plain numbers in
its closure, defaults and globals; names from jax, numpy and math. It is then rebuilt once with exactly those values,
and all equal functions map to that object. A function that refers to anything else is returned unchanged.
"""

import builtins
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARIES = ("jax", "numpy", "math", "functools")


class _NotConstant(Exception):
    """The function refers to something that may change."""


def canonical_function(function: Callable) -> Callable:
    """The canonical object for all functions of this code and these constants; other functions are returned unchanged.

    Constants are captured at the time of the call: a name that is rebound later does not affect the canonical function.
    """
    try:
        if isinstance(function, functools.partial):
            inner = canonical_function(function.func)
            arguments = tuple(_value(v) for v in function.args)
            return _partial(inner, arguments, tuple((k, _value(v)) for k, v in function.keywords.items()))
        if isinstance(function, types.FunctionType) and not _is_library(function.__module__):
            return _rebuild(function.__code__, *_constants(function))
    except _NotConstant:
        pass
    return function


def _value(value: Any) -> tuple[Any, ...]:
    """A hashable key for a constant and the constant: 1, 1.0 and True are equal in Python, and so are 0.0 and -0.0."""
    if value is None or type(value) in (bool, int, float, complex, str):
        return type(value), repr(value), value
    if isinstance(value, types.ModuleType) and _is_library(value.__name__):
        return types.ModuleType, id(value), value
    if callable(value) and _is_library(getattr(value, "__module__", None)):
        return Callable, id(value), value
    raise _NotConstant


def _is_library(name: object) -> bool:
    return isinstance(name, str) and name.split(".")[0] in _LIBRARIES


def _constants(function: types.FunctionType) -> tuple[tuple, ...]:
    """Keys and values of the closure, defaults and globals of a function."""
    try:
        cells = tuple(_value(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError as empty:  # a name that is not bound yet
        raise _NotConstant from empty
    defaults = tuple(_value(v) for v in function.__defaults__ or ())
    keywords = tuple((k, _value(v)) for k, v in (function.__kwdefaults__ or {}).items())
    names = sorted(set(_names(function.__code__)))
    # co_names includes attribute names; one that happens to be a global is frozen needlessly, which is harmless
    found = tuple((n, _value(function.__globals__[n])) for n in names if n in function.__globals__)
    return cells, defaults, keywords, found


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that the code looks up, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@functools.lru_cache(maxsize=512)
def _rebuild(code: types.CodeType, cells: tuple, defaults: tuple, keywords: tuple, names: tuple) -> Callable:
    """A function of this code with these constants."""
    scope = {name: value[-1] for name, value in names} | {"__builtins__": builtins}
    closure = tuple(types.CellType(value[-1]) for value in cells)
    made = types.FunctionType(code, scope, code.co_name, tuple(v[-1] for v in defaults) or None, closure)
    made.__kwdefaults__ = {name: value[-1] for name, value in keywords} or None
    return made


@functools.lru_cache(maxsize=512)
def _partial(function: Callable, arguments: tuple, keywords: tuple) -> Callable:
    """A partial function of these constants."""
    return functools.partial(function, *(v[-1] for v in arguments), **{name: value[-1] for name, value in keywords})
