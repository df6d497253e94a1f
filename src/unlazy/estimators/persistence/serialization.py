"""Conversion of values to JSON and arrays, and back. The set of types is closed, and none of them can carry code.

JSON holds numbers, strings and the tree; arrays are stored next to it and referenced by name. Other types are objects
with the key "#": array, text, jax, tuple, dict, slice, float (NaN and infinities), module, activation, ufunc,
estimator.
"""

import math
import re
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator

from unlazy.core.errors import UnlazyError
from unlazy.core.model_files import current_name
from unlazy.estimators.persistence.classes import COMPANIONS, ESTIMATORS, NUMPY_FUNCTIONS
from unlazy.estimators.persistence.registry import (
    class_named,
    module_name,
    module_named,
    name_of,
    saved_fields,
)
from unlazy.theory.activations.functions import ACTIVATIONS, KNOWN_FUNCTIONS, ActivationFunction, activation

_FITTED = re.compile(r"(?!__)[A-Za-z_]\w*_", re.ASCII)
_ANY_ATTRIBUTE = re.compile(r"(?!__)[A-Za-z_]\w*", re.ASCII)
_NUMBERS = "bifu"
Json = None | bool | int | float | str | list | dict


class Encoder:
    """`encode(value, where)` returns JSON and collects arrays in `arrays`; `where` is used in error messages."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def encode(self, value: object, where: str) -> Json:
        """Return the JSON of a value."""
        if value is None or type(value) in (bool, str, int):
            return cast(Json, value)
        if type(value) is float:
            return value if math.isfinite(value) else {"#": "float", "v": repr(value)}
        for kind, write in self._writers():
            if isinstance(value, kind):
                return write(value, where)
        return self._module(value, where)

    def _writers(self) -> list[tuple[Any, Callable[[Any, str], Any]]]:
        return [
            (list, lambda v, at: [self.encode(x, f"{at}[{i}]") for i, x in enumerate(v)]),
            (tuple, lambda v, at: {"#": "tuple", "v": [self.encode(x, f"{at}[{i}]") for i, x in enumerate(v)]}),
            (dict, lambda v, at: {"#": "dict", "v": [[self.encode(x, at) for x in pair] for pair in v.items()]}),
            (slice, lambda v, at: {"#": "slice", "v": [self.encode(x, at) for x in (v.start, v.stop, v.step)]}),
            ((np.ndarray, np.generic), self._array),
            (jax.Array, lambda v, at: {"#": "jax", "v": self._array(np.asarray(v), at)}),
            (ActivationFunction, self._activation),
            (np.random.RandomState, lambda v, at: None),  # its state is not part of the fit
            (type, self._type),
            (np.ufunc, self._numpy_function),
            (BaseEstimator, self._estimator),
        ]

    def _array(self, value: Any, where: str) -> Any:
        array = np.asarray(value)
        scalar = isinstance(value, np.generic)
        if array.dtype.kind in _NUMBERS:
            name = f"t{len(self.arrays)}"
            self.arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
            fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
            return {"#": "array", "v": name, "order": "F" if fortran else "C", "scalar": scalar}
        if array.dtype.kind in "UO":
            entries = [self.encode(x, where) for x in array.ravel().tolist()]
            return {"#": "text", "v": entries, "shape": list(array.shape), "kind": array.dtype.kind, "scalar": scalar}
        raise UnlazyError(f"{where} is an array of {array.dtype}, which cannot be saved")

    def _activation(self, value: ActivationFunction, where: str) -> Any:
        known = KNOWN_FUNCTIONS.get(value.function)
        if known is None or value != activation(known.name, value.parameter):
            raise UnlazyError(
                f"{where} uses the activation {value.name!r}, a custom function: files hold no code, so only "
                f"named activations ({', '.join(ACTIVATIONS)}) and known functions of jax can be saved"
            )
        return {"#": "activation", "name": known.name, "parameter": self.encode(value.parameter, where)}

    def _numpy_function(self, value: np.ufunc, where: str) -> Any:
        if getattr(np, value.__name__, None) is not value or value.__name__ not in NUMPY_FUNCTIONS:
            raise UnlazyError(
                f"{where} is the function {value.__name__}, which cannot be saved: files hold no code, only the names "
                f"of the NumPy functions {', '.join(NUMPY_FUNCTIONS)}"
            )
        return {"#": "ufunc", "v": value.__name__}

    def _type(self, value: type, where: str) -> Any:
        if not issubclass(value, np.floating | np.integer | np.bool_):
            raise UnlazyError(f"{where} is the class {value.__name__}, which cannot be saved: files hold no code")
        return {"#": "type", "v": np.dtype(value).name}

    def _module(self, value: Any, where: str) -> Any:
        name = module_name(value)
        if name is None and isinstance(value, np.dtype) and value.kind in "biufUO":
            return {"#": "dtype", "v": value.str}
        if name is None:
            raise UnlazyError(
                f"{where} is a {type(value).__name__}, which cannot be saved: files hold numbers, strings, arrays, and "
                "the kernels, networks and estimators of unlazy, but no code; a custom kernel can be saved after "
                f"unlazy.estimators.register({type(value).__name__})"
            )
        return {"#": "module", "class": name, "fields": self._named(value, saved_fields(value, name), where)}

    def _estimator(self, value: Any, where: str) -> Any:
        ours, theirs = name_of(value, ESTIMATORS), name_of(value, COMPANIONS)
        if ours is None and theirs is None:
            raise UnlazyError(
                f"{where} is a {type(value).__name__}, which cannot be saved without pickle: files hold the estimators "
                f"of unlazy and, of scikit-learn, {', '.join(n for n, m in COMPANIONS.items() if 'sklearn' in m)}"
            )
        if getattr(value, "memory", None) is not None:
            raise UnlazyError(f"{where} has memory={value.memory!r}: call set_params(memory=None) before saving")
        given = list(value.get_params(deep=False))
        saved = [name for name in given if not (name == "progress" and callable(value.progress))]  # no code in files
        allowed = _FITTED if ours is not None else _ANY_ATTRIBUTE
        fitted = [name for name in vars(value) if name not in given and allowed.fullmatch(name)]
        return {
            "#": "estimator",
            "class": ours or theirs,
            "given": self._named(value, saved, where),
            "fitted": self._named(value, fitted, where),
        }

    def _named(self, value: Any, names: list[str], where: str) -> dict[str, Any]:
        return {name: self.encode(getattr(value, name), f"{where}.{name}") for name in names}


class Decoder:
    """Inverse of `Encoder`; raises LookupError, TypeError or ValueError for anything unknown."""

    def __init__(self, arrays: dict[str, np.ndarray], written: int) -> None:
        self.arrays = arrays
        self._written = written
        """Format of the file."""

    def decode(self, tree: Json) -> Any:
        """Return the value of a JSON tree."""
        if isinstance(tree, list):
            return [self.decode(x) for x in tree]
        if not isinstance(tree, dict):
            return tree
        return _READERS[tree["#"]](self, tree)

    def _array(self, tree: dict) -> Any:
        array = self.arrays[tree["v"]]
        if tree["order"] == "F":
            array = np.asfortranarray(array)
        return array[()] if tree["scalar"] else array

    def _text(self, tree: dict) -> Any:
        entries = self.decode(tree["v"])
        flat = np.empty(len(entries), object)
        flat[:] = entries
        array = (flat if tree["kind"] == "O" else np.array(entries, np.str_)).reshape(tree["shape"])
        return array[()] if tree["scalar"] else array

    def _jax(self, tree: dict) -> jax.Array:
        array = np.asarray(self.decode(tree["v"]))
        with jax.enable_x64(array.dtype.itemsize == 8):
            return jnp.asarray(array)

    def _module(self, tree: dict) -> Any:
        kind = module_named(tree["class"])
        fields = {name: self.decode(value) for name, value in tree["fields"].items()}
        if tree["class"] == "MLP" and not all(isinstance(fields[name], tuple) for name in ("sigma_w", "sigma_b")):
            raise ValueError("a network needs one sigma per layer")  # otherwise a small file could request any depth
        return kind(**fields)

    def _estimator(self, tree: dict) -> Any:
        ours = tree["class"] in ESTIMATORS
        kind = class_named(tree["class"], ESTIMATORS if ours else COMPANIONS)

        def current(name: str) -> str:
            return current_name(name, tree["class"], self._written)

        estimator = kind(**{current(name): self.decode(value) for name, value in tree["given"].items()})
        if getattr(estimator, "memory", None) is not None:
            raise ValueError("a pipeline with a cache on disk")  # joblib would unpickle files in that folder
        allowed = _FITTED if ours else _ANY_ATTRIBUTE
        for name, value in tree["fitted"].items():
            if not allowed.fullmatch(name) or callable(getattr(kind, name, None)):
                raise ValueError(f"{name!r} is not a fitted attribute")
            setattr(estimator, current(name), self.decode(value))
        return estimator


def _numpy_function(tree: dict) -> np.ufunc:
    if tree["v"] not in NUMPY_FUNCTIONS:
        raise ValueError(f"unexpected function {tree['v']!r}")
    return getattr(np, tree["v"])


def _dtype(tree: dict) -> np.dtype:
    found = np.dtype(str(tree["v"]))
    if found.kind not in "biufUO":
        raise ValueError(f"unexpected type {found}")
    return found


_READERS: dict[str, Callable[[Decoder, dict], Any]] = {
    "float": lambda self, tree: float(tree["v"]),
    "tuple": lambda self, tree: tuple(self.decode(tree["v"])),
    "dict": lambda self, tree: {self.decode(key): self.decode(value) for key, value in tree["v"]},
    "slice": lambda self, tree: slice(*self.decode(tree["v"])),
    "array": Decoder._array,
    "text": Decoder._text,
    "jax": Decoder._jax,
    "activation": lambda self, tree: activation(str(tree["name"]), self.decode(tree["parameter"])),
    "type": lambda self, tree: _dtype(tree).type,
    "dtype": lambda self, tree: _dtype(tree),
    "ufunc": lambda self, tree: _numpy_function(tree),
    "module": Decoder._module,
    "estimator": Decoder._estimator,
}
