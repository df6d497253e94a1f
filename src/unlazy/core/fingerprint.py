"""Content hash of a value: arrays are hashed by their bytes, functions by name or by code.

The repr of a kernel abbreviates its arrays, so two different metrics may have the same repr; a checkpoint or a store
that compared reprs could confuse two problems. Hashes agree between processes and machines, but not between versions
of Python for functions that cannot be imported by name.
"""

import dataclasses
import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

FIRST_NAMES = {
    "unlazy.kernels.networks.adaptive": "unlazy.kernels.adaptive",
    "unlazy.kernels.networks.flips": "unlazy.kernels.flips",
    "unlazy.kernels.networks.infinite_width": "unlazy.kernels.infinite_width",
    "unlazy.kernels.networks.layered": "unlazy.kernels.layered",
    "unlazy.kernels.networks.tangent": "unlazy.kernels.tangent",
    "unlazy.kernels.networks.two_layer": "unlazy.kernels.empirical",
    "unlazy.layers.activation": "unlazy.core.layers.shaping",
    "unlazy.layers.attention": "unlazy.core.layers.attention",
    "unlazy.layers.combine": "unlazy.core.layers.combine",
    "unlazy.layers.conv": "unlazy.core.layers.weights",
    "unlazy.layers.dense": "unlazy.core.layers.weights",
    "unlazy.layers.finite_network": "unlazy.networks.finite.network",
    "unlazy.layers.graph": "unlazy.core.layers.attention",
    "unlazy.layers.normalization": "unlazy.core.layers.shaping",
    "unlazy.layers.pooling": "unlazy.core.layers.shaping",
    # glossary: off
    "unlazy.layers.protocol.parametrization.WeightBias": "unlazy.networks.parametrisation.Layer",
    # glossary: on
    "unlazy.layers.reshaping": "unlazy.core.layers.shaping",
    "unlazy.theory.activations.functions.ActivationFunction": "unlazy.core.activations.Activation",
    "unlazy.theory.activations.functions": "unlazy.core.activations",
    "unlazy.theory.infinite_width.architecture": "unlazy.core.architecture",
}
"""Where the classes of stored problems were first defined: hashes use that name, so that older stores stay valid."""

FIRST_FIELDS = {"unlazy.kernels.radial.Matern": ("smoothness", "bandwidth")}
"""Fields in their first order, for classes whose order has changed since."""


def fingerprint(*values: object) -> str:
    """SHA-256 of any nesting of arrays, numbers, strings, containers, dataclasses (kernels, networks) and functions.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.core.fingerprint import fingerprint
    >>> fingerprint(np.zeros(3)) == fingerprint(np.zeros(3)), fingerprint(np.zeros(3)) == fingerprint(np.zeros(4))
    (True, False)
    """
    total = hashlib.sha256()
    for value in values:
        _add(total, value, ())
    return total.hexdigest()


def _add(total: Any, value: Any, seen: tuple[int, ...]) -> None:
    """Hash one value; each part is prefixed by its type and size, so that different nestings give different bytes."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
        _text(total, f"{type(value).__name__} {value!r}")
    elif isinstance(value, np.ndarray) or hasattr(value, "__jax_array__") or _is_jax(value):
        _array(total, value, seen)
    elif isinstance(value, type):
        _text(total, f"type {_first_name(value)}")
    elif isinstance(value, types.ModuleType):
        _text(total, f"module {value.__name__}")
    elif id(value) in seen:
        _text(total, "again")
    else:
        _compound(total, value, (*seen, id(value)))


def _compound(total: Any, value: Any, seen: tuple[int, ...]) -> None:
    """Hash a container, dataclass, function or other object by its parts."""
    parts: Any
    if isinstance(value, Mapping):
        parts = sorted(((fingerprint(k), v) for k, v in value.items()), key=lambda item: item[0])
    elif isinstance(value, set | frozenset):
        parts = sorted(fingerprint(v) for v in value)
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value):
        names = FIRST_FIELDS.get(_first_name(type(value)), [f.name for f in dataclasses.fields(value)])
        parts = [(name, getattr(value, name, None)) for name in names]
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, types.CodeType):
        parts = [value.co_code, value.co_names, value.co_varnames, value.co_freevars, list(value.co_consts)]
    elif callable(value):
        parts = _function(value)
    elif hasattr(value, "__dict__"):
        parts = [vars(value)]
    else:
        raise ValueError(f"cannot fingerprint an object of type {type(value).__name__}: use arrays or dataclasses")
    _text(total, f"{_first_name(type(value))} {len(parts)}")
    for part in parts:
        _add(total, part, seen)


def _first_name(kind: type) -> str:
    """Qualified name of a class as of the first release."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return FIRST_NAMES.get(name) or f"{FIRST_NAMES.get(kind.__module__, kind.__module__)}.{kind.__qualname__}"


def _function(function: Any) -> list[Any]:
    """The name of a function if it can be imported by that name; otherwise its code and all that the code refers to."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", None) or ""
    name = name or getattr(function, "__name__", "")
    found: Any = sys.modules.get(module)
    for part in name.split(".") if name else []:
        found = getattr(found, part, None)
    if found is function and module != "__main__":
        return ["named", FIRST_NAMES.get(module, module), name]
    if hasattr(function, "__wrapped__"):  # jit and other wrappers
        return ["wrapped", type(function), function.__wrapped__]
    code = getattr(function, "__code__", None)
    if code is None:
        inside = getattr(function, "__dict__", {})
        return ["object", type(function), dict(inside)] if inside else ["named", module, name]
    used = {n: function.__globals__[n] for n in _names(code) if n in function.__globals__}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return ["code", code, function.__defaults__, function.__kwdefaults__, cells, used]


def _names(code: types.CodeType) -> set[str]:
    """Names that the code of a function looks up, including nested functions."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _array(total: Any, value: Any, seen: tuple[int, ...]) -> None:
    """Hash an array by type, shape and bytes; PRNG keys by their data."""
    import jax

    if _is_jax(value) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        _text(total, f"key {value.dtype}")
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.kind == "O":
        _text(total, f"objects {array.shape}")
        for item in array.ravel():
            _add(total, item, seen)
        return
    _text(total, f"array {array.dtype.str} {array.dtype.name} {array.shape}")
    total.update(np.ascontiguousarray(array).tobytes())


def _is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _text(total: Any, text: str) -> None:
    """Hash a string, prefixed by its length."""
    data = text.encode()
    total.update(f"{len(data)}:".encode() + data)
