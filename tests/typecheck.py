"""The run-time type checker of the tests: beartype, with an int accepted where a float is asked for (PEP 484).

A checker is built at the first call of its function, and the first calls in each test module are checked: building one
takes milliseconds, most functions are called in few processes, and later calls repeat what the first ones showed.
Functions defined inside functions are new ones at every call; their first definitions are checked.
"""

import functools
import inspect
from collections import Counter

import jaxtyping
from beartype import BeartypeConf, beartype

CALLS, DEFINITIONS = 4, 2
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped
_calls, _definitions = Counter(), Counter()


def new_module():
    """The next calls of every function are checked again."""
    _calls.clear()


def jaxtyped(function=None, *, typechecker):
    """`jaxtyping.jaxtyped`, from the first call on."""
    if function is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not inspect.isfunction(function):
        return _jaxtyped(function, typechecker=typechecker)
    code = function.__code__
    if "<locals>" in function.__qualname__:
        _definitions[code] += 1
        if _definitions[code] > DEFINITIONS:
            return function
    checked = None

    @functools.wraps(function)
    def first_calls(*args, **kwargs):
        nonlocal checked
        __tracebackhide__ = True
        if _calls[code] >= CALLS:
            return function(*args, **kwargs)
        _calls[code] += 1
        if checked is None:
            checked = _jaxtyped(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return first_calls


jaxtyping.jaxtyped = jaxtyped
