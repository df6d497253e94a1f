"""Values to JSON and arrays, and back, for `persistence`: a closed list of kinds, none of which can carry code.

JSON holds numbers, text and the tree; arrays go beside it by number. What JSON has no word for is an object with the
key "#": array, text, jax, tuple, dict, slice, float (NaN and infinities), module, activation, estimator.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.errors import UnlazyError
from unlazy.estimators.persistence.registry import (
    COMPANIONS,
    ESTIMATORS,
    RENAMED,
    class_named,
    module_name,
    module_named,
    name_of,
    saved_fields,
)
from unlazy.theory.activations.functions import ACTIVATIONS, KNOWN, Activation, activation

_FITTED = re.compile(r"(?!__)[A-Za-z_]\w*_", re.ASCII)
_PRIVATE = re.compile(r"(?!__)[A-Za-z_]\w*", re.ASCII)
_NUMBERS = "bifu"


class Encoder:
    """`encode(value, where)` → JSON; the arrays met on the way are in `arrays`. `where` is for error messages."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def encode(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, str, int):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"#": "float", "v": repr(value)}
        for kind, write in self._writers():
            if isinstance(value, kind):
                return write(value, where)
        return self._module(value, where)

    def _writers(self) -> list[tuple[Any, Callable[[Any, str], Any]]]:
        from sklearn.base import BaseEstimator

        return [
            (list, lambda v, at: [self.encode(x, f"{at}[{i}]") for i, x in enumerate(v)]),
            (tuple, lambda v, at: {"#": "tuple", "v": [self.encode(x, f"{at}[{i}]") for i, x in enumerate(v)]}),
            (dict, lambda v, at: {"#": "dict", "v": [[self.encode(x, at) for x in pair] for pair in v.items()]}),
            (slice, lambda v, at: {"#": "slice", "v": [self.encode(x, at) for x in (v.start, v.stop, v.step)]}),
            ((np.ndarray, np.generic), self._array),
            (jax.Array, lambda v, at: {"#": "jax", "v": self._array(np.asarray(v), at)}),
            (Activation, self._activation),
            (np.random.RandomState, lambda v, at: None),  # its state is not part of what was learned
            (type, self._type),
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

    def _activation(self, value: Activation, where: str) -> Any:
        known = KNOWN.get(value.function)
        if known is None or value != activation(known.name, value.parameter):
            raise UnlazyError(
                f"{where} uses the activation {value.name!r}, a function of your own: files hold no code, so only "
                f"named activations ({', '.join(ACTIVATIONS)}) and known functions of jax can be saved"
            )
        return {"#": "activation", "name": known.name, "parameter": self.encode(value.parameter, where)}

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
                f"{where} is a {type(value).__name__}, which cannot be saved: files hold numbers, text, arrays, the "
                "kernels and networks of unlazy, and its estimators, but no code; a kernel of your own can be saved "
                f"after unlazy.estimators.register({type(value).__name__})"
            )
        return {"#": "module", "class": name, "fields": self._named(value, saved_fields(value, name), where)}

    def _estimator(self, value: Any, where: str) -> Any:
        ours, theirs = name_of(value, ESTIMATORS), name_of(value, COMPANIONS)
        if ours is None and theirs is None:
            raise UnlazyError(f"{where} is a {type(value).__name__}, which is not in the table of what can be saved")
        if getattr(value, "memory", None) is not None:
            raise UnlazyError(f"{where} has memory={value.memory!r}: set_params(memory=None) before saving")
        given = list(value.get_params(deep=False))
        allowed = _FITTED if ours is not None else _PRIVATE
        fitted = [name for name in vars(value) if name not in given and allowed.fullmatch(name)]
        return {
            "#": "estimator",
            "class": ours or theirs,
            "given": self._named(value, given, where),
            "fitted": self._named(value, fitted, where),
        }

    def _named(self, value: Any, names: list[str], where: str) -> dict[str, Any]:
        return {name: self.encode(getattr(value, name), f"{where}.{name}") for name in names}


class Decoder:
    """The way back; raises LookupError, TypeError or ValueError on anything it does not know."""

    def __init__(self, arrays: dict[str, np.ndarray], renamed: bool = False) -> None:
        self.arrays = arrays
        self._renamed = RENAMED if renamed else {}
        """Of files that still use the words of format 1."""

    def decode(self, tree: Any) -> Any:
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
            raise ValueError("a network needs one sigma per layer")  # else a small file could ask for any depth
        return kind(**fields)

    def _estimator(self, tree: dict) -> Any:
        ours = tree["class"] in ESTIMATORS
        kind = class_named(tree["class"], ESTIMATORS if ours else COMPANIONS)
        now = self._renamed.get(tree["class"], {})
        estimator = kind(**{now.get(name, name): self.decode(value) for name, value in tree["given"].items()})
        if getattr(estimator, "memory", None) is not None:
            raise ValueError("a pipeline with a cache on disk")  # joblib would unpickle what lies there
        allowed = _FITTED if ours else _PRIVATE
        for name, value in tree["fitted"].items():
            if not allowed.fullmatch(name) or callable(getattr(kind, name, None)):
                raise ValueError(f"{name!r} is not a fitted attribute")
            setattr(estimator, now.get(name, name), self.decode(value))
        return estimator


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
    "module": Decoder._module,
    "estimator": Decoder._estimator,
}
